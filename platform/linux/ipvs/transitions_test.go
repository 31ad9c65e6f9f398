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
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// Virtual servers, elements of sets and tables change one by one. A connection in
// between must get what one of the two snapshots specifies, or at least a reply.

// consistentEndpoints makes the locality of endpoints depend on their address, in all
// snapshots, and Local the endpoints of this node, as with real Services.
func consistentEndpoints(ports []*service.Port) []*service.Port {
	setLocality := func(list []service.Endpoint) []service.Endpoint {
		for i := range list {
			a := list[i].Addr.Addr().AsSlice()
			list[i].Local = a[len(a)-1]%2 == 0
			list[i].Remote = !list[i].Local
		}
		return list
	}
	for _, p := range ports {
		isRemote := func(e service.Endpoint) bool { return e.Remote }
		p.Cluster, p.Local = setLocality(p.Cluster), slices.DeleteFunc(setLocality(p.Local), isRemote)
		if p.Internal == service.PolicyCluster && p.External == service.PolicyCluster {
			p.Local = nil
		} else if here := slices.DeleteFunc(slices.Clone(p.Cluster), isRemote); len(here) > 0 {
			p.Local = here
		}
	}
	return ports
}

// transition judges one connection at one moment between snapshots.
type transition struct {
	conn     route.Conn
	verdicts []route.Verdict // of each snapshot
	ports    [][]*service.Port
}

// has returns the endpoint at a that the Service has in snapshot i.
func (t transition) has(a netip.AddrPort, i int) (service.Endpoint, bool) {
	for _, p := range t.ports[i] {
		if !slices.ContainsFunc(t.verdicts, func(v route.Verdict) bool { return ofService(v.Port, p) }) {
			continue
		}
		all := slices.Concat(p.Cluster, p.Local)
		if i := slices.IndexFunc(all, func(e service.Endpoint) bool { return e.Addr == a }); i >= 0 {
			return all[i], true
		}
	}
	return service.Endpoint{}, false
}

// ofService reports whether p, which may be nil, and q belong to the same Service.
func ofService(p, q *service.Port) bool { return p != nil && p.Name.Name == q.Name.Name }

// wrong describes what is wrong with the outcome of m's connection, "" if nothing is.
// reached means that the node delivers what no virtual server accepts. lossy means that
// some ops were refused.
func (t transition) wrong(got backendtest.Outcome, reached, lossy bool) string {
	forwards := func(v route.Verdict) bool { return v.Action == route.Forward }
	refuses := func(v route.Verdict) bool { return !forwards(v) }
	switch {
	case got.Action == route.Forward && !slices.ContainsFunc(t.verdicts, forwards):
		return "nobody should answer it"
	case got.Action != route.Forward && !lossy && !slices.ContainsFunc(t.verdicts, refuses):
		return "nobody answers it"
	case got.Action == route.Pass && reached:
		return "a program that listens on all addresses of the node would get it"
	}
	for _, a := range got.Targets {
		if text := t.wrongTarget(a, got.Masq[a]); text != "" {
			return text
		}
	}
	return ""
}

// wrongTarget judges one of the endpoints that may answer. An endpoint that is being
// added or removed may miss its own replies.
func (t transition) wrongTarget(a netip.AddrPort, masq bool) string {
	known, fine, itself, outside := 0, masq, a.Addr() == t.conn.From, t.conn.Interface == "eth0"
	for i, v := range t.verdicts {
		if e, found := t.has(a, i); found {
			known++
			fine = fine || !itself && (e.Local || !outside) || v.Action == route.Forward && !v.Masquerades(e)
		}
	}
	switch {
	case known == 0:
		return "an endpoint answers that the Service never had"
	case fine, itself && known < len(t.verdicts):
		return ""
	}
	return "the endpoint's answer does not come through this node"
}

func TestEveryMomentBetweenSnapshots(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { betweenSnapshots(t, f) }) })
	}
}

// refuseAdds draws which adds of virtual servers and destinations are refused, and which
// deletes of virtual servers. A kernel has no reason to refuse other deletes.
func refuseAdds(w generate.Cluster) func(op) error {
	some := refuse(w)
	return func(o op) error {
		if o.verb == delServer || o.verb == addServer || o.verb == setServer || o.verb == addDest || o.verb == setDest && o.dest.weight > 0 {
			return some(o)
		}
		return nil
	}
}

// refuseSetAndTableAdds does so for added elements and for tables.
func refuseSetAndTableAdds(w generate.Cluster) (sets func(step, set string) error, tables func(string) error) {
	some, tables := refuseSetsAndTables(w)
	sets = func(step, set string) error {
		if step == "add" || step == "create" {
			return some(step, set)
		}
		return nil
	}
	return sets, tables
}

// betweenSnapshots runs a sync that may be refused in parts, and one that is not.
func betweenSnapshots(t *rapid.T, f service.Family) {
	w := generate.Cluster{T: t, Family: f}
	k := newFake(f)
	b := newBackendWithRules(f, k, Options{MasqueradeBit: 14})
	node := w.Node()
	lossy := w.DrawBool("lossy")
	var snapshots []*service.Snapshot
	m := transition{}
	for n := range 3 {
		m.ports = append(m.ports, consistentEndpoints(w.Ports()))
		snapshots = append(snapshots, service.New(uint64(n), node, m.ports[n]))
	}
	var moments []transition
	for range 10 {
		m.conn, m.verdicts = w.Conn(slices.Concat(m.ports...)), nil
		for _, s := range snapshots {
			m.verdicts = append(m.verdicts, route.Decide(s, m.conn))
		}
		moments = append(moments, m)
	}
	apply(t, b, snapshots[0])
	k.drawConns(w) // so that something drains
	if lossy {
		k.refuse = refuseAdds(w)
		k.sets.Refuse, k.tables.Refuse = refuseSetAndTableAdds(w)
		applyMayFail(t, b, snapshots[1])
	} else {
		apply(t, b, snapshots[1])
		for i := range moments {
			moments[i].verdicts, moments[i].ports = moments[i].verdicts[1:], m.ports[1:]
		}
	}
	k.clock = k.clock.Add(time.Duration(w.DrawInt("time", 8)) * time.Second)
	k.drawConns(w)
	look := func(next string) error {
		for _, m := range moments {
			if _, ours := k.routes[m.conn.From]; ours {
				continue // no remote client has such a source: the kernel drops the packets
			}
			x := newTracer(k, m.conn)
			got := x.run()
			_, reached := k.routes[x.Conn.To.Addr()]
			if text := m.wrong(got, reached, lossy); text != "" {
				t.Fatalf("%s: %+v: %+v\nwanted: %v\nnext is %s\n%s\n%s\n%v", text, m.conn, got, m.verdicts, next, k.sets.Text(), k.tables.Text(), k.servers)
			}
		}
		return nil
	}
	b.poller.requested.Store(w.DrawBool("the kernel is asked"))
	k.refuse = func(o op) error { return look(o.text()) }
	k.tables.Refuse = look
	k.sets.Refuse = func(step, set string) error { return look(step + " " + set) }
	apply(t, b, snapshots[2])
	look("nothing")
}
