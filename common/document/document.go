// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package document writes what commands print for people and programs: a value as indented
// JSON, or the text that stands for it, with tables that fit into a number of columns. Their
// long cells are wrapped and never cut.
package document

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/printable"
)

// Format is how a document is printed.
type Format string

// The formats. Text is what the commands of the system take.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Check returns an error that names the formats there are if f is none of them.
func (f Format) Check() error {
	if f != Text && f != JSON {
		return fmt.Errorf("%q is unknown: want %s or %s", f, Text, JSON)
	}
	return nil
}

// Write writes value as JSON, or what text prints.
func (f Format) Write(w io.Writer, value any, text func(*bufio.Writer)) error {
	if err := f.Check(); err != nil {
		return fmt.Errorf("format %w", err)
	}
	if f == JSON {
		return WriteJSON(w, value)
	}
	b := bufio.NewWriter(w)
	text(b)
	return b.Flush()
}

// WriteJSON writes value as indented JSON, in which <, > and & are escaped.
func WriteJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// WriteReadable is WriteJSON for a terminal: <, > and & stay, foreign text controls nothing.
func WriteReadable(w io.Writer, value any) error {
	e := json.NewEncoder(printable.Writer(w))
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// Width is how many columns a line has at most where nobody says how many there are room
// for. Unlimited is for programs: nothing is wrapped.
const (
	Width     = 100
	Unlimited = math.MaxInt32
)

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
	// Width is how many columns it may have, 0 for Width.
	Width   int
	Colours bool // shows them
}

func (t *Table) width() int { return cmp.Or(t.Width, Width) }

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
	for _, s := range Wrap(c.Text, t.width()-len(margin)-len(title)-gap) {
		to.WriteString(margin + title + strings.Repeat(" ", gap) + t.paint(Cell{Text: s, Colour: c.Colour}) + "\n")
		title = strings.Repeat(" ", len(title))
	}
}

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

// gap is the least distance of two columns. A text in the last column has leastRoom, or
// stands below its row, indented by below. No other column gets narrower than narrowest.
const (
	gap       = 2
	leastRoom = 30
	below     = "    "
	narrowest = 8
)

// layout is how wide the columns of a table are.
type layout struct {
	titles []string
	widths []int // 0 for a column that is left out
	// belowTitle is the title of the last column, if its texts stand below their rows.
	belowTitle string
}

// layout makes the columns fit. First a text in the last column is wrapped, then it goes
// below its row, then other columns are wrapped: after commas and between words, and only
// if that is not enough, within names and addresses.
func (t *Table) layout() *layout {
	l := &layout{titles: strings.Split(t.Head, "|")}
	l.widths = t.widths(l.titles, utf8.RuneCountInString)
	last := len(l.widths) - 1
	for last > 0 && l.widths[last] == 0 {
		last--
	}
	l.titles, l.widths = l.titles[:last+1], l.widths[:last+1]
	excess := len(t.Indent) + total(l.widths) - t.width()
	if excess <= 0 {
		return l
	}
	if t.isText(last) && last > 0 {
		if w := l.widths[last] - excess; w >= min(leastRoom, l.widths[last]) {
			l.widths[last] = w
			return l
		}
		l.belowTitle = l.titles[last]
		l.titles, l.widths = l.titles[:last], l.widths[:last]
	}
	floors := make([]int, len(l.widths))
	for i, title := range l.titles {
		floors[i] = max(narrowest, len(title))
	}
	room := t.width() - len(t.Indent)
	shrink(l.widths, t.widths(l.titles, longestPiece), room)
	shrink(l.widths, floors, room)
	return l
}

// Fits reports whether no cell has to be wrapped, except for a text in the last column.
func (t *Table) Fits() bool {
	titles := strings.Split(t.Head, "|")
	widths := t.widths(titles, utf8.RuneCountInString)
	last := len(widths) - 1
	for last > 0 && widths[last] == 0 {
		last--
	}
	if last > 0 && t.isText(last) {
		widths[last] = 0
	}
	return len(t.Indent)+total(widths) <= t.width()
}

// total is what columns take.
func total(widths []int) int {
	sum, shown := 0, 0
	for _, w := range widths {
		if w > 0 {
			sum, shown = sum+w, shown+1
		}
	}
	return sum + gap*max(0, shown-1)
}

// shrink narrows the widest columns, down to their floors, until all fit in room.
func shrink(widths, floors []int, room int) {
	for total(widths) > room {
		widest := -1
		for i, w := range widths {
			if w > floors[i] && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// isText reports whether column i has texts of several words.
func (t *Table) isText(i int) bool {
	return slices.ContainsFunc(t.Rows, func(row []Cell) bool { return !row[i].Right && strings.Contains(row[i].Text, " ") })
}

// widths measures each column, 0 for one without text.
func (t *Table) widths(titles []string, measure func(string) int) []int {
	widths := make([]int, len(titles))
	for _, row := range t.Rows {
		for i := range titles {
			if row[i].Right { // numbers stay whole
				widths[i] = max(widths[i], utf8.RuneCountInString(row[i].Text))
				continue
			}
			widths[i] = max(widths[i], measure(row[i].Text))
		}
	}
	for i, title := range titles {
		if widths[i] > 0 {
			widths[i] = max(widths[i], len(title))
		}
	}
	return widths
}

// longestPiece returns the length of the longest part of text that Wrap would leave whole.
func longestPiece(text string) int {
	longest := 0
	for _, word := range strings.Fields(text) {
		for _, piece := range strings.SplitAfter(word, ",") {
			longest = max(longest, utf8.RuneCountInString(piece))
		}
	}
	return longest
}

// Wrap breaks text into at least one line of at most width columns: between words, and a longer
// word after a comma, a slash, another sign, or anywhere.
func Wrap(text string, width int) []string { return wrap(text, width, width) }

// Hang is Wrap, with all lines but the first indented, so that no foreign text begins a line.
func Hang(text string, width int) []string {
	const margin = "  "
	lines := wrap(text, width, width-len(margin))
	for i := range lines[1:] {
		lines[i+1] = margin + lines[i+1]
	}
	return lines
}

// wrap is Wrap, with another width for the first line than for the rest.
func wrap(text string, width, rest int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		last := &lines[len(lines)-1]
		switch n := letters(*last); {
		case n == 0:
			*last = word
		case n+1+letters(word) > width:
			lines, width = append(lines, word), rest
		default:
			*last += " " + word
		}
		for letters(lines[len(lines)-1]) > width {
			r := []rune(lines[len(lines)-1])
			at := breakAt(r, width)
			lines[len(lines)-1] = string(r[:at])
			lines, width = append(lines, string(r[at:])), rest
		}
	}
	return lines
}

// letters counts what of text takes room: colours do not.
func letters(text string) int {
	n, colour := 0, false
	for _, r := range text {
		switch {
		case colour:
			colour = r != 'm'
		case r == '\x1b':
			colour = true
		default:
			n++
		}
	}
	return n
}

// breakAt returns how much of a word that is longer than width stands in the first line.
func breakAt(word []rune, width int) int {
	for _, signs := range []string{",", "/", "-.:;=&?@_%"} {
		for i := width; i > width/3; i-- {
			if strings.ContainsRune(signs, word[i-1]) {
				return i
			}
		}
	}
	return max(1, width)
}

// DataForms are the formats for programs, as kubectl has them.
const DataForms = "json, yaml or jsonpath=TEMPLATE"

const (
	asYAML     = "yaml"
	asJSONPath = "jsonpath="
)

// IsData reports whether format is for programs. The error is about a template.
func IsData(format string) (bool, error) {
	if template, ok := strings.CutPrefix(format, asJSONPath); ok {
		_, err := parse(template)
		return true, err
	}
	return format == string(JSON) || format == asYAML, nil
}

// CheckOutput checks the value of --output: one of forms, or a format for programs.
func CheckOutput(format string, forms ...string) error {
	data, err := IsData(format)
	switch {
	case err != nil:
		return fmt.Errorf("--output: %w", err)
	case !data && !slices.Contains(forms, format):
		return fmt.Errorf("--output: %q is unknown: want %s, %s", format, strings.Join(forms, ", "), DataForms)
	}
	return nil
}

// WriteData writes value in a format for programs. Foreign text cannot control a terminal.
func WriteData(w io.Writer, format string, value any) error {
	if format == string(JSON) {
		return WriteReadable(w, value)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w = printable.Writer(w)
	template, is := strings.CutPrefix(format, asJSONPath)
	if !is {
		if text, err = yaml.JSONToYAML(text); err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	path, err := parse(template)
	if err != nil {
		return err
	}
	var data any
	if err := utiljson.Unmarshal(text, &data); err != nil {
		return err
	}
	return path.Execute(w, data)
}

// parse reads a template. Braces around one path alone may be left out.
func parse(template string) (*jsonpath.JSONPath, error) {
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("template %q: %w: want one such as {.ok} or {.services[*].name}", template, err)
	}
	return path, nil
}
