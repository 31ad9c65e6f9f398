// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
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
				if strings.Contains(made, tt.want) == later || !strings.Contains(listed, tt.want) {
					t.Errorf("made:   %s\nlisted: %s\nwant %s", made, listed, tt.want)
				}
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
	if !slices.Equal(codes, []Code{PortNotFound, PortNotFound, OK}) {
		t.Errorf("load balancers with a pod that starts: %v", codes)
	}
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
		if err := w.Delete(Endpoint, w.pod); err != nil {
			t.Fatal(err)
		}
		if got := [2]int{len(w.Objects(LoadBalancer)), len(w.DanglingReferences())}; got != want {
			t.Errorf("%q: load balancers and dangling references %v, want %v", how, got, want)
		}
		if err := w.Delete(Network, w.network); err != nil {
			t.Fatal(err)
		}
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
	if !slices.Equal(codes, []Code{good, good, bad, bad, good, bad, bad}) {
		t.Errorf("writing calls: %v", codes)
	}

	w = newFixture(t, Options{Personality: Personality{GoesAfter: 3}})
	id, _ := w.create(LoadBalancer, "", balancer(w.pod))
	w.must("HcnDeleteLoadBalancer", id, 0)
	codes = nil
	for range 3 {
		_, code := w.create(LoadBalancer, "", balancer(w.pod))
		codes = append(codes, code)
	}
	if !slices.Equal(codes, []Code{PortExists, PortExists, OK}) {
		t.Errorf("after a deletion: %v", codes)
	}

	w = newFixture(t, Options{Personality: Personality{MeddlesEvery: 2}})
	var seen []int
	for range 6 {
		w.must("HcnEnumerateNetworks", "", 0, "{}")
		seen = append(seen, len(w.Objects(Endpoint)))
	}
	if !slices.Equal(seen, []int{1, 2, 2, 1, 1, 2}) {
		t.Errorf("endpoints: %v", seen)
	}
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
