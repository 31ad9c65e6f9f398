// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

var kubeProxy program.Program

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// TestDemo runs the whole demo, as make demo does. Everything must be as the table of
// expectations says, and each of its lines must be shown in both families.
func TestDemo(t *testing.T) {
	if err := netlab.Allowed(); err != nil {
		t.Skip(err)
	}
	const shop = "../../docs/examples/shop"
	table, err := readTable(filepath.Join(shop, "expected.txt"))
	kit.Must(t, err)
	var out strings.Builder
	d := &demo{options: options{proxy: kubeProxy.Path, manifests: shop}, out: &printer{to: &out}}
	if err := d.run(t.Context()); err != nil || len(d.problems) > 0 {
		t.Fatalf("%v; problems: %q\n%s", err, d.problems, out.String())
	}
	lines := shownLines(out.String())
	for _, g := range table {
		for _, r := range g.rows {
			checkShown(t, lines, r)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// checkShown looks for the lines of r among those shown.
func checkShown(t *testing.T, lines map[string]string, r row) {
	t.Helper()
	for _, to := range r.to {
		want := fmt.Sprintf("%s %s %s %s %s", r.from, r.kind, r.service, to, r.proto)
		if line := lines[want]; !r.sticky && !strings.HasPrefix(line, r.expectation()) || !strings.HasSuffix(line, " ok") {
			t.Errorf("%s: shown %q, want %s and ok", want, line, r.expectation())
		}
	}
}

// shownLines returns the lines of the demo's tables, by their first five columns.
func shownLines(text string) map[string]string {
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 5 {
			lines[strings.Join(f[:5], " ")] = strings.Join(f[5:], " ")
		}
	}
	return lines
}

func TestParseRow(t *testing.T) {
	const good = "shopper ClusterIP web 10.96.0.10:80 [fd00:10:96::10]:80 tcp web-1,web-2 itself"
	for name, tc := range map[string]struct {
		line string
		want string // of the row, printed, or of the error
	}{
		"all of several": {good, "answered [web-1 web-2] sticky=false itself"},
		"one of several": {strings.Replace(good, "web-1", "one-of:web-1", 1), "answered [web-1 web-2] sticky=true itself"},
		"refused":        {strings.Replace(good, "web-1,web-2 itself", "refused -", 1), "refused [] sticky=false -"},
		"dropped":        {strings.Replace(good, "web-1,web-2 itself", "dropped -", 1), "timed out [] sticky=false -"},
		"short":          {"shopper ClusterIP web", "3 columns, want 8"},
		"no port":        {strings.Replace(good, ".10:80", ".10", 1), `address "10.96.0.10": not an ip:port`},
		"seen unsaid":    {strings.Replace(good, "itself", "-", 1), "answered by web-1,web-2 but seen as -"},
		"seen by nobody": {strings.Replace(good, "web-1,web-2", "refused", 1), "answered by refused but seen as itself"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := parseRow(tc.line)
			got := fmt.Sprintf("%s %s sticky=%v %s", r.outcome, r.backends, r.sticky, r.seen)
			if err != nil {
				got = err.Error()
			}
			kit.Same(t, "(-want +got)", tc.want, got)
		})
	}
}

func TestReadTable(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"no title": {"a b c d e f g h\n", "expected.txt:1: a row before the first [title]"},
		"bad row":  {"# note\n\n[x]\nshort\n", "expected.txt:4: 1 columns, want 8"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "expected.txt")
			kit.WriteFile(t, file, tc.text)
			_, err := readTable(file)
			kit.Check(t, err != nil && strings.HasSuffix(err.Error(), tc.want), "error %v, want %s", err, tc.want)
		})
	}
}

// The table that the demo uses names only what the manifests beside it hold,
// and hosts of its network.
func TestTableFitsManifests(t *testing.T) {
	const dir = "../../docs/examples/shop"
	table, err := readTable(filepath.Join(dir, "expected.txt"))
	kit.Must(t, err)
	kit.Need(t, len(table) == 3, "%d groups, want 3", len(table))
	for _, g := range table {
		for _, r := range g.rows {
			text, err := os.ReadFile(filepath.Join(dir, r.service+".yaml"))
			kit.Check(t, err == nil, "%v", err)
			checkHas(t, r, string(text))
			kit.Check(t, slices.Contains(slices.Concat([]string{"node-a"}, network.Pods, network.Remote, network.Clients), r.from),
				"the network of the demo has no %s", r.from)
		}
	}
}

// checkHas looks for the addresses and ports of r in the manifest's text.
func checkHas(t *testing.T, r row, text string) {
	t.Helper()
	for _, to := range r.to {
		whole := regexp.MustCompile(`[" ]` + regexp.QuoteMeta(to.Addr().String()) + `["\n]`)
		if r.kind != "NodePort" && !whole.MatchString(text) {
			t.Errorf("%s.yaml does not have the address %s", r.service, to.Addr())
		}
		kit.Check(t, strings.Contains(text, fmt.Sprintf("ort: %d\n", to.Port())), "%s.yaml does not have the port %d", r.service, to.Port())
	}
}

func TestJudge(t *testing.T) {
	d := &demo{lab: netlab.Start(t, netlab.Config{Pods: []string{"pod"}})}
	own, node, other := d.lab.Host("pod").IPv4, gateway(netip.IPv4Unspecified()), netip.MustParseAddr("10.244.9.9")
	two := row{from: "pod", backends: []string{"a", "b"}, seen: "itself"}
	sticky, masqueraded, refused := two, two, row{from: "pod", outcome: netlab.Refused, seen: "-"}
	sticky.sticky, masqueraded.seen = true, "node-a"
	fromNode := row{from: "node-a", backends: []string{"a"}, seen: "node-a"}
	answered := func(seen netip.Addr, names ...string) finding {
		return finding{backends: names, seen: []netip.Addr{seen}}
	}
	for name, tc := range map[string]struct {
		row   row
		found finding
		want  string // the complaint
	}{
		"as expected":           {two, answered(own, "a", "b"), ""},
		"one is missing":        {two, answered(own, "a"), "expected a b"},
		"one too many":          {two, answered(own, "a", "b", "c"), "expected a b"},
		"not answered":          {two, finding{outcome: netlab.TimedOut}, "expected a b"},
		"masqueraded":           {two, answered(node, "a", "b"), "expected the client to be seen as itself"},
		"not masqueraded":       {masqueraded, answered(own, "a", "b"), "expected the client to be seen as node-a"},
		"rightly masqueraded":   {masqueraded, answered(node, "a", "b"), ""},
		"nobody's address":      {masqueraded, answered(other, "a", "b"), "expected the client to be seen as node-a"},
		"from the node":         {fromNode, answered(d.lab.Node.IPv4, "a"), ""},
		"node, other interface": {fromNode, answered(node, "a"), ""},
		"sticks":                {sticky, answered(own, "b"), ""},
		"does not stick":        {sticky, answered(own, "a", "b"), "expected always the same endpoint"},
		"sticks to a wrong one": {sticky, answered(own, "c"), "expected a b"},
		"refused":               {refused, finding{outcome: netlab.Refused}, ""},
		"should be refused":     {refused, finding{outcome: netlab.TimedOut}, "expected refused"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := d.compare(tc.row, tc.found); err != nil {
				got = err.Error()
			}
			kit.Check(t, got == tc.want, "complaint %q, want %q", got, tc.want)
		})
	}
}
