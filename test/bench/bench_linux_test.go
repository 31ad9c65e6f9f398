// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/kit"
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
	kit.Must(t, run(t.Context(), o, &out))
	for _, r := range rows {
		found := rowOf(out.String(), r.label)
		kit.Check(t, len(found) >= 4 && found[3] != "", "row %q = %q, want a figure of ours", r.label, found)
	}
	document, err := os.ReadFile(o.out)
	kit.Need(t, err == nil, "read the document: %v", err)
	for _, want := range []string{"\n## From objects to the kernel\n", "\n### 1,100 Services of 10 endpoints\n", "| first program, CPU ", noPeer} {
		kit.Check(t, strings.Contains(string(document), want), "the document does not contain %q:\n%s", want, document)
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
	kit.Must(t, run(t.Context(), o, &out))
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
	kit.Need(t, err == nil, "run: %v", err)
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
		found := rowOf(entries, label)
		kit.Check(t, found[2] == want[0] && found[3] == want[1], "entries of %s: %q, want %q", label, found, want)
	}
}

// TestQuickRunOfSilence requires a figure in every row.
func TestQuickRunOfSilence(t *testing.T) {
	if err := netlab.Allowed(); errors.Is(err, netlab.ErrNotAllowed) {
		t.Skip(err)
	}
	var out bytes.Buffer
	kit.Must(t, run(t.Context(), options{quick: true, only: "silence"}, &out))
	for _, mode := range []string{"nftables", "iptables"} {
		_, text, _ := strings.Cut(out.String(), "\nMode "+mode+"\n")
		for _, r := range silenceRows() {
			if found := rowOf(text, r.label); len(found) < 5 || found[2] == "" || found[4] == "" {
				t.Errorf("mode %s: row %q = %q, want a figure", mode, r.label, found)
			}
		}
	}
}

// TestQuickRunOfDirect requires a figure in every row.
func TestQuickRunOfDirect(t *testing.T) {
	if err := netlab.Allowed(); errors.Is(err, netlab.ErrNotAllowed) {
		t.Skip(err)
	}
	var out bytes.Buffer
	kit.Must(t, run(t.Context(), options{quick: true, only: "direct"}, &out))
	for _, table := range directTables(20) {
		_, text, _ := strings.Cut(out.String(), "\n"+table.title+"\n")
		for _, r := range table.rows {
			if found := rowOf(text, r.label); len(found) < 5 || found[2] == "" || found[3] == "" {
				t.Errorf("%s: row %q = %q, want figures", table.title, r.label, found)
			}
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
			kit.Same(t, "line (-want +got)", tc.want, got, cmp.AllowUnexported(line{}))
			want := tc.ours != nil
			kit.Check(t, printed == want, "printed = %v, want %v", printed, want)
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
		kit.Same(t, fmt.Sprintf("Set(%q) (-want +got)", text), want, got)
	}
}

func TestQuantile(t *testing.T) {
	list := []time.Duration{4e9, 1e9, 3e9, 2e9}
	for share, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 4, 1: 4} {
		kit.Equal(t, quantile(list, share), want, "quantile(%v)", share)
	}
}

func TestInterval(t *testing.T) {
	var list []float64
	for i := range 100 {
		list = append(list, float64(i+1))
	}
	low, high := interval(list)
	kit.Check(t, low == 40 && high == 61, "interval of 1 to 100 = %v to %v, want 40 to 61", low, high)
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
	got := rowOf(table.text(), "path")
	kit.Check(t, slices.Contains(got, "1.00x to 2.00x"), "row %q, want the limits of the ratio", got)
}

func TestMedians(t *testing.T) {
	run := func(v float64) *figures {
		f := newFigures()
		f.set("m", v)
		f.note("once")
		return f
	}
	want := &figures{Values: map[string]float64{"m": 2}, Notes: []string{"once"}}
	kit.Same(t, "medians (-want +got)", want, medians([]*figures{run(1), run(9), run(2)}))
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
			kit.Need(t, endpointPrefix.Contains(a) && !seen[a.String()],
				"endpoint %d of Service %d has address %s, twice or outside %s", j, i, a, endpointPrefix)
			seen[a.String()] = true
		}
	}
	if thousands(1234567) != "1,234,567" || thousands(100) != "100" {
		t.Errorf("thousands = %s and %s", thousands(1234567), thousands(100))
	}
}

// fetch decodes a response of the server.
func fetch[T any](t *testing.T, s *httptest.Server, path string) (into T, code int) {
	t.Helper()
	r, err := s.Client().Get(s.URL + path)
	kit.Need(t, err == nil, "GET %s: %v", path, err)
	defer r.Body.Close()
	err = json.NewDecoder(r.Body).Decode(&into)
	kit.Need(t, err == nil, "GET %s: %v", path, err)
	return into, r.StatusCode
}

func TestAPIServerLists(t *testing.T) {
	api := newAPIServer(3, func() time.Duration { return time.Second })
	s := httptest.NewServer(api)
	defer s.Close()
	services, _ := fetch[corev1.ServiceList](t, s, servicesPath)
	parts, _ := fetch[discoveryv1.EndpointSliceList](t, s, slicesPath)
	want := []*corev1.Service{newService(0), newService(1), newService(2)}
	for i := range services.Items {
		kit.Same(t, fmt.Sprintf("Service %d (-want +got)", i), want[i], &services.Items[i])
	}
	kit.Check(t, len(services.Items) == 3 && len(parts.Items) == 3 && len(parts.Items[2].Endpoints) == perService,
		"%d Services and %d EndpointSlices, want 3 and 3", len(services.Items), len(parts.Items))
	for path, want := range map[string]int{
		cidrsPath: 200, nodesPath: 200, nodesPath + "/" + ownNode: 200, nodesPath + "/other": 404, "/api/v1/pods": 404,
		servicesPath + "?watch=true&sendInitialEvents=true": 422,
	} {
		_, code := fetch[map[string]any](t, s, path)
		kit.Check(t, code == want, "GET %s: status %d, want %d", path, code, want)
	}
	_, _, ok := api.whenDelivered()
	kit.Check(t, !ok, "everything is delivered before anybody watches")
}

func TestAPIServerWatch(t *testing.T) {
	api := newAPIServer(1, func() time.Duration { return time.Second })
	s := httptest.NewServer(api)
	defer s.Close()
	var watches []*http.Response
	for _, path := range []string{servicesPath, slicesPath} {
		fetch[map[string]any](t, s, path)
		r, err := s.Client().Get(s.URL + path + "?watch=1")
		kit.Need(t, err == nil, "watch %s: %v", path, err)
		defer r.Body.Close()
		watches = append(watches, r)
	}
	_, cpu, ok := api.whenDelivered()
	kit.Check(t, ok && cpu == time.Second, "whenDelivered = %s, %v, want 1s, true", cpu, ok)
	send, err := api.update(newSlice(0, []int{5}))
	kit.Need(t, err == nil, "update: %v", err)
	send()
	line, err := bufio.NewReader(watches[1].Body).ReadBytes('\n')
	kit.Need(t, err == nil, "read an event: %v", err)
	var got struct {
		Type   string
		Object discoveryv1.EndpointSlice
	}
	kit.Must(t, json.Unmarshal(line, &got))
	want := newSlice(0, []int{5})
	want.ResourceVersion = "2"
	diff := cmp.Diff(want, &got.Object)
	kit.Check(t, diff == "" && got.Type == "MODIFIED", "event %s (-want +got):\n%s", got.Type, diff)
	api.forget()
	if _, _, ok := api.whenDelivered(); ok {
		t.Error("a client that has yet to come has everything")
	}
}

// TestQuickRunOfIPVS requires a figure in every row of all tables.
func TestQuickRunOfIPVS(t *testing.T) {
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	var out bytes.Buffer
	o := options{quick: true, only: "ipvs", kernel: ownKernel, out: filepath.Join(t.TempDir(), "benchmarks.md")}
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	document := kit.ReadFile(t, o.out)
	for _, x := range virtualTables(newFigures(), task{Quick: true}) {
		kit.Check(t, strings.Contains(string(document), "\n### "+x.title+"\n"),
			"the document has no table %q:\n%s", x.title, document)
		_, text, _ := strings.Cut(out.String(), "\n"+x.title+"\n")
		for _, r := range x.rows {
			column := 2
			if x.base != "" {
				column = 3
			}
			if found := rowOf(text, r.label); len(found) <= column || found[2] == "" || found[column] == "" {
				t.Errorf("%s: row %q = %q, want figures", x.title, r.label, found)
			}
		}
	}
}

// TestVirtualTables checks that each ratio is of the right two figures.
func TestVirtualTables(t *testing.T) {
	f := newFigures()
	for name, v := range map[string]float64{
		"library.first.wall": 1.2, "mode ipvs.first.wall": 1.8,
		"many.replace.cpu":  11e-3,
		"many.connect.last": 3e-3, "many.connect.last.ratio": 1.5, "many.nftables.connect.last": 2e-3,
	} {
		f.set(name, v)
	}
	tables := virtualTables(f, task{})
	for i, want := range map[int]string{
		0: "| first program, time |  1.20 s | 1.80 s |        1.50x | <= 1.3x library, missed |\n",
		1: "| one endpoint replaced, CPU | 11.0 ms | <= 10.0 ms, missed |\n",
		2: "| connection, last Service, p50                           |   2.0 ms | 3.0 ms |         1.50x |     |\n",
	} {
		if text := tables[i].text(); !strings.Contains(text, want) {
			t.Errorf("table %d has no row %q:\n%s", i, want, text)
		}
	}
}

// TestReadmeFigures holds the figures of README.md to docs/benchmarks.md, within their rounding.
func TestReadmeFigures(t *testing.T) {
	readme := kit.ReadFile(t, filepath.Join("..", "..", "README.md"))
	d, err := openDocument(filepath.Join("..", "..", "docs", "benchmarks.md"))
	kit.Must(t, err)
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
	kit.Need(t, len(fields) >= 2, "%q: want a figure and a unit", text)
	unit = map[string]float64{"µs": 1e-6, "ms": 1e-3, "s": 1, "MB": 1e6}[fields[1]]
	value, err := strconv.ParseFloat(fields[0], 64)
	kit.Need(t, err == nil && unit != 0, "%q: want a figure in µs, ms, s or MB", text)
	return value * unit, unit
}

// TestQuickRunOfUserspace requires a figure in every row, and a direct one beside it
// where that exists.
func TestQuickRunOfUserspace(t *testing.T) {
	if err := netlab.Allowed(); errors.Is(err, netlab.ErrNotAllowed) {
		t.Skip(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), options{quick: true, only: "userspace"}, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	for _, r := range relayRows() {
		if found := rowOf(out.String(), r.label); len(found) < 5 || found[3] == "" || r.floor != "" && (found[2] == "" || found[4] == "") {
			t.Errorf("row %q = %q, want figures", r.label, found)
		}
	}
}

// measured is a section with one aim met and one missed.
func measured(title, date string, during load) *section {
	took, err := time.Parse(time.DateOnly, date)
	if err != nil {
		panic(err)
	}
	t := table{services: 10, rows: []row{
		{label: "good", metric: "good", unit: inSeconds, aim: aim{most: always(2)}},
		{label: "bad", metric: "bad", unit: inSeconds, aim: aim{most: always(2)}, why: "It is slow."},
		{label: "printed while it runs", metric: "good", unit: inSeconds},
	}}
	t.add(roleOurs, &figures{Values: map[string]float64{"good": 1, "bad": 3}})
	return &section{
		title: title, tables: []table{t}, how: "\nHow of " + date + ".\n",
		facts: facts{date: took, commit: "0123456789ab", kernel: "Linux", cpu: "2", loadBefore: "0.50", loadDuring: during},
	}
}

// TestDocumentKeepsOtherParts measures two parts, then one of them again.
func TestDocumentKeepsOtherParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "benchmarks.md")
	for _, s := range []*section{
		measured("Mode iptables", "2026-01-03", "9.50"),
		measured("Through the API server", "2026-01-01", "1.00"),
		measured("Through the API server", "2026-01-02", "1.00"),
	} {
		d, err := openDocument(path)
		kit.Must(t, err)
		kit.Must(t, d.put(s))
	}
	text := kit.ReadFile(t, path)
	intro, rest, _ := strings.Cut(string(text), "\n**")
	kit.Check(t, intro == strings.TrimSuffix(documentIntro, "\n")+"\n", "the document begins with\n%s", intro)
	section := func(title, date, during string) string {
		return "\n## " + title + "\n\n```\ndate    " + date + " 00:00 UTC\ncommit  0123456789ab\nkernel  Linux\ncpu     2\nload    0.50 before, at most " + during + "\n```\n\nHow of " + date + ".\n\n" +
			"|      |   ours |               aim |\n" +
			"|------|-------:|------------------:|\n" +
			"| good | 1.00 s |    <= 2.00 s, met |\n" +
			"| bad  | 3.00 s | <= 2.00 s, missed |\n" +
			"\n### Missed aims\n\n- **bad**: It is slow.\n"
	}
	want := "2 aims met, 2 missed.**\n" +
		section("Through the API server", "2026-01-02", "1.00") +
		section("Mode iptables", "2026-01-03", "9.50")
	kit.Same(t, "the document (-want +got)", want, rest)
}

// TestDocumentOfOthers checks that a foreign file is refused before anything is measured.
func TestDocumentOfOthers(t *testing.T) {
	for text, want := range map[string]string{
		"# Notes\n": `begins with something else than "# Benchmarks"`,
		"# Benchmarks\n\n## Mode iptables\n\n## By hand\n": `section "By hand" is of no part that is measured`,
	} {
		path := filepath.Join(t.TempDir(), "benchmarks.md")
		kit.WriteFile(t, path, text)
		b := &bench{options: options{out: path}}
		if err := b.measure(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("measure with a document %q: %v, want an error with %q", text, err, want)
		}
		now, err := os.ReadFile(path)
		kit.Check(t, err == nil && string(now) == text, "the document became %q, %v", now, err)
	}
}

func TestChosen(t *testing.T) {
	all, err := chosen("")
	kit.Check(t, err == nil && len(all) == len(parts), "no name chooses %d of %d parts, %v", len(all), len(parts), err)
	if one, err := chosen("iptables"); err != nil || len(one) != 1 || one[0].title != "Mode iptables" {
		t.Errorf("iptables chooses %d parts, %v", len(one), err)
	}
	if _, err := chosen("iptable"); err == nil || !strings.Contains(err.Error(), "want one of "+partNames()) {
		t.Errorf("iptable: %v, want an error with all names", err)
	}
}

var update = flag.Bool("update", false, "rewrite the overview of the kept document")

// TestDocumentOfTheProject checks that the tool would write the project's document
// unchanged, so that it can replace parts of it.
func TestDocumentOfTheProject(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "benchmarks.md")
	d, err := openDocument(path)
	kit.Must(t, err)
	if *update {
		kit.Must(t, d.write())
	}
	text := kit.ReadFile(t, path)
	kit.Same(t, "the overview is not of the sections below (-want +got), run make update", d.text(), string(text))
}
