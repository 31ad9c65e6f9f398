// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package columns prints tables for people, and has the colours of all commands. Rows of
// cells go in, lines of at most Width columns come out. A long text in the last column is
// wrapped, never cut.
package columns

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// Width is how many columns a line has at most, except where a single word is longer or
// the other columns leave no room.
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

// gap is the least distance of two columns. With less than leastRoom for the last one,
// its text goes below the row, indented by below.
const (
	gap       = 2
	leastRoom = 30
	below     = "    "
)

// Write appends the table to to.
func (t *Table) Write(to *bytes.Buffer) {
	titles := strings.Split(t.Head, "|")
	widths := t.widths(titles)
	last := len(widths) - 1
	for last > 0 && widths[last] == 0 {
		last--
	}
	head := make([]Cell, len(titles))
	for i, title := range titles {
		head[i] = Cell{Text: title, Colour: Bold}
		for _, row := range t.Rows {
			head[i].Right = head[i].Right || row[i].Right
		}
	}
	start := len(t.Indent)
	for _, w := range widths[:last] {
		if w > 0 {
			start += w + gap
		}
	}
	for _, row := range append([][]Cell{head}, t.Rows...) {
		row, lines := t.wrap(row, last, start)
		t.row(to, row, widths[:last+1])
		for _, l := range lines {
			to.WriteString(l + "\n")
		}
	}
}

// widths returns how wide each column is, 0 for one that is left out.
func (t *Table) widths(titles []string) []int {
	widths := make([]int, len(titles))
	for _, row := range t.Rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	for i, title := range titles {
		if widths[i] > 0 {
			widths[i] = max(widths[i], utf8.RuneCountInString(title))
		}
	}
	return widths
}

// wrap returns row with as much of the last column as fits, and lines with the rest of
// it. The last column begins at start.
func (t *Table) wrap(row []Cell, last, start int) (first []Cell, rest []string) {
	c := row[last]
	if t.OneLine || c.Right || c.Text == "" || start+utf8.RuneCountInString(c.Text) <= Width {
		return row, nil
	}
	row = append([]Cell{}, row...)
	indent := strings.Repeat(" ", start)
	lines := Wrap(c.Text, Width-start)
	if Width-start < leastRoom {
		indent = t.Indent + below
		lines = append([]string{""}, Wrap(c.Text, Width-len(indent))...)
	}
	row[last].Text = lines[0]
	for _, l := range lines[1:] {
		rest = append(rest, indent+t.paint(Cell{Text: l, Colour: c.Colour}))
	}
	return row, rest
}

// row appends one line.
func (t *Table) row(to *bytes.Buffer, row []Cell, widths []int) {
	to.WriteString(t.Indent)
	blank := 0 // pending, so that no line ends in blanks
	for i, w := range widths {
		if w == 0 {
			continue
		}
		c := row[i]
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
	if c == "" {
		return text
	}
	return string(c) + text + reset
}

// Wrap breaks text into lines of at most width columns, between words. There is at least
// one line.
func Wrap(text string, width int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		last := &lines[len(lines)-1]
		switch n := utf8.RuneCountInString(*last); {
		case n == 0:
			*last = word
		case n+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
}
