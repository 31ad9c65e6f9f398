// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"kubeproxy/common/columns"
)

// cell is a word in a table.
type cell = columns.Cell

const green, yellow, red = columns.Green, columns.Yellow, columns.Red

func plain(text string) cell { return columns.Plain(text) }

func painted(text string, c columns.Colour) cell { return cell{Text: text, Colour: c} }

// printer collects what is printed.
type printer struct {
	text         bytes.Buffer
	colour, wide bool
	now          time.Time
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

// sentence prints text that may be long, and after it a cell in its colour.
func (p *printer) sentence(text string, end cell) {
	lines := []string{strings.TrimSpace(text + " " + p.paint(end))}
	if !p.wide {
		lines = columns.Hang(lines[0], columns.Width)
	}
	p.line("%s", strings.Join(lines, "\n"))
}

// paint returns c with its colour.
func (p *printer) paint(c cell) string {
	if p.colour {
		return c.Painted()
	}
	return c.Text
}

// table prints rows. A long text in the last column is wrapped unless the format is wide.
func (p *printer) table(indent, head string, rows [][]cell) {
	p.newTable(indent, head, rows).Write(&p.text)
}

func (p *printer) newTable(indent, head string, rows [][]cell) *columns.Table {
	return &columns.Table{Indent: indent, Head: head, Rows: rows, Colours: p.colour, OneLine: p.wide}
}

// ago returns how long t is past.
func (p *printer) ago(t time.Time) string {
	if t.IsZero() || t.Unix() <= 0 {
		return "never"
	}
	return shortDuration(p.now.Sub(t))
}

// since is ago for a time that may be nil.
func (p *printer) since(t *time.Time) string {
	if t == nil {
		return ""
	}
	return p.ago(*t)
}

// shortDuration formats a duration with at most two units.
func shortDuration(d time.Duration) string {
	d = max(d, 0)
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return twoUnits(d, time.Minute, "m", time.Second, "s")
	case d < day:
		return twoUnits(d, time.Hour, "h", time.Minute, "m")
	}
	return twoUnits(d, day, "d", time.Hour, "h")
}

func twoUnits(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/big, bigName)
	if rest := d % big / small; rest > 0 && d/big < 10 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}
