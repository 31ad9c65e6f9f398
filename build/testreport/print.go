// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// pathWidth aligns the package lines, which are printed one by one.
const pathWidth = 38

func (r *report) packageLine(verdict string, own *result, remark string) {
	fmt.Fprintf(r.out, "%-5s %-*s %8s  %s\n", verdict, pathWidth, own.pkg, seconds(own.took), remark)
}

// progressEvery is the longest time without output.
const progressEvery = 30 * time.Second

// progress prints what is running, unless a package has ended since its last call.
func (r *report) progress() {
	if r.packages != r.progressAt {
		r.progressAt = r.packages
		return
	}
	under := slices.Sorted(maps.Keys(r.running))
	text := "compiling"
	if len(under) > 0 {
		text = "running " + strings.Join(under, ", ")
	}
	fmt.Fprintf(r.out, "      %5s  %d packages done, %s\n", time.Since(r.start).Round(time.Second), r.packages, text)
}

func (p *packageRun) counted() string {
	text := fmt.Sprintf("%d tests", p.count)
	if p.count == 1 {
		text = "1 test"
	}
	if p.cached {
		text += ", cached"
	}
	return text
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }

// summary prints the skipped tests, the slowest ones and the totals.
func (r *report) summary(slowest int) {
	r.listSkipped()
	r.listSlow(slowest)
	r.listUnsteady()
	fmt.Fprintf(r.out, "\n%d packages in %s\n", r.packages, seconds(time.Since(r.start)))
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
}

func (r *report) listSkipped() {
	if len(r.skipped) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\nskipped:")
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	for _, t := range r.skipped {
		reason, ok := r.allowed.reason(t)
		if !ok {
			reason = "NOT ALLOWED: " + skipMessage(t)
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\n", t.pkg, t.test, reason)
	}
	table.Flush()
}

// skipMessage returns the output of a skipped test on one line.
func skipMessage(t result) string {
	var words []string
	for _, line := range t.output {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- SKIP") {
			words = append(words, line)
		}
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

// worthListing keeps quick tests out of the list of slow ones.
const worthListing = 500 * time.Millisecond

func (r *report) listSlow(most int) {
	slow := slices.DeleteFunc(slices.Clone(r.slow), func(t result) bool { return t.took < worthListing })
	slices.SortStableFunc(slow, func(a, b result) int { return cmp.Compare(b.took, a.took) })
	slow = slow[:min(most, len(slow))]
	if len(slow) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\nslowest:")
	for _, t := range slow {
		fmt.Fprintf(r.out, "%9s  %-*s  %s\n", seconds(t.took), pathWidth, t.pkg, t.test)
	}
}

// unlisted returns the skipped tests that the allow file does not name.
func (r *report) unlisted() []result {
	return slices.DeleteFunc(slices.Clone(r.skipped), func(t result) bool {
		_, ok := r.allowed.reason(t)
		return ok
	})
}

// empty returns an error if no test ran: such a run proves nothing.
func (r *report) empty() error {
	if r.passed+r.failed == 0 {
		return errors.New("no test ran")
	}
	return nil
}
