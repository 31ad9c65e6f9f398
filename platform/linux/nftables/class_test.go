// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

func TestClassOf(t *testing.T) {
	for n, want := range map[int]uint32{
		1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 16: 16, 17: 32,
		1000: 1024, 1024: 1024, 1025: 2048, 65535: maxClass, 65536: maxClass,
	} {
		if got := classOf(n); got != want {
			t.Errorf("classOf(%d) = %d, want %d", n, got, want)
		}
	}
}

// shares computes from slotModuli the share of connections that each of n endpoints gets,
// and the share that gets no endpoint.
func shares(n int) (each []*big.Rat, none *big.Rat) {
	none = big.NewRat(1, 1)
	for range n {
		each = append(each, new(big.Rat))
	}
	for _, mod := range slotModuli(classOf(n)) {
		slot := new(big.Rat).Mul(none, big.NewRat(1, int64(mod)))
		for i := range min(n, int(mod)) {
			each[i].Add(each[i], slot)
			none = new(big.Rat).Sub(none, slot)
		}
	}
	return each, none
}

// Every endpoint gets its share within half a percent, and every connection gets an
// endpoint.
func TestDrawsAreFair(t *testing.T) {
	for n := 1; n <= 40; n++ {
		wantFair(t, n)
	}
	for _, n := range []int{100, 128, 129, 1000, 1025, 5000} {
		wantFair(t, n)
	}
}

func wantFair(t *testing.T, n int) {
	t.Helper()
	each, none := shares(n)
	if none.Sign() != 0 {
		t.Errorf("%d endpoints: %s of the connections reach none", n, none.FloatString(6))
	}
	for i, share := range each {
		off := new(big.Rat).Mul(share, big.NewRat(int64(n), 1))
		off.Sub(off, big.NewRat(1, 1))
		if off.Abs(off).Cmp(big.NewRat(5, 1000)) > 0 {
			t.Errorf("%d endpoints: endpoint %d gets %s of the connections, want 1/%d within 0.5 %%", n, i, share.FloatString(6), n)
		}
	}
}

// Endpoints that fill their class get exactly equal shares.
func TestFullClassesAreExact(t *testing.T) {
	for n := 1; n <= 256; n *= 2 {
		each, _ := shares(n)
		for i, share := range each {
			if share.Cmp(big.NewRat(1, int64(n))) != 0 {
				t.Errorf("%d endpoints: endpoint %d gets %s", n, i, share)
			}
		}
	}
}

func TestClassSets(t *testing.T) {
	var a, b classes
	a.add(pickAddr, 4)
	a.add(pickAddr, 16)
	a.add(pickInternal, 1)
	b.add(pickAddr, 16)
	b.add(pickNodePort, 2)
	for name, tt := range map[string]struct{ want, got classes }{
		"union":           {classes{0b10100, 0b10, 0b1, 0}, a.union(b)},
		"without":         {classes{0b100, 0, 0b1, 0}, a.without(b)},
		"nothing without": {classes{}, classes{}.without(a)},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	names := func(c classes) []string {
		var names []string
		for _, x := range c.chains(Options{}) {
			names = append(names, x.name)
		}
		return names
	}
	want := []string{
		"pick-4", "cluster-4", "external-4", "pick-16", "cluster-16", "external-16", "internal-pick-1",
	}
	if diff := cmp.Diff(want, names(a)); diff != "" {
		t.Errorf("chains (-want +got):\n%s", diff)
	}
	var most classes
	most.add(pickNodePortInternal, maxClass)
	most.add(pickNodePort, maxClass)
	if diff := cmp.Diff([]string{"nodeport-pick-65536", "nodeport-external-65536", "nodeport-internal-pick-65536"}, names(most)); diff != "" {
		t.Errorf("largest chains (-want +got):\n%s", diff)
	}
}

// The chains that mark continue in the chain that picks.
func TestPickerChains(t *testing.T) {
	var b strings.Builder
	for _, c := range pickAddr.chains(4, Options{MasqueradeBit: 14}) {
		b.WriteString(c.text(service.IPv4))
	}
	draw := "\t\tdnat ip to ip daddr . meta l4proto . th dport . numgen random mod 4 map @endpoints\n"
	want := "\tchain pick-4 {\n" + strings.Repeat(draw, 4) + strings.Replace(draw, "mod 4", "mod 2", 1) + "\t}\n" +
		"\tchain cluster-4 {\n\t\tjump mark-unless-pod\n\t\tgoto pick-4\n\t}\n" +
		"\tchain external-4 {\n\t\tmeta mark set meta mark | 0x00004000\n\t\tgoto pick-4\n\t}\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A Port needs a class for each list that one of its frontends may use.
func TestNeededClasses(t *testing.T) {
	eps := func(n int) []service.Endpoint {
		return slices.Repeat([]service.Endpoint{{Addr: addrPort("10.244.1.1:80")}}, n)
	}
	all := []service.Frontend{{Kind: service.ClusterIP}, {Kind: service.NodePort}, {Kind: service.ExternalIP}}
	for name, tt := range map[string]struct {
		port service.Port
		want classes
	}{
		"ClusterIP only":       {service.Port{Frontends: all[:1], Cluster: eps(33)}, classes{1 << 6, 0, 0, 0}},
		"every kind":           {service.Port{Frontends: all, Cluster: eps(33)}, classes{1 << 6, 1 << 6, 0, 0}},
		"external Local":       {service.Port{Frontends: all, Cluster: eps(33), Local: eps(5), External: service.PolicyLocal}, classes{1<<6 | 1<<3, 1 << 3, 1 << 6, 1 << 6}},
		"external Local, none": {service.Port{Frontends: all, Cluster: eps(2), External: service.PolicyLocal}, classes{1 << 1, 0, 1 << 1, 1 << 1}},
		"internal Local":       {service.Port{Frontends: all, Cluster: eps(33), Local: eps(5), Internal: service.PolicyLocal}, classes{1<<6 | 1<<3, 1 << 6, 0, 0}},
		"affinity":             {service.Port{Frontends: all, Cluster: eps(33), Affinity: 1}, classes{}},
		"no endpoint":          {service.Port{Frontends: all}, classes{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, (layout{port: &tt.port}).neededClasses()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
