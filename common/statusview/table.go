// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// colour is how a terminal shows a word; the zero value is plain.
type colour string

const (
	green  colour = "\x1b[32m"
	yellow colour = "\x1b[33m"
	red    colour = "\x1b[31m"
	bold   colour = "\x1b[1m"
	reset         = "\x1b[0m"
)

// cell is a word in a table.
type cell struct {
	text   string
	colour colour
}

func plain(text string) cell { return cell{text: text} }

// printer collects what is printed.
type printer struct {
	text         bytes.Buffer
	colour, wide bool
	now          time.Time
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

// paint returns c with its colour.
func (p *printer) paint(c cell) string {
	if !p.colour || c.colour == "" {
		return c.text
	}
	return string(c.colour) + c.text + reset
}

// columnGap is the least distance of two columns.
const columnGap = 2

// table prints rows in columns as wide as they need, the last one ragged. A column that
// is empty in every row but the head is left out.
func (p *printer) table(indent, head string, rows [][]cell) {
	titles := strings.Split(head, "|")
	all := make([][]cell, 1, len(rows)+1)
	for _, title := range titles {
		all[0] = append(all[0], cell{title, bold})
	}
	all = append(all, rows...)
	widths := make([]int, len(titles))
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for i, title := range titles {
		if widths[i] > 0 {
			widths[i] = max(widths[i], len(title))
		}
	}
	for _, row := range all {
		p.text.WriteString(indent)
		blank := 0 // pending, so that no line ends in blanks
		for i, c := range row {
			if widths[i] == 0 {
				continue
			}
			if c.text != "" {
				p.text.WriteString(strings.Repeat(" ", blank) + p.paint(c))
				blank = 0
			}
			blank += widths[i] - utf8.RuneCountInString(c.text) + columnGap
		}
		p.text.WriteByte('\n')
	}
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
