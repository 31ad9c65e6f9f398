// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// applyRefused runs a sync that must fail for one Port, with this reason.
func applyRefused(t *testing.T, b *Backend, want *service.Snapshot, name string, reason error) {
	t.Helper()
	err := planOf(t, b, want).Apply(t.Context()).Err
	failed := reconcile.PortErrors(err)
	kit.Need(t, len(failed) == 1 && failed[0].Name.Name == name && errors.Is(err, reason), "Apply = %v, want %v about %s", err, reason, name)
}

// TestFailureCostsItsOwnPort checks that a Port that fails for a long time does not make
// each sync read everything.
func TestFailureCostsItsOwnPort(t *testing.T) {
	k := newFake(service.IPv4)
	k.servers[first] = &fakeServer{server{scheduler: "wlc"}, map[netip.AddrPort]dest{}}
	b := newBackend(service.IPv4, k, Options{})
	var ports []*service.Port
	for i := range 200 {
		ports = append(ports, web(i, 2, service.TCP))
	}
	s := snapshot(ports...)
	applyRefused(t, b, s, "web-0", errForeign)
	reads, ops, asked := k.reads, k.ops, k.serverReads
	for i := range 3 {
		next := s.With(uint64(2+i), s.Node, []service.Change{{Old: s.Port(service.IPv4, ports[7].Name), New: web(7, 3+i, service.TCP)}})
		applyRefused(t, b, next, "web-0", errForeign)
		s = next
	}
	kit.Check(t, k.reads == reads && k.ops == ops+3 && k.serverReads == asked+3,
		"%d listings, %d questions and %d steps for three endpoints, want 0, 3 and 3", k.reads-reads, k.serverReads-asked, k.ops-ops)
	delete(k.servers, first)
	apply(t, b, s)
	kit.Check(t, k.reads == reads && len(k.servers[first].dests) == 2, "%d listings, and then there is %+v", k.reads-reads, k.servers[first])
	apply(t, b, s)
	kit.Check(t, k.serverReads == asked+4, "%d questions about what is right", k.serverReads-asked-4)
}

// TestChangesAfterRefusals runs syncs that are refused at random. A sync without
// refusals must succeed, whatever changed meanwhile, and let the kernel serve the same
// as a new one, mostly without a list.
func TestChangesAfterRefusals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := newFake(w.Family)
		b := newBackend(w.Family, k, Options{})
		b.SetResync(time.Hour)
		node, rules := w.Node(), b.rules.(*fakeRules)
		for n := range 6 {
			want := service.New(uint64(n), node, w.Ports())
			k.refuse, rules.refuse, k.sets.Refuse = nil, nil, nil
			if w.DrawBool("refused") {
				k.refuse = refuse(w)
				rules.refuse = refuseRules(w, want)
				k.sets.Refuse = func(_, _ string) error { return k.refuse(op{}) }
			}
			if k.refuse != nil {
				applyMayFail(t, b, want)
			} else {
				apply(t, b, want)
				wantSameServing(t, b, k, want)
				if w.DrawBool("looked at") {
					wantNoDrift(t, b, want)
				}
			}
			k.drawConns(w)
			k.clock = k.clock.Add(time.Duration(w.DrawInt("time", 8)) * time.Second)
		}
	})
}

// refuseRules draws whether the rules for a Port are refused.
func refuseRules(w generate.Cluster, want *service.Snapshot) func(op) error {
	ports := portsOf(want, w.Family)
	if n := w.DrawInt("refused rules", 8); n < len(ports) {
		return func(op) error { return &reconcile.PortError{Family: w.Family, Name: ports[n].Name, Err: errInjected} }
	}
	return nil
}

// wantNoDrift compares everything with the kernel.
func wantNoDrift(t *rapid.T, b *Backend, want *service.Snapshot) {
	b.poller.requested.Store(true)
	p, err := b.Plan(context.Background(), want)
	if err != nil || len(p.Outcome().Drift) > 0 {
		t.Fatalf("%v, and drift that nobody made: %q", err, p.Outcome().Drift)
	}
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Fatalf("Apply: %v", err)
	}
}

// TestMuchFails has so many failed Ports that a list is cheaper.
func TestMuchFails(t *testing.T) {
	k := newFake(service.IPv4)
	k.refuse = func(o op) error {
		if o.verb == addDest {
			return errInjected
		}
		return nil
	}
	b := newBackend(service.IPv4, k, Options{})
	var ports []*service.Port
	for i := range maxFailedPorts + 1 {
		ports = append(ports, web(i, 1, service.TCP))
	}
	s := snapshot(ports...)
	for i := range 2 {
		if err := planOf(t, b, s).Apply(t.Context()).Err; len(reconcile.PortErrors(err)) != len(ports) || k.reads != 1+i {
			t.Errorf("%d failures and %d listings, want %d and %d", len(reconcile.PortErrors(err)), k.reads, len(ports), 1+i)
		}
	}
}

// TestFailureIsNoDrift checks that what a sync could not do is not reported as drift.
func TestFailureIsNoDrift(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	k.refuse = func(o op) error {
		if o.verb == addDest && o.key == first {
			return errInjected
		}
		return nil
	}
	s := snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
	applyRefused(t, b, s, "web-0", errInjected)
	k.clock = k.clock.Add(time.Minute)
	second := addressAt(web(1, 1, service.TCP).Frontends[0].Addr, 80, service.TCP)
	delete(k.servers, second)
	p := planOf(t, b, s)
	if drift := p.Outcome().Drift; len(drift) != 2 || slices.ContainsFunc(drift, func(line string) bool { return !strings.Contains(line, nameOf(second)) }) {
		t.Errorf("the drift is %q, want what is missing of %s", drift, nameOf(second))
	}
}

// TestAddressOfFailedPortMoves moves an address that a Port failed to give up to another
// Port, and one that the other Port gives up.
func TestAddressOfFailedPortMoves(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	one, third, other := web(0, 1, service.TCP), withRemoteEndpoint(web(1, 1, service.TCP), ""), withRemoteEndpoint(web(2, 1, service.TCP), "")
	s := snapshot(one, third, other)
	apply(t, b, s)
	k.refuse = func(o op) error {
		if o.verb == delServer {
			return errInjected
		}
		return nil
	}
	s = s.With(2, s.Node, []service.Change{{Old: one}})
	applyRefused(t, b, s, "web-0", errInjected)
	k.refuse = nil
	last, taker := *third, *other
	last.Frontends, taker.Frontends = slices.Concat(third.Frontends, other.Frontends), one.Frontends
	reads := k.reads
	s = s.With(3, s.Node, []service.Change{{Old: third, New: &last}, {Old: other, New: &taker}})
	p := apply(t, b, s)
	wantLines(t, p,
		"~ destination 10.244.1.1:8080 of 10.96.0.0:80 tcp drains, for 1h0m0s at most",
		"+ destination 10.244.1.9:8080 of 10.96.0.0:80 tcp", "+ address 10.96.0.0, reached from 192.0.2.1")
	kit.Check(t, k.reads == reads, "%d listings", k.reads-reads)
	wantSameServing(t, b, k, s)
}

// TestServerOfFailedPortIsGone checks that a virtual server that a failed Port no longer
// has may become foreign.
func TestServerOfFailedPortIsGone(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	one := web(0, 1, service.TCP)
	k.refuse = func(o op) error {
		if o.verb == addDest {
			return errInjected
		}
		return nil
	}
	s := snapshot(one)
	applyRefused(t, b, s, "web-0", errInjected)
	k.refuse = nil
	delete(k.servers, first)
	s = s.With(2, s.Node, []service.Change{{Old: one}})
	apply(t, b, s)
	theirs := server{scheduler: "wlc", flags: flagHashed}
	k.servers[first] = &fakeServer{theirs, map[netip.AddrPort]dest{}}
	s = s.With(3, s.Node, []service.Change{{New: one}})
	applyRefused(t, b, s, "web-0", errExists)
	applyRefused(t, b, s, "web-0", errForeign)
	got := k.servers[first]
	kit.Check(t, got.server == theirs, "there is %v", got)
}

func portsOf(s *service.Snapshot, f service.Family) []*service.Port {
	var all []*service.Port
	for p := range s.Ports(f) {
		all = append(all, p)
	}
	return all
}

// applyMayFail runs one sync that may fail.
func applyMayFail(t *rapid.T, b *Backend, want *service.Snapshot) {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if p.Empty() {
		return
	}
	if err := p.Apply(context.Background()).Err; err != nil && !errors.Is(err, errInjected) && !errors.Is(err, errExists) && !errors.Is(err, errMissing) {
		t.Fatalf("Apply: %v\n%s", err, p.Changes())
	}
}

// applyUntilDrained runs clean syncs until all draining destinations are gone.
func applyUntilDrained(t fataler, b *Backend, k *fake, want *service.Snapshot) {
	for range 2 {
		for _, s := range k.servers {
			for a, x := range s.dests {
				x.conns = 0
				s.dests[a] = x
			}
		}
		k.clock = k.clock.Add(time.Minute)
		apply(t, b, want)
	}
}

// TestCounts checks that this mode, too, reports the results of iptables-restore.
func TestCounts(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{})
	round := func(generation uint64) reconcile.Outcome {
		p, err := b.Plan(t.Context(), service.New(generation, &service.Node{}, nil))
		kit.Must(t, err)
		return p.Apply(t.Context())
	}
	k.tables.Refuse = func(string) error { return errors.New("refused") }
	out := round(1)
	kit.Check(t, out.Err != nil && out.Rules.Refused, "after a refusal: %v, %+v", out.Err, out.Rules)
	k.tables.Refuse = nil
	if out := round(2); out.Err != nil || out.Rules.Refused || out.Rules.Written["nat"] == 0 || out.Rules.Held["nat"] == 0 {
		t.Errorf("%v, %+v, want rules in table nat", out.Err, out.Rules)
	}
}

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
