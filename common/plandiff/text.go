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
	text, err := udiff.ToUnified(d.From, d.To, from, udiff.Lines(from, to), contextLines)
	if err != nil {
		return err
	}
	d.Text += text
	d.affects(changedLines(text)...)
	return nil
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
