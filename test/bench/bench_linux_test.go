// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/netlab"
)

func TestMain(m *testing.M) {
	if _, ok := assigned(); ok { // this is a child of TestQuickRun's bench
		main()
		return
	}
	os.Exit(netlab.Main(m.Run))
}

// TestQuickRun requires a figure in every row and a document with the table.
func TestQuickRun(t *testing.T) {
	if err := netlab.Allowed(); errors.Is(err, netlab.ErrNotAllowed) {
		t.Skip(err)
	}
	var out bytes.Buffer
	o := options{sizes: sizes{1100}, quick: true, only: "inside", out: filepath.Join(t.TempDir(), "benchmarks.md")}
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatalf("run: %v", err)
	}
	for _, r := range rows {
		if found := rowOf(out.String(), r.label); len(found) < 4 || found[3] == "" {
			t.Errorf("row %q = %q, want a figure of ours", r.label, found)
		}
	}
	document, err := os.ReadFile(o.out)
	if err != nil {
		t.Fatalf("read the document: %v", err)
	}
	for _, want := range []string{"\n## From objects to the kernel\n", "\n### 1,100 Services of 10 endpoints\n", "| first program, CPU ", noPeer} {
		if !strings.Contains(string(document), want) {
			t.Errorf("the document does not contain %q:\n%s", want, document)
		}
	}
}

// TestQuickRunOfChains requires a figure of both layouts in every row, except of the one
// that takes too long.
func TestQuickRunOfChains(t *testing.T) {
	if err := netlab.Allowed(); errors.Is(err, netlab.ErrNotAllowed) {
		t.Skip(err)
	}
	var out bytes.Buffer
	o := options{quick: true, only: "iptables", out: filepath.Join(t.TempDir(), "benchmarks.md")}
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatalf("run: %v", err)
	}
	for _, v := range variants {
		_, tables, _ := strings.Cut(out.String(), "iptables-"+v+", 300 Services")
		for _, r := range append(programRows(v), pathRows()...) {
			slow := v == "nft" && strings.HasPrefix(r.metric, "first.")
			if found := rowOf(tables, r.label); len(found) < 4 || found[2] == "" && !slow || found[3] == "" {
				t.Errorf("iptables-%s: row %q = %q, want figures", v, r.label, found)
			}
		}
		document, err := os.ReadFile(o.out)
		if want := "### iptables-" + v + ", connections through 300 Services\n"; err != nil || !strings.Contains(string(document), want) {
			t.Errorf("the document does not contain %q, %v:\n%s", want, err, document)
		}
	}
}

// TestQuickRunOfConnect requires a figure in every row, except of those of another proxy.
func TestQuickRunOfConnect(t *testing.T) {
	if err := netlab.Allowed(); errors.Is(err, netlab.ErrNotAllowed) {
		t.Skip(err)
	}
	var out bytes.Buffer
	o := options{quick: true, only: "connect", out: filepath.Join(t.TempDir(), "benchmarks.md")}
	err := run(t.Context(), o, &out)
	if errors.Is(err, errNotPossible) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	for _, table := range acceleratedTables(300) {
		_, text, _ := strings.Cut(out.String(), "\n"+table.title+"\n")
		for _, r := range table.rows {
			if found := rowOf(text, r.label); !strings.HasSuffix(r.label, "peer") && (len(found) < 4 || found[3] == "") {
				t.Errorf("%s: row %q = %q, want a figure", table.title, r.label, found)
			}
		}
	}
	_, entries, _ := strings.Cut(out.String(), "\nEntries of connection tracking")
	for label, want := range map[string][2]string{
		"direct": {"0", "0"}, "layer alone": {"0", "0"}, "layer above the rules": {"100", "0"}, "mode nftables": {"100", "100"},
	} {
		if found := rowOf(entries, label); found[2] != want[0] || found[3] != want[1] {
			t.Errorf("entries of %s: %q, want %q", label, found, want)
		}
	}
}

// rowOf returns the trimmed cells of a table's row. The first one is before its left
// edge.
func rowOf(text, label string) []string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| "+label+" ") {
			cells := strings.Split(line, "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			return cells
		}
	}
	return nil
}

func TestLine(t *testing.T) {
	change := row{label: "change", metric: "m", unit: inSeconds, aim: aim{most: oneChange}}
	program := row{label: "program", metric: "m", unit: inSeconds, aim: aim{times: 3}}
	flow := row{label: "flow", metric: "m", unit: inBytes, aim: aim{least: 0.6}}
	direct := row{label: "connection", metric: "m", floor: "d", ratio: "r", unit: inSeconds, aim: aim{times: 1.3}}
	for name, tc := range map[string]struct {
		row         row
		services    int
		floor, ours map[string]float64
		want        line
	}{
		"at the limit": {change, 10000, nil, map[string]float64{"m": 2e-3},
			line{label: "change", ours: "2.0 ms", aim: "<= 2.0 ms", met: aimMet}},
		"above it": {change, 10000, nil, map[string]float64{"m": 2.1e-3},
			line{label: "change", ours: "2.1 ms", aim: "<= 2.0 ms", met: aimMissed}},
		"more Services, more time": {change, 30000, nil, map[string]float64{"m": 2.1e-3},
			line{label: "change", ours: "2.1 ms", aim: "<= 5.0 ms", met: aimMet}},
		"multiple of the floor": {program, 10, map[string]float64{"m": 1e-6}, map[string]float64{"m": 4e-6},
			line{label: "program", floor: "1.0 µs", ours: "4.0 µs", overFloor: "4.00x", aim: "<= 3x floor", met: aimMissed}},
		"floor and ratio of its own": {direct, 10, map[string]float64{"m": 9}, map[string]float64{"m": 2, "d": 1, "r": 1.25},
			line{label: "connection", floor: "1.00 s", ours: "2.00 s", overFloor: "1.25x", aim: "<= 1.3x floor", met: aimMet}},
		"as much as it should be": {flow, 10, map[string]float64{"m": 2}, map[string]float64{"m": 1.2},
			line{label: "flow", floor: "2 B", ours: "1 B", overFloor: "0.60x", aim: ">= 0.6x floor", met: aimMet}},
		"less than that": {flow, 10, map[string]float64{"m": 2}, map[string]float64{"m": 1},
			line{label: "flow", floor: "2 B", ours: "1 B", overFloor: "0.50x", aim: ">= 0.6x floor", met: aimMissed}},
		"not measured": {change, 10, nil, nil, line{label: "change", aim: "<= 2.0 ms", met: aimMissed}},
	} {
		t.Run(name, func(t *testing.T) {
			table := table{services: tc.services, base: "floor"}
			table.add(roleFloor, &figures{Values: tc.floor})
			table.add(roleOurs, &figures{Values: tc.ours})
			got, printed := table.line(tc.row)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(line{})); diff != "" {
				t.Errorf("line (-want +got):\n%s", diff)
			}
			if want := tc.ours != nil; printed != want {
				t.Errorf("printed = %v, want %v", printed, want)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]string{
		"10,2000": "10,2000",
		"0":       `"0" is not a number of Services: want 1 to 100000`,
		"1,":      `"" is not a number of Services: want 1 to 100000`,
		"100001":  `"100001" is not a number of Services: want 1 to 100000`,
	} {
		var s sizes
		got := ""
		if err := s.Set(text); err != nil {
			got = err.Error()
		} else {
			got = s.String()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Set(%q) (-want +got):\n%s", text, diff)
		}
	}
}

func TestQuantile(t *testing.T) {
	list := []time.Duration{4e9, 1e9, 3e9, 2e9}
	for share, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 4, 1: 4} {
		if got := quantile(list, share); got != want {
			t.Errorf("quantile(%v) = %v, want %v", share, got, want)
		}
	}
}

func TestInterval(t *testing.T) {
	var list []float64
	for i := range 100 {
		list = append(list, float64(i+1))
	}
	if low, high := interval(list); low != 40 || high != 61 {
		t.Errorf("interval of 1 to 100 = %v to %v, want 40 to 61", low, high)
	}
	if low, _ := interval(list[:5]); !math.IsNaN(low) {
		t.Errorf("interval of five values begins at %v, want none", low)
	}
}

func TestSpread(t *testing.T) {
	f := newFigures()
	f.spread("r", []float64{1, 1, 1, 1, 1.25, 1.25, 1.5, 1.5, 1.5, 2, 2, 2})
	table := table{base: "direct", rows: []row{{label: "path", metric: "m", ratio: "r", unit: inSeconds, spread: true}}}
	f.set("m", 1)
	table.add(roleOurs, f)
	if got := rowOf(table.text(), "path"); !slices.Contains(got, "1.00x to 2.00x") {
		t.Errorf("row %q, want the limits of the ratio", got)
	}
}

func TestMedians(t *testing.T) {
	run := func(v float64) *figures {
		f := newFigures()
		f.set("m", v)
		f.note("once")
		return f
	}
	want := &figures{Values: map[string]float64{"m": 2}, Notes: []string{"once"}}
	if diff := cmp.Diff(want, medians([]*figures{run(1), run(9), run(2)})); diff != "" {
		t.Errorf("medians (-want +got):\n%s", diff)
	}
}

// TestAddresses checks that the server listens at every endpoint, and that no two
// endpoints are the same.
func TestAddresses(t *testing.T) {
	seen := map[string]bool{}
	for n := range 600 {
		i := n // the first and the last
		if n >= 300 {
			i = maxServices - n
		}
		for j := range perService + 1 {
			a := endpointIP(i, j)
			if !endpointPrefix.Contains(a) || seen[a.String()] {
				t.Fatalf("endpoint %d of Service %d has address %s, twice or outside %s", j, i, a, endpointPrefix)
			}
			seen[a.String()] = true
		}
	}
	if thousands(1234567) != "1,234,567" || thousands(100) != "100" {
		t.Errorf("thousands = %s and %s", thousands(1234567), thousands(100))
	}
}
