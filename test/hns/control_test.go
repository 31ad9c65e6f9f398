// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

func TestFaults(t *testing.T) {
	w := newFixture(t, Options{Seed: 1})
	inject := func(f Fault) {
		t.Helper()
		kit.Must(t, w.Inject(f))
	}
	list := func() Code { return w.call("HcnEnumerateEndpoints", "", 0, "{}").Code }

	inject(Fault{Function: "HcnEnumerate*", Code: ServerUnavailable, Count: 2})
	got := []Code{list(), w.call("HcnOpenNetwork", w.network, 0).Code, list(), list()}
	kit.Check(t, slices.Equal(got, []Code{ServerUnavailable, OK, ServerUnavailable, OK}), "two lists to fail: %v", got)

	inject(Fault{Function: "HcnCreateEndpoint", Code: ServerUnavailable, When: Afterwards, Count: 1})
	before := w.CreatedCount(Endpoint)
	if _, code := w.create(Endpoint, w.network, remote("10.244.7.1")); code != ServerUnavailable || w.CreatedCount(Endpoint) != before+1 {
		t.Errorf("create without an answer: %v, %d endpoints more", code, w.CreatedCount(Endpoint)-before)
	}
	_, code := w.create(Endpoint, w.network, remote("10.244.7.1"))
	kit.Check(t, code == ObjectExists, "create again: %v", code)

	inject(Fault{Function: "*", Code: GeneralFailure, Share: 0.5})
	bad := 0
	for range 200 {
		if list() != OK {
			bad++
		}
	}
	kit.Check(t, bad >= 60 && bad <= 140, "%d of 200 calls failed, want about half", bad)
	w.ClearFaults()
	kit.Equal(t, list(), OK, "after Heal")
	_, err := w.AddPod("vxlan0", "untouched")
	kit.Check(t, err == nil, "another program's call: %v", err)
	for _, f := range []Fault{{}, {Function: "["}, {Function: "*"}, {Function: "*", Code: NotFound, Share: 2}, {Function: "*", Code: NotFound, When: "soon"}} {
		kit.Check(t, w.Inject(f) != nil, "fault %+v was taken", f)
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.Delay("*", time.Second)
		s.Delay("HcnCreate*", 20*time.Second)
		for function, want := range map[string]time.Duration{"HcnEnumerateNetworks": time.Second, "HcnCreateNetwork": 20 * time.Second} {
			start := time.Now()
			s.CallAs(Caller, Request{Function: function, Args: [3]string{"{}"}})
			took := time.Since(start)
			kit.Check(t, took == want, "%s took %s, want %s", function, took, want)
		}
		start := time.Now()
		if s.Call(Request{Function: "HcnCreateNetwork", Args: [3]string{"{}"}}); time.Since(start) != 0 {
			t.Error("another program waited")
		}
	})
}

func TestRestart(t *testing.T) {
	for keep, want := range map[Survivors][3]int{ // networks, endpoints, load balancers
		Everything: {1, 2, 1}, Pods: {1, 1, 0}, Nothing: {0, 0, 0},
	} {
		t.Run(string(keep), func(t *testing.T) {
			w := newFixture(t, Options{})
			far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
			lb, _ := w.create(LoadBalancer, "", balancer(w.pod, far))
			h := w.must("HcnOpenLoadBalancer", lb, 0).Handle

			w.Stop(ServerUnavailable)
			_, ok := w.try("HcnEnumerateNetworks", "", 0, "{}")
			kit.Check(t, !ok, "the connection did not break")
			w.client = dial(t, w.Server)
			kit.Equal(t, w.call("HcnEnumerateNetworks", "", 0, "{}").Code, ServerUnavailable, "while HNS is down")
			kit.Equal(t, w.call("HNSCall", "", 0, "GET", "/globals/version").Code, ServerUnavailable,
				"version while HNS is down")
			w.Start(keep)
			kit.Equal(t, w.call("HcnQueryLoadBalancerProperties", "", h, "{}").Code, InvalidHandle, "handle of before")
			if got := w.call("HcnCloseLoadBalancer", "", h).Code; got != InvalidHandle || len(w.Warnings()) != 0 {
				t.Errorf("close of a handle of before: %v, warnings %v", got, w.Warnings())
			}
			got := [3]int{len(w.Objects(Network)), len(w.Objects(Endpoint)), len(w.Objects(LoadBalancer))}
			kit.Check(t, got == want, "survivors %v, want %v", got, want)
			if keep != Everything {
				return
			}
			id := w.Objects(LoadBalancer)[0].ID()
			kit.Check(t, id == lb, "load balancer %s came back as %s", lb, id)
			_, code := w.create(LoadBalancer, "", balancer(w.pod))
			kit.Check(t, code == AlreadyExists, "what came back, once more: %v", code)
			w.must("HcnDeleteLoadBalancer", lb, 0)
			w.create(LoadBalancer, "", balancer(w.pod))
			if _, code := w.create(LoadBalancer, "", balancer(w.pod)); code != PortExists {
				t.Errorf("what is new, once more: %v", code)
			}
		})
	}
}

func TestRestartBreaksConnections(t *testing.T) {
	w := newFixture(t, Options{})
	// Only an accepted connection can break; an answer proves the acceptance.
	w.must("HcnEnumerateNetworks", "", 0, "{}")
	w.Restart(Everything)
	_, ok := w.try("HcnEnumerateNetworks", "", 0, "{}")
	kit.Check(t, !ok, "the connection survived a restart")
	w.client = dial(t, w.Server)
	w.must("HcnEnumerateNetworks", "", 0, "{}")
	w.DropConnections()
	if _, ok := w.try("HcnEnumerateNetworks", "", 0, "{}"); ok {
		t.Error("the connection survived being dropped")
	}
}

// recordingT records the failures of a test.
type recordingT struct {
	*testing.T
	errors int
}

func (s *recordingT) Errorf(string, ...any) { s.errors++ }

func TestWarnings(t *testing.T) {
	for name, misdeed := range map[string]func(w *fixture, far, lb string){
		"endpoint in use deleted":  func(w *fixture, far, _ string) { w.must("HcnDeleteEndpoint", far, 0) },
		"foreign endpoint deleted": func(w *fixture, _, _ string) { w.must("HcnDeleteEndpoint", w.pod, 0) },
		"foreign network modified": func(w *fixture, _, _ string) { modifyNetwork(w) },
		"endpoint twice": func(w *fixture, far, _ string) {
			w.create(LoadBalancer, "", with(balancer(far, far), "FrontendVIPs", nil))
		},
		"handle closed that is not": func(w *fixture, _, _ string) { w.call("HcnCloseEndpoint", "", 99) },
	} {
		t.Run(name, func(t *testing.T) {
			quiet := &recordingT{T: t}
			w := &fixture{Server: StartAt(quiet, listener(t), Options{})}
			w.client = dial(t, w.Server)
			w.network = added(t)(w.AddNetwork(NetworkConfig{Name: "vxlan0", Type: "Overlay", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}}))
			w.pod = added(t)(w.AddPod("vxlan0", "pod"))
			far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
			lb, _ := w.create(LoadBalancer, "", balancer(far))
			if n := len(w.Warnings()); n != 0 {
				t.Fatalf("warnings before: %v", w.Warnings())
			}
			misdeed(w, far, lb)
			if n := len(w.Warnings()); n != 1 {
				t.Errorf("%d warnings %q, want one", n, w.Warnings())
			}
			if w.report(quiet); quiet.errors != 1 {
				t.Errorf("%d errors of the test, want one", quiet.errors)
			}
		})
	}
}

func modifyNetwork(w *fixture) {
	h := w.must("HcnOpenNetwork", w.network, 0).Handle
	w.must("HcnModifyNetwork", "", h, `{"ResourceType":"Policy","RequestType":"Add","Settings":{}}`)
	w.must("HcnCloseNetwork", "", h)
}

func TestExtraneousObjectsAreDeleted(t *testing.T) {
	w := newFixture(t, Options{})
	far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
	unused := w.Unused()
	kit.Check(t, len(unused) == 1 && unused[0].ID() == far, "unused %v, want %s", unused, far)
	lb, _ := w.create(LoadBalancer, "", balancer(far, w.pod))
	if unused, loose := w.Unused(), w.DanglingReferences(); len(unused)+len(loose) != 0 {
		t.Errorf("unused %v, loose %v", unused, loose)
	}
	if err := w.Delete(Endpoint, w.pod); err != nil { // done by another program
		t.Fatal(err)
	}
	if loose := w.DanglingReferences(); len(loose) != 1 || len(w.Warnings()) != 0 {
		t.Errorf("loose %v, warnings %v", loose, w.Warnings())
	}
	w.must("HcnDeleteLoadBalancer", lb, 0)
	loose := w.DanglingReferences()
	kit.Check(t, len(loose) == 0, "loose %v", loose)
}

func TestJournal(t *testing.T) {
	w := newFixture(t, Options{})
	before := w.Calls()
	far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
	w.create(Endpoint, w.network, remote("10.244.7.1"))
	w.must("HcnEnumerateEndpoints", "", 0, "{}")
	w.must("HcnDeleteEndpoint", far, 0)
	calls := w.Calls().Sub(before)
	if got, want := [4]int{calls.Writes(""), calls.Writes(LoadBalancer), calls.Lists(Endpoint), calls.Reads("")}, [4]int{3, 0, 1, 1}; got != want {
		t.Errorf("writes, of load balancers, lists, reads: %v, want %v (%s)", got, want, calls)
	}
	var lines []string
	for _, e := range w.Journal() {
		if e.By == Caller {
			lines = append(lines, e.String())
		}
	}
	want := []string{
		"HcnCreateEndpoint " + far,
		"HcnCreateEndpoint : The object already exists. (0x80071392)",
		"HcnDeleteEndpoint " + far,
	}
	kit.Check(t, slices.Equal(lines, want), "journal %q, want %q", lines, want)
}

func TestServer2019FailsToDelete(t *testing.T) {
	w := newFixture(t, Options{Version: Version{9, 5}})
	failed := 0
	for range 32 {
		lb, code := w.create(LoadBalancer, "", balancer(w.pod))
		kit.Need(t, code == OK, "%v", code)
		if got := w.call("HcnDeleteLoadBalancer", lb, 0).Code; got == GeneralFailure {
			failed++
			w.must("HcnDeleteLoadBalancer", lb, 0) // the second time it works
		}
	}
	kit.Check(t, failed == 4, "%d of 32 did not go at once, want 4", failed)
}

func TestMissing(t *testing.T) {
	w := newFixture(t, Options{})
	for kind, want := range map[Kind]Code{Network: NetworkNotFound, Endpoint: EndpointNotFound, LoadBalancer: NotFound} {
		got := w.call("HcnDelete"+string(kind), "5f0b1190-63be-4e0c-b974-bd0f55675a42", 0).Code
		kit.Check(t, got == want, "delete of a %s that is not there: %v, want %v", kind, got, want)
	}
	_, err := w.AddPod("nowhere", "pod")
	kit.Check(t, err != nil, "pod in a network that is not there")
}

// asked has everything that a form could change.
func asked(endpoints ...string) Document {
	d := with(with(balancer(endpoints...), "SourceVIP", "10.244.3.9"), "Flags", 1)
	return with(d, "PortMappings.Flags", 18)
}

// TestForms gives objects back in the forms of personalities: at once, or in later answers.
func TestForms(t *testing.T) {
	for _, tt := range []struct {
		p    Personality
		want string // in the text of the load balancer, or of the remote endpoint
	}{
		{Personality{PortFlags: 2}, `"Flags":2,"InternalPort"`},
		{Personality{LeftOut: []string{"SourceVIP"}}, `"Protocol":6}]}`},
		{Personality{SourceVIP: "10.244.3.77"}, `"SourceVIP":"10.244.3.77"`},
		{Personality{OwnMACs: true}, `"MacAddress":"00-15-5D-99-00-01"`},
		{Personality{FilledIn: true}, `"DistributionType":0`},
		{Personality{Respelt: true}, `"MacAddress":"02:11:0A:F4:07:0B"`},
		{Personality{Respelt: true}, `"HostComputeEndpoints":["FAR","`},
	} {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s later %v", tt.want, later), func(t *testing.T) {
				tt.p.Later = later
				w := newFixture(t, Options{Version: Version{15, 5}, Personality: tt.p})
				h := w.must("HcnOpenNetwork", w.network, 0).Handle
				far := w.must("HcnCreateEndpoint", "", h, text(with(remote("10.244.7.1"), "ID", "far"))).Handle
				lb := w.must("HcnCreateLoadBalancer", "", 0, text(with(asked(w.pod, "far"), "ID", "lb"))).Handle
				made := w.must("HcnQueryLoadBalancerProperties", "", lb, "{}").Output + w.must("HcnQueryEndpointProperties", "", far, "{}").Output
				listed := text(w.read(LoadBalancer, "lb")) + text(w.read(Endpoint, "far"))
				kit.Check(t, strings.Contains(made, tt.want) != later && strings.Contains(listed, tt.want),
					"made:   %s\nlisted: %s\nwant %s", made, listed, tt.want)
				pod := text(w.read(Endpoint, w.pod))
				kit.Check(t, !strings.Contains(pod, tt.want), "another program's endpoint: %s", pod)
			})
		}
	}
}

func TestPersonalityOfEndpoints(t *testing.T) {
	w := newFixture(t, Options{Personality: Personality{PlainNames: true, LastAddress: true, OneAddress: true, StrictPolicies: true, PlugsAfter: 3}})
	id, _ := w.create(Endpoint, w.network, Document{})
	got := w.read(Endpoint, id).IPs()[0]
	kit.Check(t, got == netip.MustParseAddr("10.244.3.254"), "HNS chose %s", got)
	_, code := w.create(Endpoint, w.network, Document{"Name": "fd00::1"})
	kit.Check(t, code == InvalidParameter, "a name with colons: %v", code)
	if _, code := w.create(Endpoint, w.network, remote("10.244.3.5")); code != AddressReserved {
		t.Errorf("a remote endpoint with the address of a pod: %v", code)
	}
	bridge := added(t)(w.AddNetwork(NetworkConfig{Name: "cbr0", Type: "L2Bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}))
	if _, code := w.create(Endpoint, bridge, remote("10.1.7.1")); code != InvalidPolicyType {
		t.Errorf("a provider address on a bridge: %v", code)
	}
	pod := added(t)(w.AddPod("vxlan0", "late"))
	var codes []Code
	for range 3 {
		_, code := w.create(LoadBalancer, "", balancer(pod))
		codes = append(codes, code)
	}
	kit.Check(t, slices.Equal(codes, []Code{PortNotFound, PortNotFound, OK}),
		"load balancers with a pod that starts: %v", codes)
}

func TestCascade(t *testing.T) {
	for how, want := range map[Cascade][2]int{Dangle: {1, 1}, Lose: {1, 0}, Go: {0, 0}} { // load balancers left, dangling references
		w := newFixture(t, Options{Personality: Personality{Cascade: how, RenewsIDs: true}})
		far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
		id, _ := w.create(LoadBalancer, "", balancer(w.pod, far))
		w.Restart(Everything)
		o := w.Objects(LoadBalancer)
		kit.Check(t, len(o) == 1 && o[0].ID() != id, "%q: after a restart: %v, want another identity than %s", how, o, id)
		kit.Must(t, w.Delete(Endpoint, w.pod))
		got := [2]int{len(w.Objects(LoadBalancer)), len(w.DanglingReferences())}
		kit.Check(t, got == want, "%q: load balancers and dangling references %v, want %v", how, got, want)
		kit.Must(t, w.Delete(Network, w.network))
		n := len(w.Objects(LoadBalancer))
		kit.Check(t, (n > 0) == (how == Dangle), "%q: %d load balancers outlive the network", how, n)
	}
}

func TestPersonalityOfCalls(t *testing.T) {
	w := newFixture(t, Options{Personality: Personality{FailEvery: 3, FailInRow: 2}})
	var codes []Code
	for range 7 {
		_, code := w.create(LoadBalancer, "", Document{})
		codes = append(codes, code)
	}
	const bad, good = GeneralFailure, InvalidParameter
	kit.Check(t, slices.Equal(codes, []Code{good, good, bad, bad, good, bad, bad}), "writing calls: %v", codes)

	w = newFixture(t, Options{Personality: Personality{GoesAfter: 3}})
	id, _ := w.create(LoadBalancer, "", balancer(w.pod))
	w.must("HcnDeleteLoadBalancer", id, 0)
	codes = nil
	for range 3 {
		_, code := w.create(LoadBalancer, "", balancer(w.pod))
		codes = append(codes, code)
	}
	kit.Check(t, slices.Equal(codes, []Code{PortExists, PortExists, OK}), "after a deletion: %v", codes)

	w = newFixture(t, Options{Personality: Personality{MeddlesEvery: 2}})
	var seen []int
	for range 6 {
		w.must("HcnEnumerateNetworks", "", 0, "{}")
		seen = append(seen, len(w.Objects(Endpoint)))
	}
	kit.Check(t, slices.Equal(seen, []int{1, 2, 2, 1, 1, 2}), "endpoints: %v", seen)
}

func TestSlowDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, start := New(Options{Personality: Personality{SlowDeletes: 5 * time.Second}}), time.Now()
		s.CallAs(Caller, Request{Function: "HcnDeleteLoadBalancer"})
		s.CallAs(Caller, Request{Function: "HcnEnumerateNetworks"})
		took := time.Since(start)
		kit.Check(t, took == 5*time.Second, "took %s", took)
	})
}

func TestFindPersonality(t *testing.T) {
	for _, p := range Personalities() {
		got, err := FindPersonality(p.Name)
		kit.Check(t, err == nil && got.Version == p.Version, "%q: %v, %v", p.Name, got, err)
	}
	_, err := FindPersonality("angry")
	kit.Check(t, err != nil, "found one that does not exist")
}

func TestEndpoints(t *testing.T) {
	w := newFixture(t, Options{})
	_, code := w.create(Endpoint, w.network, remote("10.244.7.11"))
	kit.Need(t, code == OK, "%v", code)
	for _, tc := range []struct {
		name string
		doc  Document
		want Code
	}{
		{"remote", remote("10.244.7.12"), OK},
		{"remote with an address that another one has", remote("10.244.7.11"), ObjectExists},
		{"remote with the address of a local one", remote("10.244.3.5"), OK},
		{"remote without a provider address", with(remote("10.244.7.13"), "Policies", nil), InvalidPolicy},
		{"remote without a hardware address", with(remote("10.244.7.13"), "MacAddress", nil), InvalidPolicy},
		{"remote without an address", with(remote("10.244.7.13"), "IpConfigurations", nil), InvalidParameter},
		{"unusable hardware address", with(remote("10.244.7.13"), "MacAddress", "sesame"), InvalidParameter},
		{"unusable address", remote("10.244.7"), InvalidIP},
		{"local", local("10.244.3.9"), OK},
		{"local with an address that another one has", local("10.244.3.5"), AddressReserved},
		{"local with the address of a remote one", local("10.244.7.11"), InvalidIP},
		{"local outside the subnet", local("10.244.4.9"), InvalidIP},
		{"local with the gateway's address", local("10.244.3.1"), AddressReserved},
		{"local with the subnet's own address", local("10.244.3.0"), AddressReserved},
		{"local with the last address", local("10.244.3.255"), AddressReserved},
	} {
		_, got := w.create(Endpoint, w.network, tc.doc)
		kit.Check(t, got == tc.want, "%s: %v, want %v", tc.name, got, tc.want)
	}
	if _, got := w.create(Network, "", Document{"Type": "Overlay", "Ipams": []any{
		map[string]any{"Subnets": []any{map[string]any{"IpAddressPrefix": "10.0.0.0/24"}}}}}); got != InvalidPolicy {
		t.Errorf("overlay network without isolation: %v", got)
	}
}

func TestEndpointDefaults(t *testing.T) {
	w := newFixture(t, Options{})
	first, _ := w.create(Endpoint, w.network, Document{})
	second, _ := w.create(Endpoint, w.network, Document{})
	a, b := w.read(Endpoint, first), w.read(Endpoint, second)
	got := slices.Concat(a.IPs(), b.IPs())
	kit.Check(t, slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.244.3.2"), netip.MustParseAddr("10.244.3.3")}), "addresses %v", got)
	if a.MAC() == "" || a.MAC() == b.MAC() || a.Name() != "Ethernet" || a.list("IpConfigurations")[0].number("PrefixLength") != 24 {
		t.Errorf("endpoints %s and %s", text(a), text(b))
	}
}

func TestBridgedNetwork(t *testing.T) {
	w := newFixture(t, Options{})
	bridge := added(t)(w.AddNetwork(NetworkConfig{Name: "cbr0", Type: "L2Bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}}))
	for name, doc := range map[string]Document{
		"the host's own endpoint":       local("10.1.0.1"),
		"remote without anything of it": {"Flags": 1, "IpConfigurations": []any{map[string]any{"IpAddress": "10.1.7.1"}}},
	} {
		_, code := w.create(Endpoint, bridge, doc)
		kit.Check(t, code == OK, "%s: %v", name, code)
	}
}

func TestLoadBalancers(t *testing.T) {
	w := newFixture(t, Options{Version: Version{11, 10}})
	six := added(t)(w.AddNetwork(NetworkConfig{Name: "six", Type: "L2Bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("fd00:3::/64")}}))
	pod6 := added(t)(w.AddPod("six", "pod6", netip.MustParseAddr("fd00:3::5")))
	starting := added(t)(w.AddPod("vxlan0", "starting"))
	err := w.Detach(starting)
	kit.Need(t, err == nil && six != "", "%v", err)
	w.Hold(6, 30080)
	_, code := w.create(LoadBalancer, "", balancer(w.pod))
	kit.Need(t, code == OK, "%v", code)
	free := with(balancer(w.pod), "FrontendVIPs", []any{"10.96.0.11"})
	node := with(with(balancer(w.pod), "FrontendVIPs", nil), "PortMappings.ExternalPort", 30080)
	for _, tc := range []struct {
		name string
		doc  Document
		want Code
	}{
		{"another one's address and port", balancer(w.pod), PortExists},
		{"one address of two taken", with(free, "FrontendVIPs", []any{"10.96.0.11", "10.96.0.10"}), PortExists},
		{"no endpoints", with(free, "HostComputeEndpoints", []any{}), InvalidParameter},
		{"no ports", with(free, "PortMappings", nil), InvalidParameter},
		{"unknown endpoint", with(free, "HostComputeEndpoints", []any{w.network}), EndpointNotFound},
		{"endpoint off the switch", with(free, "HostComputeEndpoints", []any{w.pod, starting}), PortNotFound},
		{"endpoints of two networks", with(free, "HostComputeEndpoints", []any{w.pod, added(t)(w.AddPod("six", ""))}), InvalidParameter},
		{"port 0", with(free, "PortMappings.InternalPort", 0), InvalidParameter},
		{"port 65536", with(free, "PortMappings.ExternalPort", 65536), InvalidParameter},
		{"unknown protocol", with(free, "PortMappings.Protocol", 1), InvalidParameter},
		{"unknown distribution", with(free, "PortMappings.DistributionType", 3), InvalidParameter},
		{"affinity before 12.0", with(free, "PortMappings.DistributionType", 2), InvalidParameter},
		{"address of the other family", with(free, "FrontendVIPs", []any{"fd00::1"}), InvalidIP},
		{"source address of the other family", with(free, "SourceVIP", "fd00::1"), InvalidIP},
		{"endpoint of the other family", with(free, "HostComputeEndpoints", []any{pod6}), InvalidIP},
		{"no address at all", with(free, "FrontendVIPs", []any{"sesame"}), InvalidIP},
		{"node port that is held", node, PortExists},
		{"service port that is held", with(free, "PortMappings.ExternalPort", 30080), OK},
		{"UDP beside TCP", with(balancer(w.pod), "PortMappings.Protocol", 17), OK},
		{"node port", with(node, "PortMappings.ExternalPort", 30081), OK},
		{"same node port", with(node, "PortMappings.ExternalPort", 30081), PortExists},
		{"replies past the host", with(free, "Flags", 1), OK},
		{"IPv6", Document{"HostComputeEndpoints": []any{pod6}, "Flags": 2, "FrontendVIPs": []any{"fd00::10"},
			"PortMappings": balancer()["PortMappings"]}, OK},
	} {
		_, got := w.create(LoadBalancer, "", tc.doc)
		kit.Check(t, got == tc.want, "%s: %v, want %v", tc.name, got, tc.want)
	}
	w.Release(6, 30080)
	kit.Must(t, w.Attach(starting))
	if _, code := w.create(LoadBalancer, "", node); code != OK {
		t.Errorf("node port after its holder has gone: %v", code)
	}
	if _, code := w.create(LoadBalancer, "", with(balancer(starting), "FrontendVIPs", []any{"10.96.0.12"})); code != OK {
		t.Errorf("endpoint on the switch at last: %v", code)
	}
}

func TestDynamicPorts(t *testing.T) {
	w := newFixture(t, Options{})
	w.LimitPorts(2*portBlock + 1)
	at := func(vip string) Document { return with(balancer(w.pod), "FrontendVIPs", []any{vip}) }
	var first string
	for _, tc := range []struct {
		name string
		doc  Document
		want Code
	}{
		{"a block", at("10.96.0.11"), OK},
		{"another", at("10.96.0.12"), OK},
		{"one more than there is", at("10.96.0.13"), PortExists},
		{"replies past the host", with(at("10.96.0.14"), "Flags", 1), OK},
		{"UDP", with(at("10.96.0.15"), "PortMappings.Protocol", 17), OK},
	} {
		id, got := w.create(LoadBalancer, "", tc.doc)
		kit.Check(t, got == tc.want, "%s: %v, want %v", tc.name, got, tc.want)
		first = cmp.Or(first, id)
	}
	code := w.call("HcnDeleteLoadBalancer", first, 0).Code
	kit.Need(t, code == OK, "%v", code)
	if _, code := w.create(LoadBalancer, "", at("10.96.0.13")); code != OK {
		t.Errorf("after a load balancer has gone: %v", code)
	}
	w.LimitPorts(0)
	if _, code := w.create(LoadBalancer, "", at("10.96.0.16")); code != OK {
		t.Errorf("without a limit: %v", code)
	}
}

func TestVersions(t *testing.T) {
	for _, tc := range []struct {
		version                          string
		dsr, six, affinity, modify, held Code
	}{
		{"9.2", InvalidParameter, InvalidParameter, InvalidParameter, NotImplemented, PortExists},
		{"9.5", OK, InvalidParameter, InvalidParameter, NotImplemented, PortExists},
		{"10.0", InvalidParameter, InvalidParameter, InvalidParameter, NotImplemented, OK},
		{"13.3", OK, OK, OK, NotImplemented, OK},
		{"15.4", OK, OK, OK, OK, OK},
		{"15.5", OK, OK, OK, OK, OK},
	} {
		t.Run(tc.version, func(t *testing.T) {
			v, err := ParseVersion(tc.version)
			if err != nil || v.String() != tc.version {
				t.Fatal(v, err)
			}
			w := newFixture(t, Options{Version: v})
			w.Hold(6, 10256)
			create := func(name string, want Code, d Document) {
				t.Helper()
				_, got := w.create(LoadBalancer, "", d)
				kit.Check(t, got == want, "%s: %v, want %v", name, got, want)
			}
			create("plain", OK, balancer(w.pod))
			next := func(vip string) Document { return with(balancer(w.pod), "FrontendVIPs", []any{vip}) }
			create("DSR", tc.dsr, with(next("10.96.0.11"), "Flags", 1))
			create("affinity", tc.affinity, with(next("10.96.0.12"), "PortMappings.DistributionType", 2))
			create("held port", tc.held, with(next("10.96.0.13"), "PortMappings.ExternalPort", 10256))
			six := added(t)(w.AddNetwork(NetworkConfig{Name: "six", Type: "L2Bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("fd00:3::/64")}}))
			pod, _ := w.create(Endpoint, six, Document{})
			create("IPv6", tc.six, with(with(balancer(pod), "Flags", 2), "FrontendVIPs", []any{"fd00::1"}))
			modify(t, w, tc.modify, v.works())
		})
	}
	_, err := ParseVersion("13")
	kit.Check(t, err != nil && strings.Contains(err.Error(), "13.3"), "ParseVersion(13): %v", err)
}

// modify adds a second endpoint to a load balancer. It also requests another frontend,
// which no version supports.
func modify(t *testing.T, w *fixture, want Code, works bool) {
	t.Helper()
	old, _ := w.create(LoadBalancer, "", with(balancer(w.pod), "FrontendVIPs", []any{"10.96.1.1"}))
	more, _ := w.create(Endpoint, w.network, remote("10.244.7.99"))
	h := w.must("HcnOpenLoadBalancer", old, 0).Handle
	defer w.must("HcnCloseLoadBalancer", "", h)
	doc := with(balancer(w.pod, more), "FrontendVIPs", []any{"10.96.1.2"})
	got := w.call("HcnModifyLoadBalancer", "", h, text(doc))
	kit.Check(t, got.Code == want, "modify: %v, want %v", got.Code, want)
	d := w.read(LoadBalancer, old)
	endpoints := 1
	if works {
		endpoints = 2
	}
	if len(d.Endpoints()) != endpoints || d.VIPs()[0] != "10.96.1.1" {
		t.Errorf("after modify: %s, want %d endpoints", text(d), endpoints)
	}
}
