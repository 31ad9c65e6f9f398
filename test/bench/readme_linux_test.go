// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestReadmeFigures holds the figures of README.md to docs/benchmarks.md, within their rounding.
func TestReadmeFigures(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := openDocument(filepath.Join("..", "..", "docs", "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	const inside, served = "From objects to the kernel", "Through the API server"
	for _, x := range []struct{ shown, section, table, row string }{
		{"an endpoint is replaced: until the rule is in force", inside, "### 10,000 Services", "one endpoint replaced, p50"},
		{"first rules on an empty node", inside, "### 10,000 Services", "first program, time"},
		{"a restart on its own rules", inside, "### 10,000 Services", "restart on its own table, time"},
		{"memory of the process, at most", inside, "### 10,000 Services", "peak RSS"},
		{"one change through a real API server, at 5,000 Services", served, "", "one endpoint changed, p50"},
	} {
		_, table, _ := strings.Cut(d.sections[x.section], x.table)
		head, measured, shown := rowOf(table, ""), rowOf(table, x.row), rowOf(string(readme), x.shown)
		if len(head) == 0 || len(measured) != len(head) || len(shown) < 4 {
			t.Errorf("%s: README has %q, the page %q below %q", x.row, shown, measured, head)
			continue
		}
		for i, name := range head {
			column := map[string]int{"ours": 2, "peer": 3}[name]
			if column > 0 && !rounded(t, shown[column], measured[i]) {
				t.Errorf("README.md, %s: %s, want it rounded from %s, the row %q of column %s in docs/benchmarks.md", x.shown, shown[column], measured[i], x.row, name)
			}
		}
	}
}

// rounded is whether the text short begins with a figure that long may be rounded to.
// What is not measured has a dash.
func rounded(t *testing.T, short, long string) bool {
	t.Helper()
	if long == "" {
		return strings.HasPrefix(short, "-")
	}
	digits, _, _ := strings.Cut(short, " ")
	whole, fraction, _ := strings.Cut(digits, ".")
	step := math.Pow10(len(whole) - len(strings.TrimRight(whole, "0")))
	if fraction != "" {
		step = math.Pow10(-len(fraction))
	}
	a, unit := quantity(t, short)
	b, _ := quantity(t, long)
	return math.Abs(a-b) <= step*unit/2*(1+1e-9)
}

// quantity returns a figure in seconds or bytes, and its unit.
func quantity(t *testing.T, text string) (value, unit float64) {
	t.Helper()
	fields := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
	if len(fields) < 2 {
		t.Fatalf("%q: want a figure and a unit", text)
	}
	unit = map[string]float64{"µs": 1e-6, "ms": 1e-3, "s": 1, "MB": 1e6}[fields[1]]
	value, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || unit == 0 {
		t.Fatalf("%q: want a figure in µs, ms, s or MB", text)
	}
	return value * unit, unit
}
