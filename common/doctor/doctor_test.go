// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"kubeproxy/common/document"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/test/kit"
)

// TestConditions checks that each condition of a running proxy becomes a finding, of the
// topic that the checks of the node use if there is one.
func TestConditions(t *testing.T) {
	healthy := map[string]health.FamilyReport{"IPv4": {Healthy: true}}
	for situation, test := range map[string]struct {
		report health.Report
		want   []string // topic, subject, severity
	}{
		"all is well":         {health.Report{Healthy: true, Status: healthy}, nil},
		"a failing family":    {health.Report{Status: map[string]health.FamilyReport{"IPv4": {Healthy: true, Failing: true, LastError: "refused"}}}, []string{"proxy-unhealthy IPv4 blocks"}},
		"an unhealthy family": {health.Report{Status: map[string]health.FamilyReport{"IPv6": {Reason: "a change waits"}}}, []string{"proxy-unhealthy IPv6 blocks"}},
		"no forwarding": {health.Report{Conditions: map[string]string{"setting-net.ipv4.ip_forward": "is 0"}, Blocked: []string{"setting-net.ipv4.ip_forward"}},
			[]string{"ip-forward net.ipv4.ip_forward blocks"}},
		"another setting":     {health.Report{Conditions: map[string]string{"setting-net.netfilter.nf_conntrack_max": "stays"}}, []string{"setting net.netfilter.nf_conntrack_max risk"}},
		"two proxies":         {health.Report{Conditions: map[string]string{"other-proxy": "x", "other-rules-IPv4": "y"}}, []string{"other-proxy other-proxy risk", "other-proxy other-proxy risk"}},
		"leftovers":           {health.Report{Conditions: map[string]string{"leftovers-IPv4": "x"}}, []string{"leftovers leftovers-IPv4 risk"}},
		"a shared mark":       {health.Report{Conditions: map[string]string{"shared-mark-IPv4": "x"}}, []string{"shared-mark shared-mark-IPv4 risk"}},
		"a check unanswered":  {health.Report{Conditions: map[string]string{"health-checks": "x"}, Blocked: []string{"health-checks"}}, []string{"proxy-condition health-checks blocks"}},
		"hidden NodePorts":    {health.Report{Conditions: map[string]string{"node-ports": "2 NodePorts"}}, nil}, // which the node's own check lists
		"an unknown one":      {health.Report{Conditions: map[string]string{"some-new": "x"}}, []string{"proxy-condition some-new risk"}},
		"a source that fails": {health.Report{Sources: []health.SourceReport{{Name: "services", Synced: true, Error: "refused"}, {Name: "nodes", Synced: true}}}, []string{"api-server services risk"}},
		"a source unread":     {health.Report{Sources: []health.SourceReport{{Name: "services"}}}, []string{"api-server services risk"}},
		"a bad manifest": {health.Report{Sources: []health.SourceReport{{Name: "manifests", Synced: true, Error: "bad.yaml: line 1"}}, Conditions: map[string]string{"sources": "manifests: 1 fault"}},
			[]string{"manifest manifests risk"}},
		"sources that fail alike": {health.Report{Sources: []health.SourceReport{
			{Name: "services", Error: `watch services at the API server: Get "https://a/b?c=d": refused`}, {Name: "nodes", Error: `watch nodes at the API server: Get "https://a/e": refused`},
			{Name: "endpointslices", Error: "no rights"},
		}}, []string{"api-server services,nodes risk", "api-server endpointslices risk"}},
		"a source silent": {health.Report{Sources: []health.SourceReport{{Name: "services", Synced: true, Stale: true}}}, []string{"api-server services risk"}},
	} {
		t.Run(situation, func(t *testing.T) {
			p := &Proxy{Answer: &statusview.Answer{Response: servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Health: test.report}}}}
			seen, err := p.Check(Silent{}).Look(t.Context())
			kit.Must(t, err)
			var got []string
			for _, f := range seen.Findings {
				got = append(got, strings.Join([]string{string(f.Topic), f.Subject, string(f.severity())}, " "))
				kit.Check(t, f.What != "" && f.Fix+f.Advice != "", "says nothing: %+v", f)
			}
			kit.Same(t, "(-want +got)", test.want, got)
		})
	}
}

// TestOfAnotherNode checks that a proxy of another node than the one that is asked for is named.
func TestOfAnotherNode(t *testing.T) {
	p := &Proxy{Answer: &statusview.Answer{Response: servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Node: "node-a"}}}}
	for asked, want := range map[string]int{"": 0, "node-a": 0, "node-b": 1} {
		seen, err := p.Check(Silent{Node: asked}).Look(t.Context())
		kit.Must(t, err)
		if len(seen.Findings) != want || want > 0 && (seen.Findings[0].Topic != NodeUnknown || !strings.Contains(seen.Findings[0].What, "of node node-a")) {
			t.Errorf("%q: %+v", asked, seen.Findings)
		}
	}
}

// TestSilentEndpoints checks that endpoints that do not answer are named, and no finding.
func TestSilentEndpoints(t *testing.T) {
	for n, want := range []string{"", "; 1 endpoint does not answer, see kube-proxy status", "; 2 endpoints do not answer, see kube-proxy status"} {
		about := servicestate.ProxyInfo{Silent: make([]servicestate.SilentEndpoint, n)}
		seen, err := (&Proxy{Answer: &statusview.Answer{Response: servicestate.Response{ProxyInfo: about}}}).Check(Silent{}).Look(t.Context())
		kit.Check(t, err == nil && len(seen.Findings) == 0 && seen.Note == "health, sources and conditions"+want,
			"%d: %v, %+v", n, err, seen)
	}
}

// TestConsequences checks that findings which follow from another one come after it and name it,
// and that the text counts them.
func TestConsequences(t *testing.T) {
	p := &Proxy{Answer: &statusview.Answer{Response: servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Health: health.Report{
		Status:     map[string]health.FamilyReport{"IPv4": {Reason: "nothing was ever programmed"}, "IPv6": {Reason: "a change waits", Generation: 2}},
		Sources:    []health.SourceReport{{Name: "services", Error: "refused"}, {Name: "nodes", Error: "refused"}},
		Conditions: map[string]string{"sources": "x", "node-object": "unknown", "some-new": "x"},
	}}}}}
	seen, err := p.Check(Silent{}).Look(t.Context())
	kit.Must(t, err)
	server := Finding{Topic: APIServer, Subject: "https://a", What: "it cannot be asked", Advice: "x"}
	for situation, test := range map[string]struct {
		all  []Finding
		want string
		text []string
	}{
		"it can be asked by nobody": {append(seen.Findings, server), "api-server https://a | proxy-unhealthy IPv6 | proxy-condition some-new | " +
			"proxy-unhealthy IPv4 of api-server | proxy-condition node-object of api-server | api-server services,nodes of api-server", []string{"also     3 consequences", "3 findings"}},
		"nobody else asks": {seen.Findings, "api-server services,nodes | proxy-unhealthy IPv6 | proxy-condition some-new | " +
			"proxy-unhealthy IPv4 of api-server | proxy-condition node-object of api-server", []string{"also     2 consequences", "3 findings"}},
	} {
		r := &Report{Findings: sorted(test.all)}
		var got []string
		for _, f := range r.Findings {
			got = append(got, strings.TrimSuffix(fmt.Sprintf("%s %s of %s", f.Topic, f.Subject, f.Cause), " of "))
		}
		kit.Same(t, situation+" (-want +got)", test.want, strings.Join(got, " | "))
		var short, all, document bytes.Buffer
		kit.Must(t, View{}.Text(&short, r))
		kit.Must(t, View{All: true}.Text(&all, r))
		kit.Must(t, r.Data(&document, "json"))
		for _, w := range test.text {
			if !strings.Contains(short.String(), w) {
				t.Errorf("%s: no %q in\n%s", situation, w, short.String())
			}
		}
		if strings.Contains(short.String(), "IPv4") || !strings.Contains(all.String(), "cause    api-server, see there") || !strings.Contains(document.String(), `"cause": "api-server"`) {
			t.Errorf("%s:\n%s\n%s\n%s", situation, short.String(), all.String(), document.String())
		}
	}
}

// TestSilentProxy checks what is said of a proxy that does not answer: that it cannot be asked,
// hangs, or is not there. Before a start none has to be there.
func TestSilentProxy(t *testing.T) {
	p := &Proxy{Err: errors.New("refused")}
	gone, hangs := errors.New("nobody"), fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
	for situation, test := range map[string]struct {
		holder error
		hung   string
		many   bool
		want   string
		start  string
	}{
		"it holds the lease":            {nil, "", false, "proxy-silent risk process 7 programs this node, and cannot be asked: refused", "proxy-silent risk process 7 programs this node, and cannot be asked: refused"},
		"it hangs":                      {hangs, "process 7 is stopped", false, "proxy-silent blocks process 7 is stopped, and does not answer: refused", ""},
		"another kube-proxy":            {gone, "process 7 runs", false, "proxy-silent blocks process 7 runs, and does not answer: refused", ""},
		"it hangs in another PID space": {hangs, "", false, "proxy-silent blocks no answer: i/o timeout", "proxy-silent blocks no answer: i/o timeout"},
		"two":                           {gone, "", true, "", ""},
		"none":                          {gone, "", false, "proxy-absent blocks nothing is programmed", ""},
	} {
		for start, want := range map[bool]string{false: test.want, true: test.start} {
			s := Silent{
				Holder:      func(context.Context) (lease.Identity, error) { return lease.Identity{PID: 7}, test.holder },
				Hung:        func() (string, string, bool) { return test.hung, "x", test.many },
				Absent:      func(context.Context) (string, string) { return "nothing is programmed", "x" },
				BeforeStart: start,
			}
			seen, err := p.Check(s).Look(t.Context())
			kit.Must(t, err)
			got := ""
			for _, f := range seen.Findings {
				got += fmt.Sprint(f.Topic, " ", f.severity(), " ", f.What)
			}
			kit.Check(t, got == want && seen.Absent == (want == ""),
				"%s, before a start %t: %q, want %q", situation, start, got, want)
		}
	}
	if p.String() != "" || p.Services() != nil {
		t.Errorf("says %q and serves %v", p, p.Services())
	}
}

// TestServices checks that ClusterIPs, NodePorts and health checks come through.
func TestServices(t *testing.T) {
	p := &Proxy{Answer: &statusview.Answer{Response: servicestate.Response{Services: []servicestate.Service{{
		Namespace: "shop", Name: "web", HealthCheck: &servicestate.HealthCheck{Port: 31000},
		Ports: []servicestate.Port{
			{Port: "dns", Protocol: "UDP", Family: "IPv6", Frontends: []servicestate.Frontend{{Kind: "ClusterIP", Address: "fd00::1", Port: 53}, {Kind: "NodePort", Port: 30053}}},
		},
	}}}}}
	var got []service.Port
	for x := range p.Services().Ports(service.IPv6) {
		got = append(got, *x)
	}
	want := []service.Port{{Family: service.IPv6, Name: service.PortName{Namespace: "shop", Name: "web", Port: "dns", Protocol: service.UDP}, HealthCheck: 31000,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("fd00::1"), Port: 53}, {Kind: service.NodePort, Port: 30053}}}}
	if len(got) != 1 || got[0].Name != want[0].Name || got[0].HealthCheck != 31000 || !slices.EqualFunc(got[0].Frontends, want[0].Frontends, service.Frontend.Equal) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestLinks checks that each topic leads to a heading of a document, and is complete.
func TestLinks(t *testing.T) {
	dropped := regexp.MustCompile("[^a-z0-9_ -]")
	headings := map[string]bool{}
	for _, name := range []string{"acceleration.md", "modes.md", "troubleshooting.md", "windows.md"} {
		text := kit.ReadFile(t, filepath.Join("..", "..", "docs", name))
		for line := range strings.Lines(string(text)) {
			if level, heading, is := strings.Cut(strings.TrimSpace(line), " "); is && strings.Trim(level, "#") == "" {
				anchor := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
				headings["docs/"+name+"#"+anchor] = true
			}
		}
	}
	orders := map[int]Topic{}
	for topic, about := range topics {
		if !headings[topic.Link()] {
			t.Errorf("the link of %s leads to no heading: %s", topic, topic.Link())
		}
		kit.Check(t, !strings.ContainsAny(string(topic), " _ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
			"%s: want lower case and hyphens", topic)
		if other, taken := orders[about.order]; taken || about.why == "" || about.severity == "" {
			t.Errorf("%s: order of %q, why %q, severity %q", topic, other, about.why, about.severity)
		}
		orders[about.order] = topic
	}
}

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		kit.WriteFile(t, path, got)
	}
	kit.CompareGolden(t, path, got)
}

// reports are a node on which all is well, and one with a foreign text that would move
// the cursor of a terminal.
func reports() map[string]*Report {
	return map[string]*Report{
		"healthy": {
			Node: "node-a", System: "linux", Modes: []string{"nftables"}, Proxy: "kube-proxy v1.0.0 answers at 127.0.0.1:10249, mode nftables, node node-a", Findings: []Finding{},
			Checks: []CheckResult{{"forwarding", OK, "of IPv4"}, {"bridges", Skipped, "no bridge has a port"}},
		},
		"broken": {
			Node: "node-a", System: "linux", Modes: []string{"nftables", "iptables"},
			Findings: sorted([]Finding{
				{Topic: NodePortHidden, Subject: "30080/tcp", What: "the NodePort 30080/tcp of Service shop/web hides process 4242 (nginx\x1b[2J -g daemon off), which listens on 0.0.0.0:30080",
					Advice: "let the program listen on another port, or give the Service another NodePort"},
				{Topic: ModeUnavailable, Mode: "iptables", Subject: "IPv4", What: "there is no match statistic (kernel module xt_statistic)", Fix: "modprobe -a xt_statistic"},
				{Topic: IPForward, Subject: "net.ipv4.ip_forward", What: "net.ipv4.ip_forward is 0 and should be 1", Fix: "sysctl -w net.ipv4.ip_forward=1"},
				{Topic: PodCIDR, What: "the podCIDR 10.1.0.0/24 of Node node-a is not in the clusterCIDR 10.244.0.0/16", Advice: "set clusterCIDR"},
			}),
			Checks: []CheckResult{{"forwarding", Found, "of IPv4"}, {"rights", Failed, "ask whether the account may list services: Post \"https://192.0.2.1:6443/apis/authorization.k8s.io/v1/selfsubjectaccessreviews\": net/http: TLS handshake timeout"}, {"firewalls", OK, ""}},
		},
	}
}

// TestReports compares both forms with goldens. The text fits 100 columns and has no
// codes but colours, which JSON does not have.
func TestReports(t *testing.T) {
	for name, r := range reports() {
		var text, coloured, inJSON bytes.Buffer
		kit.Must(t, (View{}).Text(&text, r))
		kit.Must(t, (View{Colour: true}).Text(&coloured, r))
		kit.Must(t, r.Data(&inJSON, "json"))
		golden(t, name+".txt", text.String())
		golden(t, name+".json", inJSON.String())
		for line := range strings.Lines(text.String()) {
			n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
			kit.Check(t, n <= document.Width, "%s: %d columns: %s", name, n, line)
		}
		plain := coloured.String()
		for _, c := range []document.Colour{document.Green, document.Yellow, document.Red, document.Bold, "\x1b[0m"} {
			plain = strings.ReplaceAll(plain, string(c), "")
		}
		if plain != text.String() || plain == coloured.String() || strings.Contains(plain+inJSON.String(), "\x1b") {
			t.Errorf("%s: other text with colours than without:\n%q", name, coloured.String())
		}
	}
}

func check(name string, seen Seen, err error) Check {
	return Check{name, func(context.Context) (Seen, error) { return seen, err }}
}

// TestRun checks that results have the order of the checks, findings that of their
// weight, and that a check which fails or hangs stops no other.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		risk, blocks := Finding{Topic: ReversePathFilter, What: "a"}, Finding{Topic: ConntrackFull, What: "b"}
		forward := func(subject, what string) Finding { return Finding{Topic: IPForward, Subject: subject, What: what} }
		hangs := make(chan struct{})
		defer close(hangs)
		r := Runner{Timeout: 30 * time.Second, Patience: 2 * time.Second, Checks: []Check{
			check("first", Seen{Findings: []Finding{risk, blocks}, Note: "all"}, nil),
			{"hanging", func(context.Context) (Seen, error) { <-hangs; return Seen{}, nil }},
			check("absent", NothingToSee("no %s", "bridge"), nil),
			check("failing", Seen{}, errors.New("read\nit: denied")),
			check("node", Seen{Findings: []Finding{forward("v6", "of the node"), forward("v4", "of the node")}}, nil),
			check("proxy", Seen{Findings: []Finding{forward("v4", "of the proxy")}}, nil),
			check("good", Seen{}, nil),
		}}
		results, found := r.Run(t.Context())
		want := []CheckResult{
			{"first", Found, "all"}, {"hanging", Failed, "no answer within 30s"}, {"absent", Skipped, "no bridge"}, {"failing", Failed, "read it: denied"},
			{"node", Found, ""}, {"proxy", Found, ""}, {"good", OK, ""},
		}
		kit.Same(t, "results (-want +got)", want, results)
		kit.Same(t, "findings (-want +got)", []Finding{forward("v4", "of the node"), forward("v6", "of the node"), blocks, risk}, found)
		for code, r := range map[int]Report{0: {Checks: results[6:]}, 1: {Checks: results[4:], Findings: found}, 2: {Checks: results, Findings: found}} {
			got := r.ExitCode()
			kit.Check(t, got == code, "exit code %d, want %d", got, code)
		}
	})
}

// TestProgress checks that only a long run says what it waits for.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration][]string{
			time.Second:     nil,
			5 * time.Second: {"1 of 2 checks done, still looking at: slow", "1 of 2 checks done, still looking at: slow"},
		} {
			var said []string
			r := Runner{Timeout: time.Minute, Patience: 2 * time.Second, Progress: func(s string) { said = append(said, s) }, Checks: []Check{
				check("quick", Seen{}, nil),
				{"slow", func(ctx context.Context) (Seen, error) {
					select {
					case <-time.After(took):
					case <-ctx.Done():
					}
					return Seen{}, nil
				}},
			}}
			r.Run(t.Context())
			kit.Same(t, fmt.Sprintf("%s (-want +got)", took), want, said)
		}
	})
}
