// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// adopt lets a new backend take over what k holds. It applies and returns its plan.
func adopt(t *testing.T, k *fake, want *service.Snapshot) string {
	t.Helper()
	p := planNow(t, &Backend{family: k.family, driver: k}, want)
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Errorf("Apply: %v", err)
	}
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
			if got := strings.HasPrefix(plan, "- table kube-services\n+ table kube-services\n"); got != tt.replace {
				t.Errorf("replaced = %v, want %v by\n%s", got, tt.replace, plan)
			}
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
	if got := summary(adopt(t, k, want)); got != "-services +services" {
		t.Errorf("plan = %q, want the element replaced", got)
	}
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
	clients := k.table.sets[clientSet(p, clusterList, 8080).name]
	client, at := addr("192.0.2.7").AsSlice(), addr("10.244.1.2").AsSlice()
	clients.elements[string(client)] = element{in: clients.set, key: client, value: at}
	if plan := adopt(t, k, cart); plan != "" {
		t.Errorf("plan = %q, want none for a client", plan)
	}
	gone := adopt(t, k, simple(1))
	for name := range k.table.sets {
		if !slices.ContainsFunc(baseSets, func(s *set) bool { return s.name == name }) {
			t.Errorf("set %s is left of\n%s", name, gone)
		}
	}
	for name := range k.table.chains {
		if strings.HasPrefix(name, "affinity-") || strings.HasPrefix(name, "remember-") {
			t.Errorf("chain %s is left of\n%s", name, gone)
		}
	}
}
