// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// adopt lets a new backend take over what k holds. It applies and returns its plan.
func adopt(t *testing.T, k *fake, want *service.Snapshot) string {
	t.Helper()
	p := planNow(t, &Backend{family: k.family, driver: k}, want)
	err := p.Apply(context.Background()).Err
	kit.Check(t, err == nil, "Apply: %v", err)
	wantUpToDate(t, k, want)
	return p.Changes().String()
}

// An incompatible table is replaced with everything it needs in one transaction. Any
// other table is repaired.
func TestIncompatibleTables(t *testing.T) {
	want := simple(2)
	for name, tt := range map[string]struct {
		spoil   func(*fakeTable)
		replace bool
	}{
		"a map is another kind": {func(x *fakeTable) {
			x.sets["services"].set = &set{name: "services", kind: targetMap, key: addrKey}
		}, true},
		"a map has other keys": {func(x *fakeTable) {
			x.sets["endpoints"].set = &set{name: "endpoints", kind: targetMap, key: slotKey}
		}, true},
		"a set is no interval": {func(x *fakeTable) {
			x.sets["sources"].set = &set{name: "sources", key: sources.key}
		}, true},
		"a set expires": {func(x *fakeTable) {
			x.sets["cluster-ips"].set = &set{name: "cluster-ips", key: clusterIPs.key, timeout: time.Second}
		}, true},
		"a base chain hangs elsewhere": {func(x *fakeTable) {
			x.chains["prerouting"].hook = &hook{name: "prerouting", priority: 0}
		}, true},
		"a base chain has another type": {func(x *fakeTable) {
			x.chains["output"].hook = &hook{name: "output", priority: dstNAT, filter: true}
		}, true},
		"a base chain hangs nowhere":       {func(x *fakeTable) { x.chains["input"].hook = nil }, true},
		"another chain hangs where it may": {func(x *fakeTable) { x.chains["x"] = &fakeChain{hook: &hook{name: "input", priority: 7}} }, false},
		"rules are gone":                   {func(x *fakeTable) { x.chains[dispatchChain].rules = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{}
			apply(t, &Backend{driver: k}, want)
			tt.spoil(k.table)
			plan := adopt(t, k, want)
			got := strings.HasPrefix(plan, "- table kube-services\n+ table kube-services\n")
			kit.Check(t, got == tt.replace, "replaced = %v, want %v by\n%s", got, tt.replace, plan)
		})
	}
}

// A plan repairs altered comments.
func TestCommentsAreRepaired(t *testing.T) {
	k := &fake{}
	want := simple(1)
	apply(t, &Backend{driver: k}, want)
	for key, e := range k.table.sets["services"].elements {
		e.comment = "shop/of-old"
		k.table.sets["services"].elements[key] = e
	}
	got := summary(adopt(t, k, want))
	kit.Check(t, got == "-services +services", "plan = %q, want the element replaced", got)
}

// Endpoints keep their slots across a restart, whichever frontend shows them.
func TestAdoptionKeepsSlots(t *testing.T) {
	all := []service.Frontend{
		{Kind: service.ClusterIP, Addr: addr("10.96.0.9"), Port: 80},
		{Kind: service.NodePort, Port: 30080},
		{Kind: service.ExternalIP, Addr: addr("198.51.100.9"), Port: 80},
	}
	for name, p := range map[string]service.Port{
		"ClusterIP":            {Frontends: all[:1]},
		"ClusterIP, Local":     {Frontends: all[:1], Internal: service.PolicyLocal},
		"ClusterIP, affinity":  {Frontends: all[:1], Affinity: time.Hour},
		"NodePort":             {Frontends: all[1:2]},
		"NodePort, Local":      {Frontends: all[1:2], External: service.PolicyLocal},
		"ExternalIP":           {Frontends: all[2:]},
		"ExternalIP, Local":    {Frontends: all[2:], External: service.PolicyLocal},
		"all":                  {Frontends: all},
		"all, Local":           {Frontends: all, Internal: service.PolicyLocal, External: service.PolicyLocal},
		"all, Local, affinity": {Frontends: all, Internal: service.PolicyLocal, External: service.PolicyLocal, Affinity: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{}
			b := &Backend{driver: k}
			for _, letters := range []string{"abcd", "bcde", "cdef"} {
				next := p
				next.Name = service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}
				next.Cluster, next.Local = letterEndpoints(letters), letterEndpoints(letters[:3])
				apply(t, b, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{&next}))
			}
			wantUpToDate(t, k, b.have.snapshot)
		})
	}
}

// Extraneous chains, sets and elements are deleted. Clients maps keep their elements.
func TestExtraneousObjectsAreDeleted(t *testing.T) {
	k := &fake{}
	cart := sticky(service.IPv4, 2, 3)
	apply(t, &Backend{driver: k}, cart)
	p := cart.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP})
	clients := k.table.sets[clientSet(p, service.PolicyCluster, 8080).name]
	client, at := addr("192.0.2.7").AsSlice(), addr("10.244.1.2").AsSlice()
	clients.elements[string(client)] = element{in: clients.set, key: client, value: at}
	plan := adopt(t, k, cart)
	kit.Check(t, plan == "", "plan = %q, want none for a client", plan)
	gone := adopt(t, k, simple(1))
	for name := range k.table.sets {
		kit.Check(t, slices.ContainsFunc(baseSets, func(s *set) bool { return s.name == name }),
			"set %s is left of\n%s", name, gone)
	}
	for name := range k.table.chains {
		kit.Check(t, !strings.HasPrefix(name, "affinity-") && !strings.HasPrefix(name, "remember-"),
			"chain %s is left of\n%s", name, gone)
	}
}

// Objects of another kind have wanted names.
func TestIncompatibleObjectsAreReplaced(t *testing.T) {
	sticky := *simple(1).Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-000", Protocol: service.TCP})
	sticky.Affinity = time.Hour
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{&sticky})
	spoil := map[string]func(*fakeTable){
		"base set":            func(x *fakeTable) { x.sets["services"].set = hairpin },
		"base chain":          func(x *fakeTable) { x.chains["output"].hook = &hook{name: "input", priority: srcNAT} },
		"a Service's own set": func(x *fakeTable) { x.sets[memberSet(&sticky, service.PolicyCluster).name].set = hairpin },
		"a Service's own chain": func(x *fakeTable) {
			x.chains[objectName("affinity", service.PolicyCluster, sticky.Name)].hook = &hook{name: "output", priority: dstNAT}
		},
	}
	for name, do := range spoil {
		t.Run(name, func(t *testing.T) {
			k := &fake{}
			apply(t, &Backend{driver: k}, want)
			do(k.table)
			b := &Backend{driver: k}
			apply(t, b, want)
			fresh := &fake{}
			apply(t, &Backend{driver: fresh}, want)
			for n, s := range fresh.table.sets {
				if got := k.table.sets[n]; got == nil || got.spec(service.IPv4) != s.spec(service.IPv4) || len(got.elements) != len(s.elements) {
					t.Errorf("set %s is not as in a new table", n)
				}
			}
			for n, c := range fresh.table.chains {
				got := k.table.chains[n]
				kit.Check(t, got != nil && got.hook.spec() == c.hook.spec(), "chain %s is not as in a new table", n)
			}
		})
	}
}

// The stored parts of an element are enough to delete, compare and print it.
func TestObservedElements(t *testing.T) {
	for name, e := range map[string]element{
		"a key":           {in: hairpin, key: []byte("key")},
		"an address":      {in: endpoints, key: []byte("key"), value: []byte("value")},
		"a verdict":       {in: services, key: []byte("key"), verdict: gotoVerdict("pick-2"), comment: "shop/web"},
		"a drop":          {in: services, key: []byte("key"), verdict: verdict{code: verdictDrop}},
		"a range":         {in: sources, key: []byte("from"), end: []byte("upto")},
		"all":             {in: services, catchAll: true, verdict: verdict{code: verdictDrop}},
		"with expression": {in: hairpin, key: []byte("key"), expressions: true},
	} {
		s := newObservedSet(setSpec{})
		kit.Check(t, s.put(e) && !s.put(e), "%s: put does not say what is new", name)
		got, found := s.get(elementKey(e))
		got.in = e.in
		kit.Check(t, found && got.compare(e) == 0 && got.same(e) && got.catchAll == e.catchAll && s.elements[elementKey(e)].same(e),
			"%s: %+v is kept as %+v", name, e, got)
		e.comment += "x"
		kit.Check(t, !s.elements[elementKey(e)].same(e), "%s: another comment is the same", name)
	}
	if _, found := newObservedSet(setSpec{}).get("key"); found {
		t.Error("an empty set has an element")
	}
}

// TestChangedElements checks that changedElements leads to the same changes as elements,
// for Ports of all routes.
func TestChangedElements(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(kinds []service.Kind, internal, external service.Policy) *service.Port {
		p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Internal: internal, External: external}
		for i, k := range kinds {
			f := service.Frontend{Kind: k, Port: uint16(80 + i)}
			if k != service.NodePort {
				f.Addr = netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})
			}
			p.Frontends = append(p.Frontends, f)
		}
		for i := range r.IntN(8) {
			if e := (service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 8080)}); r.IntN(3) > 0 {
				p.Cluster = append(p.Cluster, e)
				if r.IntN(2) > 0 {
					p.Local = append(p.Local, e)
				}
			}
		}
		return p
	}
	kinds := []service.Kind{service.ClusterIP, service.NodePort, service.ExternalIP, service.LoadBalancerIP}
	policies := []service.Policy{service.PolicyCluster, service.PolicyLocal}
	sameRouted := 0
	for range 5000 {
		some := kinds[:1+r.IntN(len(kinds))]
		internal, external := policies[r.IntN(2)], policies[r.IntN(2)]
		from := layout{}.next(draw(some, internal, external))
		to := from.next(draw(some, internal, external))
		if r.IntN(9) == 0 {
			to = from.next(draw(some, policies[r.IntN(2)], policies[r.IntN(2)]))
		}
		if sameRoutes(from.port, to.port) {
			sameRouted++
		}
		got, want := portOps(from, to, Options{}), appendAffinityChanges(appendElements(nil, from.elements(), to.elements()), from.port, to.port, Options{})
		kit.Need(t, reflect.DeepEqual(got, want), "from %+v to %+v:\n%v, want\n%v", from.port, to.port, got, want)
	}
	kit.Check(t, sameRouted >= 1000, "only %d pairs have the same routes", sameRouted)
}
