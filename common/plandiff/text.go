// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"kubeproxy/common/service"
)

// contextLines is how many equal lines stand around a difference, as with diff -u.
const contextLines = 3

// Texts adds the unified diff of the texts of two states.
func (d *Difference) Texts(from, to string) error {
	if from == to {
		return nil
	}
	u, err := udiff.ToUnifiedDiff(d.From, d.To, from, udiff.Lines(from, to), contextLines)
	if err != nil {
		return err
	}
	numberHunks(u.Hunks)
	text := u.String()
	d.Text += text
	d.affects(changedLines(text)...)
	return nil
}

// numberHunks sets where hunks begin in the new text. The library leaves out the equal
// lines between two changes of one hunk, so later hunks would begin too early.
func numberHunks(hunks []*udiff.Hunk) {
	added := 0
	for _, h := range hunks {
		h.ToLine = h.FromLine + added
		for _, l := range h.Lines {
			switch l.Kind {
			case udiff.Insert:
				added++
			case udiff.Delete:
				added--
			}
		}
	}
}

// AddSettings adds lines about what does not belong to a Service port.
func (d *Difference) AddSettings(lines []string) {
	d.Settings = append(d.Settings, lines...)
	d.Same = d.Same && len(lines) == 0
}

// AddPlan adds the lines of a plan for one family.
func (d *Difference) AddPlan(f service.Family, text string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		d.Plan, d.plans[f] = append(d.Plan, line), append(d.plans[f], line)
		d.affects(line)
		d.Same = false
	}
}
