// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// boundTo has listeners at an address of the node.
func boundTo(a netip.Addr, r userspace.Range) userspace.Options {
	o := userspace.Options{Ports: r}
	o.Listen[service.FamilyOf(a)] = a
	return o
}

// newBound returns a site whose listeners are at the node's address.
func newBound(f service.Family, tables *xtables.System) *relayNode {
	return newSiteWith(f, tables, boundTo(generate.NodeAddr[f], userspace.Range{First: 20000, Last: 20999}))
}

// drawBound draws where listeners are: at their own address or one of the node's.
func drawBound(w generate.Cluster) userspace.Options {
	return [...]userspace.Options{
		{},
		boundTo(generate.NodeAddr[w.Family], userspace.Range{First: 20000, Last: 20999}),
		boundTo(generate.NodeAddr[w.Family], userspace.Range{First: 20500, Last: 21999}),
		boundTo(generate.OtherNodeAddr[w.Family], userspace.Range{First: 20000, Last: 20999}),
	}[w.DrawInt("bound", 4)]
}

// wantGuard wants the rules that guard listeners to be for at alone, which is invalid
// for their own address.
func wantGuard(t interface{ Fatalf(string, ...any) }, tables *xtables.System, at netip.Addr) {
	found, want := 0, 2
	if at.IsValid() {
		want = 3
	}
	for line := range strings.Lines(tables.Text()) {
		if strings.HasSuffix(line, "-j KUBE-PORTALS\n") {
			found++
			if strings.Contains(line, "port ") != at.IsValid() || at.IsValid() && !strings.Contains(line, at.String()+"/") {
				t.Fatalf("a rule for listeners that are not there: %s", line)
			}
		}
	}
	if found != want {
		t.Fatalf("%d rules guard listeners, want %d:\n%s", found, want, tables.Text())
	}
}

// portsOf are of a Service that is served, one that is not, and one with a check.
func portsOf(f service.Family) []*service.Port {
	endpoint := []service.Endpoint{{Addr: netip.AddrPortFrom(generate.OtherNodeAddr[f].Next(), 8080)}}
	port := func(name string, nodePort uint16, to []service.Endpoint) *service.Port {
		return &service.Port{
			Name: service.PortName{Namespace: "shop", Name: name, Protocol: service.TCP}, Family: f,
			Frontends: []service.Frontend{{Kind: service.NodePort, Port: nodePort}}, Cluster: to,
		}
	}
	checked := port("checked", 30082, endpoint)
	checked.External, checked.HealthCheck = service.PolicyLocal, 20002
	return []*service.Port{port("at", 30080, endpoint), port("idle", 20001, nil), checked}
}

// TestBoundGuard wants nobody at a listener but who was led there, and nothing else
// that the node does to be touched. A NodePort that is refused may have its number.
func TestBoundGuard(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			tables := xtables.New(nil)
			s := newSiteWith(f, tables, boundTo(generate.NodeAddr[f], userspace.Range{First: 20001, Last: 20002}))
			defer s.Close()
			opened := 0
			s.refuse = func() bool {
				opened++
				wantGuard(t, tables, generate.NodeAddr[f])
				return false
			}
			p, err := s.Plan(t.Context(), service.New(1, &service.Node{NodePorts: service.AnyAddress()}, portsOf(f)))
			if err == nil {
				err = p.Apply(t.Context()).Err
			}
			if err != nil || opened == 0 {
				t.Fatalf("%d listeners: %v", opened, err)
			}
			for port, want := range map[uint16]route.Action{30080: route.Forward, 20001: route.Reject, 20002: route.Drop, 20003: route.Pass, 22: route.Pass} {
				judgeBound(t, tables, netip.AddrPortFrom(generate.NodeAddr[f], port), want)
			}
		})
	}
}

// judgeBound dials from outside.
func judgeBound(t *testing.T, tables *xtables.System, to netip.AddrPort, want route.Action) {
	t.Helper()
	c := route.Conn{From: generate.OtherNodeAddr[service.FamilyOf(to.Addr())].Next(), Interface: "eth0", Protocol: service.TCP, ToNode: true, To: to}
	if got := tables.Trace(c, generate.IsNodeLocal); got.Action != want {
		t.Errorf("to %s: %v, want %v\n%s", to, got.Action, want, tables.Text())
	}
}

// TestBoundNeedsGuard opens no listener that cannot be guarded, and does so when it can.
func TestBoundNeedsGuard(t *testing.T) {
	tables := xtables.New(nil)
	s := newBound(service.IPv4, tables)
	defer s.Close()
	s.refuse = func() bool {
		t.Error("a listener opens")
		return true
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, portsOf(service.IPv4))
	apply := func() error {
		p, err := s.Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		return p.Apply(t.Context()).Err
	}
	tables.Refuse = func(string) error { return errInjected }
	if err := apply(); err == nil || !strings.Contains(err.Error(), "guard the listeners at "+generate.NodeAddr[service.IPv4].String()) {
		t.Errorf("Apply = %v", err)
	}
	tables.Refuse = nil
	s.refuse = func() bool { return false }
	if err := apply(); err != nil {
		t.Error(err)
	}
}
