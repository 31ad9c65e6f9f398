// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// allowed maps "package test" to the reason why that test may be skipped. An entry covers
// the subtests of its test.
type allowed map[string]string

func (a allowed) reason(t result) (string, bool) {
	for name := t.test; ; {
		if reason, ok := a[t.pkg+" "+name]; ok {
			return reason, true
		}
		i := strings.LastIndex(name, "/")
		if i < 0 {
			return "", false
		}
		name = name[:i]
	}
}

// readAllowed reads a file of lines "package test reason". An empty path allows nothing;
// empty lines and lines that start with # are ignored.
func readAllowed(path string) (allowed, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the tests that may be skipped: %w", err)
	}
	a := allowed{}
	for i, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case len(words) < 3:
			return nil, fmt.Errorf("%s:%d: want a package, a test and a reason", path, i+1)
		default:
			a[words[0]+" "+words[1]] = strings.Join(words[2:], " ")
		}
	}
	return a, nil
}

// vmMark begins the reason of a test that is skipped because it runs in a virtual
// machine.
const vmMark = "vm:"

// requiredElsewhere returns the tests of a, "package test" each, whose reason begins with
// mark: they must run somewhere else.
func (a allowed) requiredElsewhere(mark string) []string {
	var tests []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if strings.HasPrefix(a[name], mark) {
			tests = append(tests, name)
		}
	}
	return tests
}

// selection returns the arguments of go test that run tests, and hardly any other. The package
// with most of them comes first, as it ends last.
func selection(tests []string) []string {
	var names []string
	packages := map[string]int{}
	for _, t := range tests {
		pkg, name, _ := strings.Cut(t, " ")
		names = append(names, regexp.QuoteMeta(name))
		packages[pkg]++
	}
	slices.Sort(names)
	pattern := "^(" + strings.Join(slices.Compact(names), "|") + ")$"
	return append([]string{"-run", pattern}, slices.SortedFunc(maps.Keys(packages), func(a, b string) int {
		return cmp.Or(packages[b]-packages[a], strings.Compare(a, b))
	})...)
}

// notPassed returns the tests that did not pass.
func (r *report) notPassed(tests []string) []string {
	return slices.DeleteFunc(slices.Clone(tests), func(t string) bool { return r.names[t] })
}
