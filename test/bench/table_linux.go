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

	"kubeproxy/test/kit"
)

// table is everything that was measured with one number of Services.
type table struct {
	services int
	by       map[role]*figures
	few      *figures // connections with few Services
	rows     []row
	title    string // "" for that of the section
	base     string // head of the first column, "" for none
	head     string // head of the second column, "" for ours
}

// The results of an aim, as they appear in a table.
const (
	aimMet    = "met"
	aimMissed = "missed"
)

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

// unit formats a metric.
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
	// ratio is the metric of our ratio to the floor. If "", the ratio is computed from
	// both.
	ratio string
	// spread is whether the limits of the ratio, or of the metric if it has none, are shown.
	spread bool
	aim    aim
	// cited is whether the document has the row though it has no aim.
	cited bool
	// why is what limits the figure.
	why string
}

// aim is what a row should reach. The zero aim is none.
type aim struct {
	// most is the limit for a number of Services, 0 for none.
	most func(services int) float64
	// times is the limit as a multiple of the floor, 0 for none; least is a lower limit.
	times, least float64
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

func (a aim) none() bool { return a.most == nil && a.times == 0 && a.least == 0 }

// overFew compares the costs of a connection with those with few Services, both as
// multiples of a direct one.
const overFew = "connect.overfew"

// line is a row as it is printed.
type line struct {
	label             string
	floor, ours, peer string
	overFloor         string // ours as a multiple of the floor
	spread            string // of it
	peerOver          string // the peer as a multiple of ours
	aim, met          string
	why               string
}

// lines returns the lines of t, without those that have no figure.
func (t *table) lines() []line {
	if ours := t.by[roleOurs]; ours != nil && t.few != nil {
		const last = "connect.last.ratio"
		ours.set(overFew, ours.Values[last]/t.few.Values[last]-1)
	}
	var list []line
	for _, r := range t.rows {
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
	if r.spread {
		l.spread = t.spread(r)
	}
	var reached, limit float64
	if r.aim.times > 0 {
		reached, limit = ratio, r.aim.times
		l.aim = fmt.Sprintf("<= %.3gx %s", limit, t.base)
	} else if r.aim.least > 0 {
		reached, limit = -ratio, -r.aim.least
		l.aim = fmt.Sprintf(">= %.3gx %s", r.aim.least, t.base)
	} else if r.aim.most != nil {
		reached, limit = ours, r.aim.most(t.services)
		l.aim = "<= " + strings.TrimPrefix(r.unit(limit), "+")
	}
	switch {
	case limit == 0:
		l.aim = ""
	case reached <= limit:
		l.met = aimMet
	default: // a figure that is missing too
		l.met = aimMissed
	}
	return l, l.floor+l.ours+l.peer != ""
}

// spread returns the limits of a row's ratio, or of its metric.
func (t *table) spread(r row) string {
	u := times
	if r.ratio == "" {
		u = r.unit
	}
	metric := cmp.Or(r.ratio, r.metric)
	low, high := t.value(roleOurs, metric+lowEnd), t.value(roleOurs, metric+highEnd)
	if math.IsNaN(low) {
		return ""
	}
	return u(low) + " to " + u(high)
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

// text returns t as an aligned Markdown table, followed by its notes.
func (t *table) text() string {
	var b strings.Builder
	b.WriteString(t.grid())
	for _, note := range t.notes() {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

// grid returns t as an aligned Markdown table.
func (t *table) grid() string {
	head := cmp.Or(t.head, "ours")
	cells := [][]string{{"", t.base, head, head + "/" + firstWord(t.base), "95 %", "aim", "", "peer", "peer/" + head}}
	spread := false
	for _, l := range t.lines() {
		spread = spread || l.spread != ""
		cells = append(cells, []string{l.label, l.floor, l.ours, l.overFloor, l.spread, l.aim, l.met, l.peer, l.peerOver})
	}
	for i, c := range cells {
		if t.by[rolePeer] == nil {
			c = slices.Delete(c, 7, 9)
		}
		if !spread {
			c = slices.Delete(c, 4, 5)
		}
		if t.base == "" {
			c = slices.Delete(c, 3, 4)
			c = slices.Delete(c, 1, 2)
		}
		cells[i] = c
	}
	return kit.Numbers(cells)
}

// short is t without what the document leaves out: rows without an aim that nothing cites.
func (t table) short() table {
	t.rows = slices.DeleteFunc(slices.Clone(t.rows), func(r row) bool { return r.aim.none() && !r.cited })
	return t
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// notes are those of the children, each once.
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

// thousands formats 30000 as 30,000.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
