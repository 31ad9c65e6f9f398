// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/vm"
)

// about is the text of the page before its table.
const about = `# Kernels

Results of the live tests on Debian's kernels, oldest first, each in a virtual
machine. Written by ` + "`make test-kernels`" + `; [CONTRIBUTING](../CONTRIBUTING.md) has
more on the machine. A cell has the number of tests that passed, of those that
failed if some did, and how long it took: the processor is emulated, and other
programs may have run beside it.

`

// page returns the page with the table of all outcomes.
func (all outcomes) page() string {
	var rows [][]string
	head := []string{"tests"}
	for _, k := range vm.Kernels {
		head = append(head, all.release(k))
	}
	rows = append(rows, head)
	for _, s := range suites {
		row := []string{s.title}
		for _, k := range vm.Kernels {
			o, ok := all[k][s.name]
			row = append(row, o.cell(ok))
		}
		rows = append(rows, row)
	}
	return about + kit.Table(rows) + all.skipped()
}

// skipped lists the skipped tests, and the reasons.
func (all outcomes) skipped() string {
	var text strings.Builder
	for _, k := range vm.Kernels {
		for _, s := range suites {
			why := all[k][s.name].Reasons
			for _, test := range slices.Sorted(maps.Keys(why)) {
				fmt.Fprintf(&text, "- %s on %s: %s\n", test, all.release(k), why[test])
			}
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return "\nSkipped:\n\n" + text.String()
}

// release is the version of a kernel, as recorded by a suite.
func (all outcomes) release(kernel string) string {
	for _, o := range all[kernel] {
		if o.Release != "" {
			return o.Release
		}
	}
	return kernel
}

// cell returns the outcome of a suite for the table, if it was run.
func (o outcome) cell(ran bool) string {
	if !ran {
		return "not run"
	}
	if !o.Ended {
		return "no result"
	}
	text := fmt.Sprintf("%d passed", o.Passed)
	if o.Failed > 0 {
		text += fmt.Sprintf(", **%d failed**", o.Failed)
	}
	if o.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", o.Skipped)
	}
	return text + ", " + o.Took.Round(time.Second).String()
}
