// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// TestExplain asks the questions of testdata/questions.txt about the objects in
// testdata/cluster.yaml, and compares the answers with testdata/answers.txt.
func TestExplain(t *testing.T) {
	m, pods := modelOf(t, filepath.Join("testdata", "cluster.yaml"))
	questions := kit.ReadFile(t, filepath.Join("testdata", "questions.txt"))
	var out bytes.Buffer
	for line := range strings.Lines(string(questions)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] == "#" {
			continue
		}
		q := Query{Source: words[0], Destination: words[1], Pod: pods.Find}
		if len(words) > 2 {
			q.Interface = words[2]
		}
		fmt.Fprintf(&out, "== %s\n", strings.Join(words, " "))
		x, _, err := m.Answer(q)
		if err != nil {
			fmt.Fprintf(&out, "error: %v\n\n", err)
			continue
		}
		kit.Must(t, (View{}).Print(&out, x))
		fmt.Fprintln(&out)
	}
	golden(t, filepath.Join("testdata", "answers.txt"), out.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		kit.WriteFile(t, path, got)
	}
	kit.CompareGolden(t, path, got)
	for line := range strings.Lines(got) {
		n := len([]rune(line))
		kit.Check(t, n <= 101 || strings.HasPrefix(line, "error"), "%d columns: %s", n-1, line)
	}
}

func modelOf(t *testing.T, path string) (Model, *Pods) {
	t.Helper()
	o := track.Options{
		NodeName: "node-a", NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}},
	}
	tracker := track.New(o)
	pods := NewPods(tracker)
	files := source.Manifests{Paths: []string{path}, NodeName: "node-a"}
	kit.Must(t, files.Load(context.Background(), pods))
	return Model{Tracker: tracker, Snapshot: tracker.Latest()}, pods
}

// In random clusters the chosen endpoints and what they see of the client are those of
// route.Decide, and the reason of each endpoint fits its state.
func TestExplainAgreesWithDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		for range 20 {
			c, ok := drawConn(t, m.Snapshot)
			if !ok {
				return
			}
			x, v := m.Explain(c), route.Decide(m.Snapshot, c)
			var want, got []string
			for _, e := range v.Endpoints {
				want = append(want, fmt.Sprintf("%s %v", e.Addr, v.Masquerades(e)))
			}
			for _, e := range x.Endpoints {
				if e.Chosen {
					got = append(got, fmt.Sprintf("%s %v", e.Address, e.Client == "masqueraded"))
				}
				checkReason(t, e)
			}
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" || x.Action != v.Action.String() {
				t.Fatalf("%+v: action %s, want %s; endpoints (-decide +explain):\n%s", c, x.Action, v.Action, diff)
			}
		}
	})
}

// checkReason compares the reason of e with its state.
func checkReason(t *rapid.T, e Endpoint) {
	switch {
	case e.Why == "":
		t.Errorf("endpoint %s: no reason", e.Address)
	case strings.Contains(e.Why, "not on this node") && e.Local,
		e.Why == "it is not ready" && e.State == "ready",
		e.Why == "it is ready" && e.State != "ready" && e.State != "serving" && e.State != "terminating",
		strings.Contains(e.Why, "no more") && e.State != "terminating":
		t.Errorf("endpoint %s is %s, local %v, and the reason is %q", e.Address, e.State, e.Local, e.Why)
	}
}

// TestPolicyThatChanged explains with a snapshot that is older than the Service.
func TestPolicyThatChanged(t *testing.T) {
	tracker, port := track.New(track.Options{NodeName: "a"}), int32(8080)
	set := func(policy corev1.ServiceInternalTrafficPolicy) {
		tracker.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "s"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}, InternalTrafficPolicy: &policy},
		})
	}
	set(corev1.ServiceInternalTrafficPolicyLocal)
	tracker.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "d", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}, NodeName: new("a")}},
	})
	tracker.Synced()
	m := Model{Tracker: tracker, Snapshot: tracker.Latest()}
	set(corev1.ServiceInternalTrafficPolicyCluster)
	x := m.Explain(route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("10.244.1.9"), Interface: "veth", To: netip.MustParseAddrPort("10.96.0.1:80")})
	kit.Check(t, len(x.Endpoints) == 1 && x.Endpoints[0].Why == "it is ready",
		"endpoints %+v; want the one that is ready", x.Endpoints)
}

func drawModel(t *rapid.T) Model {
	o := track.Options{NodeName: "a", NodePorts: service.AnyAddress(), NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}
	if rapid.Bool().Draw(t, "pods are recognized") {
		o.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	}
	o.MasqueradeAll = rapid.Bool().Draw(t, "masqueradeAll")
	tracker := track.New(o)
	tracker.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone")}}})
	for i := range 3 {
		tracker.SetService(drawService(t, i))
		tracker.SetSlice(drawSlice(t, i))
	}
	tracker.Synced()
	return Model{Tracker: tracker, Snapshot: tracker.Latest()}
}

func drawService(t *rapid.T, i int) *corev1.Service {
	policy := func(name string) string { return rapid.SampledFrom([]string{"Cluster", "Local"}).Draw(t, name) }
	internal := corev1.ServiceInternalTrafficPolicy(policy("internal"))
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("s", i)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: fmt.Sprintf("10.96.0.%d", i+1),
			Ports:                    []corev1.ServicePort{{Port: 80, NodePort: int32(30000 + i)}},
			InternalTrafficPolicy:    &internal,
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicy(policy("external")),
			LoadBalancerSourceRanges: rapid.SampledFrom([][]string{nil, {"203.0.113.0/24"}, {"10.244.0.0/16"}}).Draw(t, "ranges"),
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("198.51.100.%d", i+1)}}}},
	}
}

func drawSlice(t *rapid.T, i int) *discoveryv1.EndpointSlice {
	port := int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("s", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	hints := rapid.Bool().Draw(t, "hints")
	for j := range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		condition := func(name string) *bool {
			return rapid.SampledFrom([]*bool{nil, new(true), new(false)}).Draw(t, name)
		}
		e := discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.%d.%d", i, j+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: condition("ready"), Serving: condition("serving"), Terminating: condition("terminating")},
			NodeName:   new(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node")),
		}
		if hints && rapid.IntRange(0, 5).Draw(t, "hint") > 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "for")}}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// drawConn dials one of the frontends, or something else.
func drawConn(t *rapid.T, s *service.Snapshot) (route.Conn, bool) {
	var all []netip.AddrPort
	for p := range s.Ports(service.IPv4) {
		for _, f := range p.Frontends {
			if f.Kind == service.NodePort {
				f.Addr = s.Node.Addrs[0]
			}
			all = append(all, netip.AddrPortFrom(f.Addr, f.Port))
		}
	}
	if len(all) == 0 {
		return route.Conn{}, false
	}
	all = append(all, netip.MustParseAddrPort("10.96.0.1:81"), netip.MustParseAddrPort("192.0.2.10:22"))
	c := route.Conn{
		Protocol:  service.TCP,
		From:      rapid.SampledFrom([]netip.Addr{s.Node.Addrs[0], netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("203.0.113.9")}).Draw(t, "from"),
		To:        rapid.SampledFrom(all).Draw(t, "to"),
		Interface: "eth0",
	}
	if c.From == s.Node.Addrs[0] {
		c.Interface = ""
	}
	c.ToNode = c.To.Addr() == s.Node.Addrs[0]
	return c, true
}

// TestOthers checks what rules of others make of the verdict, and that they are printed.
func TestOthers(t *testing.T) {
	one := func(does Deed, doubts ...Doubt) Other {
		return Other{Hook: "forward", Table: "inet fw", Chain: "guard", Does: does, Rule: "the rule R", Look: "nft -a list chain inet fw guard", To: []string{"10.0.0.1:80"}, Doubts: doubts}
	}
	doubt := Doubt{Rule: "the rule D", Does: Drops, Why: "expression limit", Look: "nft LOOK"}
	for name, tt := range map[string]struct {
		action  string
		other   Other
		verdict Agreement
		want    string
	}{
		"drops":            {"forward", one(Drops), Differ, "the rule R drops packets to 10.0.0.1:80, and is not kube-proxy's\n  look  nft -a list chain inet fw guard"},
		"drops any":        {"pass", one(Drops), Differ, "drops packets"},
		"drops what drops": {"drop", one(Drops), Agree, "note: the rule R drops"},
		"translates":       {"forward", one(Translates), Differ, "another destination"},
		"translates other": {"pass", one(Translates), Agree, "note: the rule R gives"},
		"masquerades":      {"forward", one(Masquerades), Agree, "note: the rule R masquerades"},
		"doubt":            {"forward", one(Passes, doubt), Agree, "as far as the rules of others can be followed:\n  the rule D may drop it (expression limit)\n  look  nft LOOK"},
		"passes":           {"forward", one(Passes), Agree, "lets it pass\n\nThe node does what it should.\n"},
	} {
		x := &Explanation{Action: tt.action}
		x.Compare(&Path{Action: tt.action, Others: []Other{tt.other}})
		var b bytes.Buffer
		if err := (View{}).Print(&b, x); err != nil || x.Verdict != tt.verdict || !strings.Contains(b.String(), tt.want) {
			t.Errorf("%s: %s, %v, want %s and %q in\n%s", name, x.Verdict, err, tt.verdict, tt.want, b.String())
		}
	}
}

var (
	good  = netip.MustParseAddrPort("10.244.1.1:8080")
	other = netip.MustParseAddrPort("10.244.1.2:8080")
)

// compared compares w with an Explanation that leads to good, unmasqueraded.
func compared(w *Walk) *Explanation {
	x := &Explanation{Source: "10.244.1.2", Action: "forward", Endpoints: []Endpoint{{Listed: track.Listed{Address: good.String()}, Chosen: true, Client: "kept"}}}
	x.Compare(w.Path())
	return x
}

func TestCompare(t *testing.T) {
	for name, tc := range map[string]struct {
		walk    Walk
		want    Agreement
		differs []string
	}{
		"same":       {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false}}, Agree, nil},
		"masquerade": {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}}, Differ, []string{"the client's address is masqueraded on the way to 10.244.1.1:8080, and should be kept"}},
		"unknown":    {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}, ClientUnknown: true}, Agree, nil},
		"one more":   {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false, other: false}}, Differ, []string{"the node also sends it to 10.244.1.2:8080, which should not get it"}},
		"another":    {Walk{Action: route.Reject}, Differ, []string{"the node does reject, and should forward"}},
		"by design":  {Walk{Action: route.Reject, ByDesign: "the mode never does that"}, Agree, nil},
		"fault":      {Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false}, Faults: []string{"x"}}, Differ, []string{"x"}},
	} {
		if x := compared(&tc.walk); x.Verdict != tc.want || !slices.Equal(x.Differences, tc.differs) {
			t.Errorf("%s: %s %q, want %s %q", name, x.Verdict, x.Differences, tc.want, tc.differs)
		}
	}
}

// The client itself is reached with an address of the node, wherever it is.
func TestCompareHairpin(t *testing.T) {
	x := &Explanation{Source: good.Addr().String(), Action: "forward", Endpoints: []Endpoint{{Listed: track.Listed{Address: good.String()}, Chosen: true, Client: "kept"}}}
	x.Compare((&Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}}).Path())
	kit.Check(t, x.Verdict == Agree, "%q", x.Differences)
}

func TestFlows(t *testing.T) {
	client := netip.MustParseAddrPort("10.244.1.7:1001")
	works := Flow{Client: client, Target: good, Answered: true, Ended: true}
	for name, tc := range map[string]struct {
		flows                []Flow
		via                  []netip.AddrPort
		faults, notes, leads int
	}{
		"to an endpoint":                {[]Flow{{Target: good}}, nil, 0, 0, 0},
		"stale":                         {[]Flow{{Target: other, Stale: true}}, nil, 1, 0, 0},
		"stale, two of one":             {[]Flow{{Target: other, Stale: true}, {Target: other, Stale: true}}, nil, 1, 0, 0},
		"stale, half-open":              {[]Flow{{Target: other, Stale: true, HalfOpen: true}}, nil, 1, 0, 0},
		"left by a client that works":   {[]Flow{{Target: other, Stale: true, HalfOpen: true, Fresh: true}, works}, nil, 0, 0, 0},
		"stale beside one that works":   {[]Flow{{Target: other, Stale: true, Fresh: true}, works}, nil, 1, 0, 0},
		"open, of before":               {[]Flow{{Target: other, Answered: true}}, nil, 0, 1, 0},
		"ended, of before":              {[]Flow{{Target: other, Answered: true, Ended: true}}, nil, 0, 0, 0},
		"to a listener":                 {[]Flow{{Target: other, Stale: true}}, []netip.AddrPort{other}, 0, 0, 0},
		"to one of before":              {[]Flow{{Target: other, Stale: true}}, []netip.AddrPort{good}, 1, 0, 0},
		"elsewhere, by design":          {[]Flow{{Target: other}}, nil, 0, 1, 0},
		"an endpoint that is silent":    {[]Flow{{Target: good, HalfOpen: true, Fresh: true}, {Target: good, Fresh: true}}, nil, 0, 0, 1},
		"an endpoint silent long since": {[]Flow{{Target: good, HalfOpen: true}}, nil, 0, 0, 0},
	} {
		for i := range tc.flows {
			tc.flows[i].Client = client
		}
		w := &Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false}, Via: tc.via}
		w.SetFlows(tc.flows)
		x := &Explanation{Action: "forward", Endpoints: []Endpoint{{Listed: track.Listed{Address: good.String()}, Chosen: true, Client: "kept"}}}
		if x.Compare(w.Path()); len(x.Differences) != tc.faults || len(w.Notes) != tc.notes || len(x.Leads) != tc.leads || len(w.Flows) != len(tc.flows) {
			t.Errorf("%s: differences %q, leads %q, %+v", name, x.Differences, x.Leads, w)
		}
	}
}

// TestFlowsPrinted has eight entries that a rule of others makes, one that nobody answered, and
// ended ones: the rule comes first, the entries of one target are one line, and one command
// deletes them.
func TestFlowsPrinted(t *testing.T) {
	w := &Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: false}, Others: []Other{
		{Hook: "prerouting", Table: "ip x", Chain: "c", Does: Translates, Rule: "rule R", Look: "nft list chain ip x c", To: []string{"10.96.0.10:80"}},
		{Hook: "forward", Table: "ip x", Chain: "d", Does: Passes, Doubts: []Doubt{{Rule: "rule D", Does: Drops, Look: "nft list chain ip x d"}}},
	}}
	var all []Flow
	for i := range uint16(12) {
		f := Flow{Client: netip.AddrPortFrom(netip.MustParseAddr("10.244.1.9"), 1000+i), Target: good, Answered: true, Ended: true}
		if i < 8 {
			f = Flow{Client: f.Client, Target: other, HalfOpen: true, Stale: true, Fresh: true, Remedy: "conntrack -D"}
		}
		all = append(all, f)
	}
	all[11] = Flow{Client: all[11].Client, Target: good, HalfOpen: true, Fresh: true}
	for i := 8; i < 11; i++ {
		all[i].Target = netip.MustParseAddrPort("10.244.1.9:9")
	}
	w.SetFlows(all)
	x := &Explanation{Action: "forward", Protocol: "tcp", Endpoints: []Endpoint{{Listed: track.Listed{Address: good.String()}, Chosen: true, Client: "kept"}}}
	x.Compare(w.Path())
	var out bytes.Buffer
	kit.Must(t, (View{}).Print(&out, x))
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"8 connections: tracked to 10.244.1.2:8080, not answered yet connection of 10.244.1.9:1011: tracked to 10.244.1.1:8080, not answered yet 3 connections: tracked to 10.244.1.9:9, ended",
		"should: rule R gives packets to 10.96.0.10:80 another destination, and is not kube-proxy's 8 entries of connection tracking lead to 10.244.1.2:8080, which is no endpoint for it: they are stale; the rule above makes such entries, so remove it first look nft list chain ip x c fix conntrack -D Rules of others",
		"may matter, too: rule D may drop it look nft list chain ip x d But look further: a connection of the last minute, of 10.244.1.9:1011 to 10.244.1.1:8080, got no answer",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestRemainingConnections counts the connections to one endpoint that gets no new ones.
func TestRemainingConnections(t *testing.T) {
	w := &Walk{Action: route.Forward, Targets: map[netip.AddrPort]bool{good: true}}
	at := func(port uint16, to netip.AddrPort) Flow {
		return Flow{Client: netip.AddrPortFrom(netip.MustParseAddr("10.244.1.9"), port), Target: to}
	}
	third := netip.MustParseAddrPort("10.244.1.3:8080")
	w.SetFlows([]Flow{at(1, third), at(2, other), at(3, good), at(4, other)})
	want := []string{"the connection of 10.244.1.9:1 goes on to 10.244.1.3:8080, which gets no new ones", "2 connections go on to 10.244.1.2:8080, which gets no new ones"}
	kit.Check(t, slices.Equal(w.Notes, want) && len(w.Flows) == 4,
		"got %q, %d flows, want %q", w.Notes, len(w.Flows), want)
}

// TestWidth prints the longest names that Kubernetes allows. Only a command that mends
// something is not wrapped, to be copied.
func TestWidth(t *testing.T) {
	name, node, zone := strings.Repeat("service-", 7)+"is-long", strings.Repeat("node-of-a-", 6)+"long.name.example.org", strings.Repeat("zone", 15)
	const address = "[2001:db8:1111:2222:3333:4444:5555:7777]:65535"
	client := netip.MustParseAddrPort(address)
	x := &Explanation{
		Node: node, Source: address, Destination: address, Protocol: "sctp", Action: "drop", Why: strings.Repeat("a reason ", 20),
		Steps:     []Step{{"destination", "the ClusterIP of port lines of service " + strings.Repeat("n", 63) + "/" + name}},
		Endpoints: []Endpoint{{Listed: track.Listed{Address: address, Node: node, Zone: zone, State: "terminating"}, Client: "masqueraded", Why: strings.Repeat("not ready ", 9)}},
		Problems:  []string{strings.Repeat("a problem ", 20)}, Notes: []string{strings.Repeat("a note ", 30)},
		Verdict: Differ, Differences: []string{strings.Repeat("a difference ", 20)},
		Installed: &Path{
			Hops:    []Hop{{"chain " + strings.Repeat("long-", 30), strings.Repeat("does it ", 20)}},
			Targets: []Target{{Address: address, Route: strings.Repeat("via interface ", 12)}},
			Flows:   []Flow{{Client: client, Target: client}},
		},
	}
	var out bytes.Buffer
	kit.Must(t, (View{}).Print(&out, x))
	kit.CheckWidth(t, out.String(), name, zone, node, address)
	t.Logf("\n%s", out.String())
}

// TestFindings has dials, and what is found wrong in them.
func TestFindings(t *testing.T) {
	const to, service = "10.244.2.1:80", "10.96.0.1:80"
	at := func(from string, r Result) Dial { return Dial{From: from, To: to, Endpoint: true, Result: r} }
	whole := func(from string, r Result) Dial { return Dial{From: from, To: service, Result: r} }
	for name, tc := range map[string]struct {
		action string
		dials  []Dial
		want   string // beginning of the only finding, "" for none
	}{
		"all work":                  {"forward", []Dial{at(Here, Connected), whole(Here, Connected)}, ""},
		"refused":                   {"forward", []Dial{at(Here, Refused), whole(Here, Refused)}, "endpoint 10.244.2.1:80 refuses connections: nothing listens on port 80/tcp there"},
		"silent":                    {"forward", []Dial{at(Here, TimedOut), whole(Here, TimedOut)}, "endpoint 10.244.2.1:80 does not answer within 0s"},
		"silent, two of them":       {"forward", []Dial{at(Here, TimedOut), {From: Here, To: "10.244.2.2:80", Endpoint: true, Result: TimedOut, Milliseconds: 1}, whole(Here, TimedOut)}, "each of endpoints 10.244.2.1:80, 10.244.2.2:80 does not answer within 0s"},
		"no route":                  {"forward", []Dial{at(Here, Unreachable)}, "endpoint 10.244.2.1:80 cannot be reached: no route"},
		"another error":             {"forward", []Dial{at(Here, Failed)}, "endpoint 10.244.2.1:80 cannot be dialed: failed"},
		"UDP without an answer":     {"forward", []Dial{at(Here, Silent), whole(Here, Silent)}, ""},
		"SCTP that is not there":    {"forward", []Dial{at(Here, NotDialed), whole(Here, NotDialed)}, ""},
		"only the client gets none": {"forward", []Dial{at(Here, Connected), at(FromClient, TimedOut), whole(FromClient, TimedOut)}, "endpoint 10.244.2.1:80 answers the node, and not the client: timed out"},
		"only the node gets none":   {"forward", []Dial{at(Here, TimedOut), at(FromClient, Connected), whole(FromClient, Connected)}, ""},
		"only the Service fails":    {"forward", []Dial{at(Here, Connected), whole(Here, TimedOut)}, "the Service fails at 10.96.0.1:80, though its endpoints answer: timed out"},
		"refused as it should be":   {"reject", []Dial{whole(Here, Refused)}, ""},
		"dropped, not refused":      {"reject", []Dial{whole(Here, TimedOut)}, "10.96.0.1:80 does not answer as it should: timed out"},
		"dropped as it should be":   {"drop", []Dial{whole(Here, TimedOut)}, ""},
		"not dropped":               {"drop", []Dial{whole(Here, Connected)}, "10.96.0.1:80 does not answer as it should: connected"},
		"no Service":                {"pass", []Dial{whole(Here, Refused)}, "10.96.0.1:80 does not answer as it should: refused"},
		"large packets": {"forward", []Dial{{From: Here, To: to, Endpoint: true, Result: Connected, Packets: &Packets{1500, PacketsLost, 0}}, whole(Here, Connected)},
			"packets of 1500 bytes get lost on the way to endpoint 10.244.2.1:80"},
		"large answers": {"forward", []Dial{{From: Here, To: to, Endpoint: true, Result: Connected, Packets: &Packets{1500, PacketsNotBack, 0}}, whole(FromClient, Connected)},
			"packets of 1500 bytes get lost on the way back from endpoint 10.244.2.1:80"},
		"masqueraded, so only the node dials the endpoint": {"forward", []Dial{at(Here, Refused), whole(FromClient, TimedOut)}, "endpoint 10.244.2.1:80 refuses connections"},
	} {
		x := &Explanation{Action: tc.action, Protocol: "tcp"}
		x.SetProbe(&Probe{Dials: tc.dials})
		got := x.Probe.Findings
		if len(got) > 1 || x.Probe.Fails() != (tc.want != "") || len(got) == 1 && (!strings.HasPrefix(got[0].Text, tc.want) || got[0].Advice == "") {
			t.Errorf("%s: %+v, want %q", name, got, tc.want)
		}
	}
}
