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
				if pod := text(w.read(Endpoint, w.pod)); strings.Contains(pod, tt.want) {
					t.Errorf("another program's endpoint: %s", pod)
				}
			})
		}
	}
}

func TestPersonalityOfEndpoints(t *testing.T) {
	w := newFixture(t, Options{Personality: Personality{PlainNames: true, LastAddress: true, OneAddress: true, StrictPolicies: true, PlugsAfter: 3}})
	id, _ := w.create(Endpoint, w.network, Document{})
	if got := w.read(Endpoint, id).IPs()[0]; got != netip.MustParseAddr("10.244.3.254") {
		t.Errorf("HNS chose %s", got)
	}
	if _, code := w.create(Endpoint, w.network, Document{"Name": "fd00::1"}); code != InvalidParameter {
		t.Errorf("a name with colons: %v", code)
	}
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
		if o := w.Objects(LoadBalancer); len(o) != 1 || o[0].ID() == id {
			t.Errorf("%q: after a restart: %v, want another identity than %s", how, o, id)
		}
		kit.Must(t, w.Delete(Endpoint, w.pod))
		if got := [2]int{len(w.Objects(LoadBalancer)), len(w.DanglingReferences())}; got != want {
			t.Errorf("%q: load balancers and dangling references %v, want %v", how, got, want)
		}
		kit.Must(t, w.Delete(Network, w.network))
		if n := len(w.Objects(LoadBalancer)); (n > 0) != (how == Dangle) {
			t.Errorf("%q: %d load balancers outlive the network", how, n)
		}
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
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestFindPersonality(t *testing.T) {
	for _, p := range Personalities() {
		if got, err := FindPersonality(p.Name); err != nil || got.Version != p.Version {
			t.Errorf("%q: %v, %v", p.Name, got, err)
		}
	}
	if _, err := FindPersonality("angry"); err == nil {
		t.Error("found one that does not exist")
	}
}

func TestEndpoints(t *testing.T) {
	w := newFixture(t, Options{})
	if _, code := w.create(Endpoint, w.network, remote("10.244.7.11")); code != OK {
		t.Fatal(code)
	}
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
		if _, got := w.create(Endpoint, w.network, tc.doc); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
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
	if got := slices.Concat(a.IPs(), b.IPs()); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.244.3.2"), netip.MustParseAddr("10.244.3.3")}) {
		t.Errorf("addresses %v", got)
	}
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
		if _, code := w.create(Endpoint, bridge, doc); code != OK {
			t.Errorf("%s: %v", name, code)
		}
	}
}

func TestLoadBalancers(t *testing.T) {
	w := newFixture(t, Options{Version: Version{11, 10}})
	six := added(t)(w.AddNetwork(NetworkConfig{Name: "six", Type: "L2Bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("fd00:3::/64")}}))
	pod6 := added(t)(w.AddPod("six", "pod6", netip.MustParseAddr("fd00:3::5")))
	starting := added(t)(w.AddPod("vxlan0", "starting"))
	if err := w.Detach(starting); err != nil || six == "" {
		t.Fatal(err)
	}
	w.Hold(6, 30080)
	if _, code := w.create(LoadBalancer, "", balancer(w.pod)); code != OK {
		t.Fatal(code)
	}
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
		if _, got := w.create(LoadBalancer, "", tc.doc); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
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
	if code := w.call("HcnDeleteLoadBalancer", first, 0).Code; code != OK {
		t.Fatal(code)
	}
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
				if _, got := w.create(LoadBalancer, "", d); got != want {
					t.Errorf("%s: %v, want %v", name, got, want)
				}
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
	if _, err := ParseVersion("13"); err == nil || !strings.Contains(err.Error(), "13.3") {
		t.Errorf("ParseVersion(13): %v", err)
	}
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
	if got := w.call("HcnModifyLoadBalancer", "", h, text(doc)); got.Code != want {
		t.Errorf("modify: %v, want %v", got.Code, want)
	}
	d := w.read(LoadBalancer, old)
	endpoints := 1
	if works {
		endpoints = 2
	}
	if len(d.Endpoints()) != endpoints || d.VIPs()[0] != "10.96.1.1" {
		t.Errorf("after modify: %s, want %d endpoints", text(d), endpoints)
	}
}
