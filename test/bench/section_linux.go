// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// part can be measured by itself. It has a section of its own in the document.
type part struct {
	name    string // on the command line
	title   string // of the section
	measure func(*bench, context.Context, *section) error
}

// parts are all of them, in the order of the document.
var parts = []part{
	{"inside", "From objects to the kernel", (*bench).measureInside},
	{"served", "Through the API server", (*bench).measureServed},
	{"iptables", "Mode iptables", (*bench).measureIPTables},
	{"userspace", "Mode userspace", (*bench).measureUserspace},
	{"traffic", "Counting connections", (*bench).measureCounting},
	{"connect", "Socket acceleration", (*bench).measureAcceleration},
	{"ipvs", "Mode ipvs", (*bench).measureVirtualServers},
}

// partNames lists the values of the flag.
func partNames() string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// chosen returns the parts to measure: all for no name.
func chosen(name string) ([]part, error) {
	if name == "" {
		return parts, nil
	}
	i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("part %q: want one of %s", name, partNames())
	}
	return parts[i : i+1], nil
}

// section is the result of one run for one part.
type section struct {
	title  string
	facts  facts
	how    string   // how it is measured
	notes  []string // of the run
	tables []table
}

// add adds t and prints it as progress.
func (s *section) add(out io.Writer, t table) {
	s.tables = append(s.tables, t)
	fmt.Fprintf(out, "\n%s\n\n%s", cmp.Or(t.title, s.title), t.text())
}

// note adds a remark on the run, and prints it as progress.
func (s *section) note(out io.Writer, format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
	fmt.Fprintf(out, "\n%s\n", s.notes[len(s.notes)-1])
}

// run measures p.
func (b *bench) run(ctx context.Context, p part) (*section, error) {
	began := time.Now()
	s := &section{title: p.title}
	var err error
	if b.facts, err = readFacts(ctx, began); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.out, "\n%s\n\n%s", p.title, b.facts.machine())
	if b.quick {
		s.note(b.out, "This was a quick run with few samples: its figures mean little.")
	}
	if err := p.measure(b, ctx, s); err != nil {
		return nil, err
	}
	s.facts = b.facts
	met, missed := aims(s.text())
	fmt.Fprintf(b.out, "\n%d aims met, %d missed. Load average (1 min) %s before, at most %s during. Took %.0f s.\n",
		met, missed, s.facts.loadBefore, s.facts.loadDuring, time.Since(began).Seconds())
	return s, nil
}

// text is the section of the document.
func (s *section) text() string {
	var d strings.Builder
	fmt.Fprintf(&d, "## %s\n\n%s\n%s%s\n", s.title, fence, s.facts.text(), fence)
	for _, note := range append(s.facts.notes(), s.notes...) {
		fmt.Fprintf(&d, "\n%s\n", note)
	}
	d.WriteString(s.how)
	said := map[string]bool{} // notes, each of which is printed once
	for i := range s.tables {
		t := s.tables[i].short()
		if len(t.rows) == 0 {
			continue
		}
		if t.title != "" {
			d.WriteString("\n### " + t.title + "\n")
		}
		d.WriteString("\n" + t.grid())
		for _, note := range t.notes() {
			if !said[note] {
				fmt.Fprintf(&d, "\n%s\n", note)
			}
			said[note] = true
		}
	}
	d.WriteString(s.missed())
	return d.String()
}

// missed lists the rows whose aims were not reached, by reason.
func (s *section) missed() string {
	var reasons []string
	rows := map[string][]string{}
	for i := range s.tables {
		for _, l := range s.tables[i].lines() {
			why := cmp.Or(l.why, "Why is not known yet.")
			if l.met != aimMissed || slices.Contains(rows[why], l.label) {
				continue
			}
			if rows[why] == nil {
				reasons = append(reasons, why)
			}
			rows[why] = append(rows[why], l.label)
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	var d strings.Builder
	for _, why := range reasons {
		fmt.Fprintf(&d, "- **%s**: %s\n", strings.Join(rows[why], "; "), why)
	}
	return "\n### Missed aims\n\n" + d.String()
}
