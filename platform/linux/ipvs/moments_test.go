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

// moment judges one connection at one moment between snapshots.
type moment struct {
	conn     route.Conn
	verdicts []route.Verdict // of each snapshot
	ports    [][]*service.Port
}

// has finds the endpoint at a that the Service has in snapshot i.
func (m moment) has(a netip.AddrPort, i int) (service.Endpoint, bool) {
	for _, p := range m.ports[i] {
		if !slices.ContainsFunc(m.verdicts, func(v route.Verdict) bool { return ofService(v.Port, p) }) {
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
// reached says that what no virtual server takes is the node's, and lossy that
// some of what was to be was refused.
func (m moment) wrong(got outcome, reached, lossy bool) string {
	forwards := func(v route.Verdict) bool { return v.Action == route.Forward }
	refuses := func(v route.Verdict) bool { return !forwards(v) }
	switch {
	case got.action == route.Forward && !slices.ContainsFunc(m.verdicts, forwards):
		return "nobody should answer it"
	case got.action != route.Forward && !lossy && !slices.ContainsFunc(m.verdicts, refuses):
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
	for i, v := range m.verdicts {
		if e, found := m.has(a, i); found {
			known++
			fine = fine || !itself && (e.Local || !outside) || v.Action == route.Forward && !v.Masquerades(e)
		}
	}
	switch {
	case known == 0:
		return "an endpoint answers that the Service never had"
	case fine, itself && known < len(m.verdicts):
		return ""
	}
	return "the endpoint's answer does not come through this node"
}

func TestEveryMomentBetweenSnapshots(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { betweenSnapshots(t, f) }) })
	}
}

// refuseMore draws how virtual servers and destinations that come are refused. A
// kernel has no reason to refuse that something goes.
func refuseMore(w world.World) func(op) error {
	some := refuse(w)
	return func(o op) error {
		if o.verb == addServer || o.verb == setServer || o.verb == addDest || o.verb == setDest && o.dest.weight > 0 {
			return some(o)
		}
		return nil
	}
}

// betweenSnapshots does a round that may be refused here and there, and one that
// is not.
func betweenSnapshots(t *rapid.T, f service.Family) {
	w := world.World{T: t, Family: f}
	k := newFake(f)
	b := newBackend(f, k, Options{MasqueradeBit: 14})
	rules, node := b.rules.(*fakeRules), w.Node()
	lossy := w.Coin("lossy")
	var snapshots []*service.Snapshot
	m := moment{}
	for n := range 3 {
		m.ports = append(m.ports, settled(w.Ports()))
		snapshots = append(snapshots, service.New(uint64(n), node, m.ports[n]))
	}
	var moments []moment
	for range 10 {
		m.conn, m.verdicts = w.Conn(slices.Concat(m.ports...)), nil
		for _, s := range snapshots {
			m.verdicts = append(m.verdicts, route.Decide(s, m.conn))
		}
		moments = append(moments, m)
	}
	apply(t, b, snapshots[0])
	k.connectAny(w) // so that something drains
	if lossy {
		k.refuse = refuseMore(w)
		round(t, b, snapshots[1])
	} else {
		apply(t, b, snapshots[1])
		for i := range moments {
			moments[i].verdicts, moments[i].ports = moments[i].verdicts[1:], m.ports[1:]
		}
	}
	k.clock = k.clock.Add(time.Duration(w.Pick("time", 8)) * time.Second)
	k.connectAny(w)
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
			if text := m.wrong(got, reached, lossy); text != "" {
				t.Fatalf("%s: %+v: %+v\nwanted: %v\nrules are of %d, next is %s\n%v", text, m.conn, got, m.verdicts, rules.held.Generation, next.text(), k.servers)
			}
		}
		return nil
	}
	b.looks.wanted.Store(w.Coin("the kernel is asked"))
	k.refuse, rules.refuse = look, look
	apply(t, b, snapshots[2])
	look(op{})
}
