// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// table is all that was measured with one number of Services.
type table struct {
	services int
	by       map[role]*figures
	few      *figures // connections with few Services
	rows     []row    // nil for those of every number of Services
	title    string   // if it is not the number of Services
	base     string   // what the first column is, if not the floor
}

func (t *table) add(r role, f *figures) {
	if t.by == nil {
		t.by = map[role]*figures{}
	}
	t.by[r] = f
}

// value returns a metric of one role, NaN if it has none.
func (t *table) value(r role, metric string) float64 {
	f := t.by[r]
	if f == nil {
		return math.NaN()
	}
	v, ok := f.Values[metric]
	if !ok {
		return math.NaN()
	}
	return v
}

// unit is how a metric is written.
type unit func(float64) string

func inSeconds(v float64) string {
	switch {
	case v < 1e-3:
		return fmt.Sprintf("%.1f µs", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.1f ms", v*1e3)
	}
	return fmt.Sprintf("%.2f s", v)
}

func inMegabytes(v float64) string { return fmt.Sprintf("%.1f MB", v/1e6) }
func inBytes(v float64) string     { return fmt.Sprintf("%.0f B", v) }
func inPercent(v float64) string   { return fmt.Sprintf("%+.1f %%", v*100) }

// row is a line of every table.
type row struct {
	label  string
	metric string
	unit   unit
	// floor is the metric of the floor's column, metric itself if "".
	floor string
	// ratio is the metric of our ratio to the floor, which is worked out from
	// both if "".
	ratio string
	aim   aim
	// why says what holds the figure back.
	why string
}

// aim is what a row should reach. The zero aim is none.
type aim struct {
	// most is the limit with so many Services, 0 for none.
	most func(services int) float64
	// times is the limit as a multiple of the floor, 0 for none.
	times float64
}

func always(v float64) func(int) float64 { return func(int) float64 { return v } }

// firstCPU grows with the work beyond the size it is set for.
func firstCPU(services int) float64 {
	if services > 10000 {
		return 0
	}
	return 1
}

func oneChange(services int) float64 {
	if services > 10000 {
		return 5e-3
	}
	return 2e-3
}

// overFew is how much more a connection takes than with few Services, both
// as multiples of a direct one.
const overFew = "connect.overfew"

// line is a row as it is printed.
type line struct {
	label             string
	floor, ours, peer string
	overFloor         string // ours as a multiple of the floor
	peerOver          string // the peer as a multiple of ours
	aim, met          string
	why               string
}

// lines returns the lines of t, without those that nobody has a figure for.
func (t *table) lines() []line {
	if ours := t.by[roleOurs]; ours != nil && t.few != nil {
		const last = "connect.last.ratio"
		ours.set(overFew, ours.Values[last]/t.few.Values[last]-1)
	}
	var list []line
	which := t.rows
	if which == nil {
		which = rows
	}
	for _, r := range which {
		if l, ok := t.line(r); ok {
			list = append(list, l)
		}
	}
	return list
}

func (t *table) line(r row) (line, bool) {
	ours, peer := t.value(roleOurs, r.metric), t.value(rolePeer, r.metric)
	floor := t.value(roleFloor, r.metric)
	if r.floor != "" {
		floor = t.value(roleOurs, r.floor)
	}
	ratio := ours / floor
	if r.ratio != "" {
		ratio = t.value(roleOurs, r.ratio)
	}
	l := line{
		label: r.label, why: r.why, floor: cell(r.unit, floor), ours: cell(r.unit, ours), peer: cell(r.unit, peer),
		overFloor: cell(times, ratio), peerOver: cell(times, peer/ours),
	}
	var reached, limit float64
	if r.aim.times > 0 {
		reached, limit = ratio, r.aim.times
		l.aim = fmt.Sprintf("<= %.3gx %s", limit, cmp.Or(t.base, "floor"))
	} else if r.aim.most != nil {
		reached, limit = ours, r.aim.most(t.services)
		l.aim = "<= " + strings.TrimPrefix(r.unit(limit), "+")
	}
	switch {
	case limit == 0:
		l.aim = ""
	case reached <= limit:
		l.met = "met"
	default: // a figure that is missing too
		l.met = "missed"
	}
	return l, l.floor+l.ours+l.peer != ""
}

func times(v float64) string {
	if v >= 100 {
		return thousands(int(v)) + "x"
	}
	return fmt.Sprintf("%.2fx", v)
}

func cell(u unit, v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return u(v)
}

// text is t as a table in Markdown, which is aligned to be read as it is.
func (t *table) text() string {
	cells := [][]string{{"", "floor", "ours", "ours/floor", "aim", ""}}
	peer := t.by[rolePeer] != nil
	if peer {
		cells[0] = append(cells[0], "peer", "peer/ours")
	}
	for _, l := range t.lines() {
		c := []string{l.label, l.floor, l.ours, l.overFloor, l.aim, l.met}
		if peer {
			c = append(c, l.peer, l.peerOver)
		}
		cells = append(cells, c)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s Services of %d endpoints\n\n%s", thousands(t.services), perService, align(cells))
	for _, note := range t.notes() {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

// notes are what the children had to say, each once.
func (t *table) notes() []string {
	var list []string
	for _, r := range slices.Sorted(maps.Keys(t.by)) {
		for _, note := range t.by[r].Notes {
			if !slices.Contains(list, note) {
				list = append(list, note)
			}
		}
	}
	return list
}

// align writes cells as a table: the first row is its head, the first column
// is flush left and so are words, numbers are flush right.
func align(cells [][]string) string {
	width := make([]int, len(cells[0]))
	for _, c := range cells {
		for i, word := range c {
			width[i] = max(width[i], utf8.RuneCountInString(word), 2)
		}
	}
	var b strings.Builder
	for i, c := range cells {
		for j, word := range c {
			pad := strings.Repeat(" ", width[j]-utf8.RuneCountInString(word))
			if j == 0 {
				word += pad
			} else {
				word = pad + word
			}
			b.WriteString("| " + word + " ")
		}
		b.WriteString("|\n")
		if i == 0 {
			b.WriteString(ruler(width))
		}
	}
	return b.String()
}

func ruler(width []int) string {
	var b strings.Builder
	for j, w := range width {
		if j == 0 {
			b.WriteString("|" + strings.Repeat("-", w+2))
		} else {
			b.WriteString("|" + strings.Repeat("-", w+1) + ":")
		}
	}
	return b.String() + "|\n"
}

// thousands writes 30000 as 30,000.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
