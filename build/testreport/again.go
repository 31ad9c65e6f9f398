// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A run of some thousand tests on a busy machine sometimes has one that fails for lack of
// processor time. Such a test runs a second time, when little else runs. If it then
// passes, the report names it, so that it can be repaired.

// again runs the failed tests a second time, and returns whether any of them, or anything
// else, failed for good.
func (r *report) again(s settings, problems io.Writer) (failed bool, err error) {
	n := 0
	for _, tests := range r.broken {
		n += len(tests)
	}
	if n == 0 || n > s.again || r.hopeless {
		return true, nil
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.broken)) {
		tests := slices.Sorted(maps.Keys(r.broken[pkg]))
		fmt.Fprintf(r.out, "\nagain: %s %s\n", pkg, strings.Join(tests, " "))
		second := newReport(r.out, r.allowed)
		bad, err := second.test(slices.Concat([]string{"-count=1"}, flagsOf(s.args), only(tests), []string{pkg}), problems)
		if err != nil {
			return true, err
		}
		if bad || second.failed > 0 {
			failed = true
			continue
		}
		r.acceptRerun(pkg, second)
	}
	return failed, nil
}

// acceptRerun records that everything that failed in pkg passed the second time.
func (r *report) acceptRerun(pkg string, second *report) {
	for _, results := range r.broken[pkg] {
		r.failed -= results
	}
	r.passed += second.passed
	maps.Copy(r.names, second.names)
	for test := range r.broken[pkg] {
		r.unsteady = append(r.unsteady, pkg+" "+test)
	}
	slices.Sort(r.unsteady)
}

// flagsOf returns args without the packages.
func flagsOf(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(s string) bool {
		return strings.HasPrefix(s, "./") || strings.HasPrefix(s, "kubeproxy/")
	})
}

// only selects top-level tests.
func only(tests []string) []string {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = regexp.QuoteMeta(t)
	}
	return []string{"-run", "^(" + strings.Join(names, "|") + ")$"}
}

// listUnsteady names the tests that passed the second time only.
func (r *report) listUnsteady() {
	if len(r.unsteady) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\npassed only the second time, and needs a fix:")
	for _, t := range r.unsteady {
		fmt.Fprintln(r.out, "  "+t)
	}
}
