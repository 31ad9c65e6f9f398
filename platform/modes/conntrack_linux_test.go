// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/kit"
)

// table is a table of conntrack with one entry.
type table struct {
	conntrack.Driver
	entry *conntrack.Flow
	err   error
}

func (t *table) Dump(_ context.Context, _ conntrack.Filter, each func(conntrack.Flow)) error {
	if t.entry != nil {
		each(*t.entry)
	}
	return t.err
}

func (t *table) Delete(context.Context, []conntrack.Flow) (int, error) {
	t.entry = nil
	return 1, nil
}

func (t *table) Local(context.Context, netip.Addr) (bool, error) { return true, nil }

// rules are a dataplane that holds the frontends of the latest plan, and those that an
// earlier process left.
type rules struct {
	reconcile.Backend
	left []*service.Port
	held []string
	out  reconcile.Outcome
}

type planned struct {
	reconcile.Plan
	out reconcile.Outcome
}

func (p planned) Outcome() reconcile.Outcome { return p.out }

func (r *rules) Plan(_ context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	r.held, r.out = nil, reconcile.Outcome{Removed: slices.Clone(r.left)}
	for p := range want.Ports(service.IPv4) {
		state := "refused"
		if len(p.Cluster) > 0 {
			state = "served"
		}
		for _, f := range p.Frontends {
			r.held = append(r.held, netip.AddrPortFrom(f.Addr, f.Port).String()+" "+state)
			r.out.Removed = slices.DeleteFunc(r.out.Removed, func(x *service.Port) bool { return x.Frontends[0].SameAddress(f) })
		}
	}
	slices.Sort(r.held)
	return planned{out: r.out}, nil
}

// portOf returns a Service port with one endpoint.
func portOf(name string, protocol service.Protocol, fronts ...string) *service.Port {
	p := &service.Port{Name: service.PortName{Namespace: "ns", Name: name, Protocol: protocol}, Cluster: []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.1:53")}}}
	for _, f := range fronts {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: netip.MustParseAddrPort(f).Addr(), Port: netip.MustParseAddrPort(f).Port()})
	}
	return p
}

// TestFrontendsRetire checks that a frontend for UDP is in the dataplane, and refuses, until
// its entries are deleted.
func TestFrontendsRetire(t *testing.T) {
	at := netip.MustParseAddrPort
	dns, web := portOf("dns", service.UDP, "10.96.0.1:53", "203.0.113.1:53"), portOf("web", service.TCP, "10.96.0.2:80")
	left := &service.Port{Name: service.PortName{Protocol: service.UDP}, Frontends: []service.Frontend{{Kind: service.ExternalIP, Addr: at("10.96.0.1:53").Addr(), Port: 53}}}
	const entry = "10.96.0.1:53"
	for name, tt := range map[string]struct {
		before, after []*service.Port
		left          []*service.Port
		incomplete    bool
		first, second []string // what the dataplane holds before and after the entries are deleted
	}{
		"Service deleted": {
			before: []*service.Port{dns, web}, after: nil,
			first: []string{"10.96.0.1:53 refused", "203.0.113.1:53 refused"}, second: nil,
		},
		"frontend removed": {
			before: []*service.Port{dns}, after: []*service.Port{portOf("dns", service.UDP, "203.0.113.1:53")},
			first: []string{"10.96.0.1:53 refused", "203.0.113.1:53 served"}, second: []string{"203.0.113.1:53 served"},
		},
		"another Service gets it": {
			before: []*service.Port{dns}, after: []*service.Port{portOf("new", service.UDP, "10.96.0.1:53", "203.0.113.1:53")},
			first: []string{"10.96.0.1:53 served", "203.0.113.1:53 served"}, second: []string{"10.96.0.1:53 served", "203.0.113.1:53 served"},
		},
		"left by an earlier process": {
			after: []*service.Port{web}, left: []*service.Port{left, portOf("", service.TCP, "10.96.0.9:80")},
			first: []string{"10.96.0.1:53 refused", "10.96.0.2:80 served"}, second: []string{"10.96.0.2:80 served"},
		},
		"not all is known": {before: []*service.Port{dns}, after: nil, incomplete: true},
	} {
		t.Run(name, func(t *testing.T) {
			x := &table{entry: &conntrack.Flow{Protocol: service.UDP, Dst: at(entry), ReplySrc: at("10.244.0.1:53")}}
			c := &conntrackCleaner{flows: &conntrack.Reconciler{Driver: x}}
			r := &rules{left: tt.left}
			b := retiring{r, c}
			node := &service.Node{}
			round := func(s *service.Snapshot) []string {
				_, err := b.Plan(t.Context(), s)
				kit.Must(t, err)
				return r.held
			}
			if tt.before != nil {
				s := service.New(1, node, tt.before)
				round(s)
				_, _, _ = c.Clean(t.Context(), reconcile.Result{Snapshot: s})
			}
			x.entry = &conntrack.Flow{Protocol: service.UDP, Dst: at(entry), ReplySrc: at("10.244.9.9:53")}
			after := service.New(2, node, tt.after)
			after.Incomplete = tt.incomplete
			for range 2 { // a round that failed is repeated
				got := round(after)
				kit.Need(t, slices.Equal(got, tt.first), "the dataplane holds %q before the entries are deleted, want %q", got, tt.first)
			}
			_, again, err := c.Clean(t.Context(), reconcile.Result{Snapshot: after, Outcome: r.out})
			kit.Need(t, err == nil && x.entry == nil && (again > 0) == !slices.Equal(tt.first, tt.second),
				"entry left: %v, again after %s, %v", x.entry, again, err)
			r.left = nil
			got := round(after)
			kit.Check(t, slices.Equal(got, tt.second), "the dataplane holds %q at last, want %q", got, tt.second)
		})
	}
}

// TestRetiringEnds checks that a frontend does not refuse for ever if entries cannot be
// deleted.
func TestRetiringEnds(t *testing.T) {
	web := portOf("web", service.TCP, "10.96.0.2:80")
	c := &conntrackCleaner{flows: &conntrack.Reconciler{Driver: &table{err: errors.ErrUnsupported}}}
	r := &rules{}
	b := retiring{r, c}
	for i, ports := range [][]*service.Port{{portOf("dns", service.UDP, "10.96.0.1:53")}, {web}, {web}} {
		s := service.New(uint64(i), &service.Node{}, ports)
		_, err := b.Plan(t.Context(), s)
		kit.Must(t, err)
		_, _, _ = c.Clean(t.Context(), reconcile.Result{Snapshot: s})
	}
	want := []string{"10.96.0.2:80 served"}
	kit.Check(t, slices.Equal(r.held, want), "the dataplane holds %q, want %q", r.held, want)
}
