// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Part is one of Count parts of a Selection, counted from 1. They are of one size, for
// machines that take hours for all of it. The zero Part is all of it.
type Part struct{ Number, Count int }

// ParsePart reads a Part such as 2/3. Nothing is all of it.
func ParsePart(text string) (Part, error) {
	var p Part
	if text == "" {
		return p, nil
	}
	if _, err := fmt.Sscanf(text, "%d/%d", &p.Number, &p.Count); err != nil || text != p.String() || p.Number < 1 || p.Count < p.Number {
		return p, fmt.Errorf("there is no part %q; want one such as 2/3", text)
	}
	return p, nil
}

// String returns p as ParsePart reads it.
func (p Part) String() string {
	if p.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", p.Number, p.Count)
}

// suffix is what follows the name of a selection.
func (p Part) suffix() string {
	if p.Count == 0 {
		return ""
	}
	return ", part " + p.String()
}

// of returns those of some names that belong to p. Specs with names that are alike, which
// take the same time, go to different parts.
func (p Part) of(names []string) []string {
	if p.Count == 0 {
		return names
	}
	var all []string
	for i, name := range slices.Sorted(slices.Values(names)) {
		if i%p.Count == p.Number-1 {
			all = append(all, name)
		}
	}
	return all
}

// narrow returns the part of s that is wanted. Ginkgo tells which specs there are.
func (p Part) narrow(ctx context.Context, s Selection, programs, folder string) (Selection, error) {
	if p.Count == 0 {
		return s, nil
	}
	args := s.command(programs, folder, []string{"--dry-run"}, []string{"--provider=skeleton"})
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return s, fmt.Errorf("list the specs of selection %s: %w\n%s", s.Name, err, out)
	}
	names, err := readNames(filepath.Join(folder, reportFile))
	if err != nil {
		return s, err
	}
	if names = p.of(names); len(names) == 0 { // an expression for none selects all
		return s, fmt.Errorf("selection %s has no part %s: it has fewer specs", s.Name, p)
	}
	s.Focus = focusOn(names)
	return s, nil
}

// labels are behind the name of a spec in a report.
var labels = regexp.MustCompile(` \[[^\]]*\]$`)

// focusOn returns an expression for ginkgo that selects specs by what reports call them.
func focusOn(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, regexp.QuoteMeta(labels.ReplaceAllString(name, "")))
	}
	return "(?:" + strings.Join(all, "|") + ")$"
}

// readNames returns the specs that a dry run selected.
func readNames(file string) ([]string, error) {
	in, err := openReport(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range in.Cases {
		if name, spec := strings.CutPrefix(c.Name, specPrefix); spec && c.Status == "passed" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New(file + ": no spec is selected")
	}
	return names, nil
}

// addUp puts the sum of all parts in the place of them, and of an older run, once a last
// part is there. Parts of other versions, or on other kernels, do not belong to it.
func addUp(runs []Run, last Run) []Run {
	same := func(r Run) bool {
		return r.key() == last.key() && r.Part.Count == last.Part.Count && r.Version == last.Version && r.Kubernetes == last.Kubernetes && r.Kernel == last.Kernel
	}
	sum := last
	sum.Part, sum.Results = Part{}, Results{}
	count := 0
	for _, r := range runs {
		if same(r) {
			count++
			sum.Passed += r.Passed
			sum.Failed = append(sum.Failed, r.Failed...)
			sum.Skipped = append(sum.Skipped, r.Skipped...)
			sum.Took += r.Took.Round(time.Second)
		}
	}
	if count < last.Part.Count {
		return runs
	}
	return append(slices.DeleteFunc(runs, func(r Run) bool { return r.key() == last.key() }), sum)
}
