// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package columns prints tables for people, and has the colours of all commands. Rows of
// cells go in, lines of at most Width columns come out. What is too long is wrapped, never
// cut.
package columns

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Width is how many columns a line has at most.
const Width = 100

// Colour is how a terminal shows a word. The zero value is plain.
type Colour string

// The colours.
const (
	Green  Colour = "\x1b[32m"
	Yellow Colour = "\x1b[33m"
	Red    Colour = "\x1b[31m"
	Cyan   Colour = "\x1b[36m"
	Bold   Colour = "\x1b[1m"
	reset         = "\x1b[0m"
)

// Cell is a word or a text in a table.
type Cell struct {
	Text   string
	Colour Colour
	Right  bool // aligned to the right, as numbers are
}

// Plain returns a Cell without colour.
func Plain(text string) Cell { return Cell{Text: text} }

// Table is rows under a head. A column that is empty in every row is left out.
type Table struct {
	Indent string
	Head   string // the titles, with "|" between
	Rows   [][]Cell
	// Colours shows colours. OneLine keeps each row on one line, however long it is.
	Colours, OneLine bool
}

// Write appends the table to to.
func (t *Table) Write(to *bytes.Buffer) {
	l := t.layout()
	head := make([]Cell, len(l.titles))
	for i, title := range l.titles {
		head[i] = Cell{Text: title, Colour: Bold}
		for _, row := range t.Rows {
			head[i].Right = head[i].Right || row[i].Right
		}
	}
	t.row(to, head, l)
	for _, row := range t.Rows {
		t.row(to, row, l)
	}
}

// row appends a row, in as many lines as its highest cell has.
func (t *Table) row(to *bytes.Buffer, row []Cell, l *layout) {
	cells := make([][]string, len(l.widths))
	height := 1
	for i, w := range l.widths {
		if w == 0 {
			continue
		}
		cells[i] = []string{row[i].Text}
		switch {
		case utf8.RuneCountInString(row[i].Text) <= w:
		case i == 0:
			cells[i] = Hang(row[i].Text, w)
		default:
			cells[i] = Wrap(row[i].Text, w)
		}
		height = max(height, len(cells[i]))
	}
	for n := range height {
		t.line(to, row, cells, n, l.widths)
	}
	if l.belowTitle != "" && len(row) > len(l.widths) { // the head has no such cell
		t.below(to, row[len(l.widths)], l.belowTitle)
	}
}

// below appends a text below its row, after its title.
func (t *Table) below(to *bytes.Buffer, c Cell, title string) {
	margin := t.Indent + below
	if c.Text == "" {
		return
	}
	for _, s := range Wrap(c.Text, Width-len(margin)-len(title)-gap) {
		to.WriteString(margin + title + strings.Repeat(" ", gap) + t.paint(Cell{Text: s, Colour: c.Colour}) + "\n")
		title = strings.Repeat(" ", len(title))
	}
}

// line appends line n of a row.
func (t *Table) line(to *bytes.Buffer, row []Cell, cells [][]string, n int, widths []int) {
	to.WriteString(t.Indent)
	blank := 0 // pending, so that no line ends in blanks
	for i, w := range widths {
		if w == 0 {
			continue
		}
		c := row[i]
		c.Text = ""
		if n < len(cells[i]) {
			c.Text = cells[i][n]
		}
		room := w - utf8.RuneCountInString(c.Text)
		if c.Right {
			blank, room = blank+room, 0
		}
		if c.Text != "" {
			to.WriteString(strings.Repeat(" ", blank) + t.paint(c))
			blank = 0
		}
		blank += room + gap
	}
	to.WriteByte('\n')
}

func (t *Table) paint(c Cell) string {
	if t.Colours {
		return c.Painted()
	}
	return c.Text
}

// Painted returns the text of c in its colour.
func (c Cell) Painted() string { return c.Colour.Paint(c.Text) }

// Paint returns text in the colour c.
func (c Colour) Paint(text string) string {
	if c == "" || text == "" {
		return text
	}
	return string(c) + text + reset
}
