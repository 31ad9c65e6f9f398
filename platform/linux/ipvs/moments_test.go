// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/world"
)

// Virtual servers and the table beside cannot change in one moment. What a
// connection meets in between must be what one of the two snapshots wants of
// it, or at least be answered.

// settled has the endpoints of ports be where their address says, in all
// snapshots, and Local be those of this node, as it is with real Services.
func settled(ports []*service.Port) []*service.Port {
	place := func(list []service.Endpoint) []service.Endpoint {
		for i := range list {
			a := list[i].Addr.Addr().AsSlice()
			list[i].Local = a[len(a)-1]%2 == 0
			list[i].Elsewhere = !list[i].Local
		}
		return list
	}
	for _, p := range ports {
		elsewhere := func(e service.Endpoint) bool { return e.Elsewhere }
		p.Cluster, p.Local = place(p.Cluster), slices.DeleteFunc(place(p.Local), elsewhere)
		if p.Internal == service.PolicyCluster && p.External == service.PolicyCluster {
			p.Local = nil
		} else if here := slices.DeleteFunc(slices.Clone(p.Cluster), elsewhere); len(here) > 0 {
			p.Local = here
		}
	}
	return ports
}

// moment judges one connection at one moment between two snapshots.
type moment struct {
	conn          route.Conn
	before, after route.Verdict
	ports         [2][]*service.Port
}

// has finds the endpoint at a that the Service has before, or after.
func (m moment) has(a netip.AddrPort, after int) (service.Endpoint, bool) {
	for _, p := range m.ports[after] {
		if !ofService(m.before.Port, p) && !ofService(m.after.Port, p) {
			continue
		}
		all := slices.Concat(p.Cluster, p.Local)
		if i := slices.IndexFunc(all, func(e service.Endpoint) bool { return e.Addr == a }); i >= 0 {
			return all[i], true
		}
	}
	return service.Endpoint{}, false
}

// ofService reports that p, if there is one, and q are of one Service.
func ofService(p, q *service.Port) bool { return p != nil && p.Name.Name == q.Name.Name }

// wrong says what is wrong with what becomes of m's connection, "" if nothing is.
// reached says that what no virtual server takes is the node's.
func (m moment) wrong(got outcome, reached bool) string {
	forwards := func(v route.Verdict) bool { return v.Action == route.Forward }
	switch {
	case got.action == route.Forward && !forwards(m.before) && !forwards(m.after):
		return "nobody should answer it"
	case got.action != route.Forward && forwards(m.before) && forwards(m.after):
		return "nobody answers it"
	case got.action == route.Pass && reached:
		return "a program that listens on all addresses of the node would get it"
	}
	for _, a := range got.targets {
		if text := m.wrongTarget(a, got.masq[a]); text != "" {
			return text
		}
	}
	return ""
}

// wrongTarget is about one of the endpoints that may answer. One that comes or
// leaves may miss its own answers.
func (m moment) wrongTarget(a netip.AddrPort, masq bool) string {
	known, fine, itself, outside := 0, masq, a.Addr() == m.conn.From, m.conn.Interface == "eth0"
	for i, v := range []route.Verdict{m.before, m.after} {
		if e, found := m.has(a, i); found {
			known++
			fine = fine || !itself && (e.Local || !outside) || v.Action == route.Forward && !v.Masquerades(e)
		}
	}
	switch {
	case known == 0:
		return "an endpoint answers that the Service never had"
	case fine, itself && known == 1:
		return ""
	}
	return "the endpoint's answer does not come through this node"
}

func TestEveryMomentBetweenSnapshots(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { betweenSnapshots(t, f) }) })
	}
}

func betweenSnapshots(t *rapid.T, f service.Family) {
	w := world.World{T: t, Family: f}
	k := newFake(f)
	b := newBackend(f, k, Options{MasqueradeBit: 14})
	rules, node := b.rules.(*fakeRules), w.Node()
	apply(t, b, service.New(0, node, settled(w.Ports())))
	k.connectAny(w) // so that something drains
	ports, later := settled(w.Ports()), settled(w.Ports())
	snapshots := [2]*service.Snapshot{service.New(1, node, ports), service.New(2, node, later)}
	apply(t, b, snapshots[0])
	k.clock = k.clock.Add(time.Duration(w.Pick("time", 8)) * time.Second)
	k.connectAny(w)
	var moments []moment
	for range 10 {
		c := w.Conn(append(ports, later...))
		moments = append(moments, moment{c, route.Decide(snapshots[0], c), route.Decide(snapshots[1], c), [2][]*service.Port{ports, later}})
	}
	tables := map[*service.Snapshot]*beside{}
	look := func(next op) error {
		if tables[rules.held] == nil {
			tables[rules.held] = besideOf(t, f, rules.held)
		}
		for _, m := range moments {
			if _, ours := k.routes[m.conn.From]; ours {
				continue // nobody else can have that source: the kernel drops such packets
			}
			x := newTracer(tables[rules.held], k, m.conn, world.NodeLocal)
			got := x.run(k)
			_, reached := k.routes[x.conn.To.Addr()]
			if text := m.wrong(got, reached); text != "" {
				t.Fatalf("%s: %+v: %+v\nbefore: %s\nafter:  %s\nrules are of %d, next is %s\n%v", text, m.conn, got, m.before.Reason, m.after.Reason, rules.held.Generation, next.text(), k.servers)
			}
		}
		return nil
	}
	b.looks.wanted.Store(w.Coin("the kernel is asked"))
	k.refuse, rules.refuse = look, look
	apply(t, b, snapshots[1])
	look(op{})
}
