// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// meeting records the elements and chains that a packet meets.
type meeting struct {
	ruleset
	elements []element
	chains   []string
}

func (m *meeting) rules(chain string) []packet.Rule {
	if !slices.Contains(m.chains, chain) {
		m.chains = append(m.chains, chain)
	}
	return m.ruleset.rules(chain)
}

func (m *meeting) element(s *set, key []byte) (element, bool) {
	e, found := m.ruleset.element(s, key)
	if found {
		e.in = s
		m.elements = append(m.elements, e)
	}
	return e, found
}

// Whatever a packet meets, Trace finds that it is missing or changed, and finds nothing
// before.
func TestTraceFindsTampering(t *testing.T) {
	cluster := func(w generate.Cluster) backendtest.Cluster { return w }
	backendtest.TraceTampering(t, cluster, func(w generate.Cluster, x *backendtest.Traced) func() {
		k := &fake{family: w.Family}
		b := &Backend{family: w.Family, options: Options{MasqueradeBit: 14}, driver: k}
		x.State = func() string { return fmt.Sprintf("%+v", k.table) }
		x.Follow = func(ctx context.Context) (*explain.Walk, error) {
			walk, err := b.Trace(ctx, x.Want, x.Conn, generate.IsNodeLocal)
			once := &Backend{family: w.Family, options: b.options, driver: k, readsOnce: true}
			if all, err := once.Trace(ctx, x.Want, x.Conn, generate.IsNodeLocal); err != nil || !reflect.DeepEqual(all, walk) {
				x.T.Errorf("with the whole table: %+v, error %v; with single elements: %+v", all, err, walk)
			}
			return walk, err
		}
		x.Hairpin = func(e service.Endpoint) bool { return hairpins(x.Want, x.Conn.From, e, b.family) }
		apply(x.T, b, x.Want)
		return func() { tamperOnPath(x, k) }
	})
}

func tamperOnPath(x *backendtest.Traced, k *fake) {
	x.RequireAgreement()
	m := &meeting{ruleset: world{k.table, k.family}}
	trace(m, k.family, x.Conn, generate.IsNodeLocal)
	whole := k.table
	for _, name := range m.chains {
		k.table = whole.clone()
		k.table.chains[name].rules = append(k.table.chains[name].rules, rule{verdict{code: verdictAccept}})
		x.RequireNamed("chain " + name + " has ")
	}
	for _, e := range m.elements {
		k.table = whole.clone()
		s := k.table.sets[e.in.name]
		delete(s.elements, elementKey(e))
		if found := x.Look(); found.Verdict != explain.Differ {
			x.T.Errorf("%+v: an element of %s is gone (%s), found %s", x.Conn, e.in.name, e.text(k.family), found.Verdict)
		}
	}
	k.table = whole
}

func TestTraceWithoutTable(t *testing.T) {
	want := service.New(1, &service.Node{}, nil)
	b := &Backend{family: service.IPv4, driver: &fake{}}
	w, err := b.Trace(context.Background(), want, route.Conn{To: addrPort("10.96.0.1:80")}, generate.IsNodeLocal)
	if err != nil || len(w.Faults) != 1 || w.Faults[0] != "there is no table ip kube-services" {
		t.Errorf("walk %+v, error %v", w, err)
	}
}

// A range of addresses holds its first and its last one.
func TestTraceInterval(t *testing.T) {
	s := &set{name: sources.name, interval: true}
	r := &expectedRuleset{elements: map[string]map[string]element{s.name: {"": {key: []byte{10, 0}, end: []byte{10, 9}}}}}
	for key, want := range map[[2]byte]bool{{9, 255}: false, {10, 0}: true, {10, 5}: true, {10, 9}: true, {10, 10}: false} {
		if _, found := r.element(s, key[:]); found != want {
			t.Errorf("%v is found: %t, want %t", key, found, want)
		}
	}
}

// What a packet meets by the address that the client dialled, by a NodePort or by its own address
// is compared.
func TestTraceCompares(t *testing.T) {
	cluster := netip.MustParseAddr("10.96.0.1")
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP}, Affinity: time.Hour,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: cluster, Port: 80, Sources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, {Kind: service.NodePort, Port: 30080}},
		Cluster:   []service.Endpoint{{Addr: addrPort("10.244.1.1:8080")}, {Addr: addrPort("10.244.1.2:8080")}, {Addr: addrPort("10.244.1.3:8080")}}}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{p})
	direct := addrPort("10.244.1.9:8080")
	for _, x := range []struct {
		in       *set
		from, to netip.AddrPort
	}{
		{affinity, direct, addrPort("10.96.0.1:80")}, {memberSet(p, service.PolicyCluster), direct, addrPort("10.96.0.1:80")},
		{sources, direct, addrPort("10.96.0.1:80")}, {clusterIPs, direct, addrPort("10.96.0.1:81")},
		{nodePorts, direct, addrPort("192.0.2.10:30080")}, {hairpin, p.Cluster[1].Addr, p.Cluster[1].Addr},
	} {
		k := &fake{}
		b := &Backend{driver: k}
		apply(t, b, want)
		elements := k.table.sets[x.in.name].elements
		for key, e := range elements {
			delete(elements, key)
			if e.end != nil { // a larger range
				e.end = append(slices.Clone(e.end[:len(e.end)-4]), 10, 255, 255, 255)
				elements[elementKey(e)] = e
			}
		}
		c := route.Conn{Protocol: service.TCP, From: x.from.Addr(), Interface: "veth0", To: x.to}
		w, err := b.Trace(context.Background(), want, c, func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.10") })
		if err != nil || len(w.Faults) == 0 || !strings.HasPrefix(w.Faults[0], x.in.name+" lacks the element ") {
			t.Errorf("without elements of %s: walk %+v, error %v", x.in.name, w, err)
		}
	}
}
