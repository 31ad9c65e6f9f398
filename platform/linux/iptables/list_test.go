// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/test/generate"
)

// widePort returns a port with n endpoints, those from first on.
func widePort(first, n int) *service.Port {
	p := &service.Port{
		Name: service.PortName{Namespace: "shop", Name: "wide", Protocol: service.TCP}, Family: service.IPv4,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.10"), Port: 80}},
	}
	for i := first; i < first+n; i++ {
		a := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(a, 8080)})
	}
	return p
}

func wide(generation uint64, p *service.Port) *service.Snapshot {
	return service.New(generation, wideNode, []*service.Port{p})
}

var wideNode = &service.Node{NodePorts: service.AnyAddress()}

// shares adds up the probability of each endpoint below a chain with probability
// share, and returns with how many rules a connection is compared at most.
func shares(t *testing.T, k *fake, chain string, share float64, all map[string]float64) (longest int) {
	t.Helper()
	left := share
	for n, r := range k.Tables[nat][chain] {
		w := packet.Split(r)
		to, below := targetOf(w), 0
		if to == markClusterChain {
			continue
		}
		p := left
		if text := packet.Argument(w, "--probability"); text != "" {
			f, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			p = left * f
		}
		if to == "DNAT" {
			all[packet.Argument(w, "--to-destination")] += p
		} else {
			below = shares(t, k, to, p, all)
		}
		left -= p
		longest = max(longest, n+1+below)
	}
	return longest
}

// Each endpoint of a list has the same probability, and a connection is compared with
// few rules.
func TestListShares(t *testing.T) {
	for _, n := range []int{1, 2, 64, 65, 80, 1000, 5000} {
		k := newFake()
		apply(t, newBackend(service.IPv4, k), wide(1, widePort(1, n)))
		all := map[string]float64{}
		longest := shares(t, k, portChainName(clusterPrefix, widePort(1, 1)), 1, all)
		if len(all) != n || longest > 120 {
			t.Errorf("%d endpoints: %d in the rules, %d rules for a connection", n, len(all), longest)
		}
		for to, p := range all {
			if math.Abs(p*float64(n)-1) > 1e-4 {
				t.Errorf("%d endpoints: %s has %g of the connections", n, to, p)
			}
		}
	}
}

// One of many endpoints that leaves or comes writes its branch and what leads there, and
// the tables are then those of a new process.
func TestListChange(t *testing.T) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		k := newFake()
		b := newBackend(service.IPv4, k)
		generation := uint64(0)
		// next applies a port and returns how many rules were written.
		next := func(first, n int) int {
			p := widePort(first, n)
			p.Affinity = affinity
			generation++
			apply(t, b, wide(generation, p))
			fresh := newFake()
			apply(t, newBackend(service.IPv4, fresh), wide(generation, p))
			if k.Text() != fresh.Text() {
				t.Fatalf("%d endpoints from %d, affinity %s: now\n%s\nnew process\n%s", n, first, affinity, k.Text(), fresh.Text())
			}
			return b.rules.Written[nat]
		}
		next(1, 1000)
		for _, n := range []int{999, 1000, 1001, 1000} {
			if written := next(1, n); written == 0 || written > 250 {
				t.Errorf("affinity %s: %d endpoints: %d rules written", affinity, n, written)
			}
		}
		for _, n := range []int{64, 65, 64, 2, 300, 0, 70, 0} {
			next(1, n)
		}
		next(1, 500)
		next(250, 500)
	}
}

// A list that no frontend uses any more leaves no branch.
func TestListOfOtherPolicy(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	p := widePort(1, 200)
	p.Local = p.Cluster
	local := *p
	local.Internal = service.PolicyLocal
	for i, q := range []*service.Port{p, &local, p} {
		apply(t, b, wide(uint64(i+1), q))
		fresh := newFake()
		apply(t, newBackend(service.IPv4, fresh), wide(1, q))
		if k.Text() != fresh.Text() {
			t.Fatalf("policy %d: now\n%s\nnew process\n%s", i, k.Text(), fresh.Text())
		}
	}
}

// Explain shows the endpoints of all branches as one draw.
func TestTraceList(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	want := wide(1, widePort(1, 200))
	apply(t, b, want)
	w, err := b.Trace(t.Context(), want, route.Conn{
		Protocol: service.TCP, From: netip.MustParseAddr("10.244.9.9"), To: netip.MustParseAddrPort("10.96.0.10:80"), Interface: "eth0",
	}, generate.IsNodeLocal)
	if err != nil || len(w.Faults) > 0 || len(w.Targets) != 200 {
		t.Fatalf("%d targets, faults %q, %v", len(w.Targets), w.Faults, err)
	}
	lists := slices.DeleteFunc(slices.Clone(w.Hops), func(h explain.Hop) bool { return !strings.HasPrefix(h.Does, "one of ") })
	if len(lists) != 1 || !strings.HasPrefix(lists[0].Does, "one of 200 endpoints: ") {
		t.Errorf("hops %+v", w.Hops)
	}
}
