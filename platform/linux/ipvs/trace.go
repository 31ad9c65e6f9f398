// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/ipvs/companion"
	"kubeproxy/platform/linux/packet"
)

// Trace reads virtual servers, routes, ipsets and chains, and returns what they do with
// the first packet of c. want is the snapshot that they are for. local reports whether an
// interface of the node has an address.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	view, err := b.view(ctx, want)
	if err != nil {
		return nil, err
	}
	s, err := b.driver.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("list what IPVS has: %w", err)
	}
	settings, err := b.driver.MissingSettings(ctx, scopeRunning)
	if err != nil {
		return nil, fmt.Errorf("ask for settings of IPVS: %w", err)
	}
	t := newKernelTrace(b, s, view, local)
	t.read = func(k key) (*observedServer, error) { return b.readServer(ctx, s, k) }
	t.checkRoute(c.To.Addr())
	w, err := b.rules.Follow(ctx, companion.Question{Want: view, Conn: c, Observed: observedKernel{t}, Expected: expectedKernel{t}})
	if err = errors.Join(err, t.err); err != nil {
		return nil, err
	}
	for _, line := range settings {
		t.fault("a setting of the kernel should be %s", line)
	}
	w.Faults = append(w.Faults, t.faults...)
	if route.Decide(view, c).Action == route.Pass {
		rules, err := b.driver.MarkRules(ctx)
		if err != nil {
			return nil, fmt.Errorf("list the rules of policy routing: %w", err)
		}
		if text := b.options.sharedMark(b.family, rules); text != "" {
			w.Notes = append(w.Notes, text)
		}
	}
	if t.refs[c.To.Addr()] > 0 && w.Action == route.Reject && route.Decide(view, c).Action == route.Pass {
		w.ByDesign = onlyServicePorts(c)
	}
	return w, nil
}

func onlyServicePorts(c route.Conn) string {
	return fmt.Sprintf("the node has %s for Services only, so mode ipvs refuses what no Service has there", c.To.Addr())
}

// Differences returns what the mode does with c otherwise than Kubernetes says, once all of want is in force.
func Differences(want *service.Snapshot, c route.Conn) []string {
	to := c.To.Addr()
	if route.Decide(want, c).Action != route.Pass || slices.Contains(want.Node.Addrs, to) {
		return nil
	}
	for p := range want.Ports(service.FamilyOf(to)) {
		if slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Addr == to }) {
			return []string{onlyServicePorts(c)}
		}
	}
	return nil
}

// kernelTrace compares what a packet meets in IPVS with what it should meet.
type kernelTrace struct {
	backend *Backend
	state   *state
	desired map[key]desiredServer // that have endpoints
	routes  map[netip.Addr]netip.Addr
	refs    map[netip.Addr]int // of the addresses that should have a route
	source  netip.Addr         // of those routes
	own     []netip.Addr
	local   func(netip.Addr) bool
	read    func(key) (*observedServer, error) // nil if there is none
	faults  []string
	err     error
}

func newKernelTrace(b *Backend, s *state, view *service.Snapshot, local func(netip.Addr) bool) *kernelTrace {
	t := &kernelTrace{
		backend: b, state: s, local: local, desired: map[key]desiredServer{}, refs: map[netip.Addr]int{}, routes: map[netip.Addr]netip.Addr{},
		source: nodeView{node: view.Node}.source(b.family), own: ownAddrs(view.Node, b.family),
	}
	at := newLocalNode(view, b.family)
	for p := range view.Ports(b.family) {
		for _, w := range b.options.servers(p, at) {
			if len(w.endpoints) > 0 {
				t.desired[w.key] = w
			}
		}
		countAddrs(t.refs, p, view.Node, 1)
	}
	for _, r := range s.routes {
		t.routes[r.addr] = r.source
	}
	if !s.device {
		t.fault("interface %s is missing, down or without %s", Device, b.family)
	}
	return t
}

func (t *kernelTrace) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.faults, text) {
		t.faults = append(t.faults, text)
	}
}

// checkRoute compares the route to an address.
func (t *kernelTrace) checkRoute(a netip.Addr) {
	source, routed := t.routes[a]
	switch wanted := t.refs[a] > 0; {
	case wanted && !routed:
		t.fault("the local route to %s on interface %s is missing", a, Device)
	case routed && !wanted:
		t.fault("the local route to %s on interface %s should not be there", a, Device)
	case routed && source != t.source:
		t.fault("the local route to %s has the source %s, and should have %s", a, source, t.source)
	}
}

// observedKernel is IPVS as it is.
type observedKernel struct{ *kernelTrace }

// Local implements companion.IPVS.
func (k observedKernel) Local(a netip.Addr) bool {
	k.checkRoute(a)
	_, routed := k.routes[a]
	return routed || k.local(a)
}

// Server implements companion.IPVS.
func (k observedKernel) Server(p packet.Packet) ([]netip.AddrPort, bool) {
	l := k.checkServer(keyOf(p))
	if l == nil {
		return nil, false
	}
	var to []netip.AddrPort
	for _, d := range l.dests {
		if d.weight > 0 {
			to = append(to, d.addr)
		}
	}
	return to, true
}

func keyOf(p packet.Packet) key { return key{p.To.Addr(), p.To.Port(), p.Protocol} }

// readServer returns the virtual server at k with its destinations, nil if there is none.
// The list s may have left it out, see Driver.
func (b *Backend) readServer(ctx context.Context, s *state, k key) (*observedServer, error) {
	l := s.servers[k]
	if l == nil {
		var err error
		if l, err = b.driver.Server(ctx, k); l == nil || err != nil {
			return nil, err
		}
	}
	if l.destsKnown {
		return l, nil
	}
	dests, err := b.driver.Dests(ctx, k)
	l.dests = dests
	return l, err
}

// InSet implements companion.IPVS.
func (k observedKernel) InSet(ipset.Set, ipset.Entry) bool { return false }

// checkServer compares the virtual server at a key with the desired one, and returns it.
// It returns nil if there is none.
func (t *kernelTrace) checkServer(at key) *observedServer {
	l, err := t.read(at)
	if err != nil {
		t.err = errors.Join(t.err, fmt.Errorf("read virtual server %s: %w", at, err))
	}
	w, wanted := t.desired[at]
	switch {
	case l == nil && wanted:
		t.fault("virtual server %s is missing", at)
	case l == nil:
	case !l.owned() && !wanted:
		t.fault("virtual server %s is not kube-proxy's", at)
	case !wanted && slices.ContainsFunc(l.dests, func(d dest) bool { return d.weight > 0 }):
		t.fault("virtual server %s takes new connections, and should not", at)
	case wanted && l.server.normalized() != w.server.normalized():
		t.fault("virtual server %s has scheduler %s, flags %#x and timeout %d, and should have %s, %#x and %d",
			at, l.scheduler, l.normalized().flags, l.timeout, w.scheduler, w.flags, w.timeout)
	}
	if l != nil && wanted {
		t.checkDests(w, l)
	}
	return l
}

// checkDests compares destinations. A destination of weight 0 drains, which is as it
// should be unless it is an endpoint.
func (t *kernelTrace) checkDests(w desiredServer, l *observedServer) {
	held := map[netip.AddrPort]dest{}
	for _, d := range l.dests {
		held[d.addr] = d
	}
	for _, e := range w.endpoints {
		d, found := held[e.Addr]
		delete(held, e.Addr)
		switch {
		case !found:
			t.fault("virtual server %s lacks the destination %s", w.key, e.Addr)
		case d.weight != 1:
			t.fault("destination %s of virtual server %s has weight %d, and should have 1", e.Addr, w.key, d.weight)
		case d.wrongMode:
			t.fault("destination %s of virtual server %s does not masquerade", e.Addr, w.key)
		}
	}
	for _, d := range l.dests {
		if _, extraneous := held[d.addr]; extraneous && d.weight > 0 {
			t.fault("virtual server %s has the destination %s, which is no endpoint", w.key, d.addr)
		}
	}
}

// expectedKernel is IPVS as it should be.
type expectedKernel struct{ *kernelTrace }

// Local implements companion.IPVS.
func (k expectedKernel) Local(a netip.Addr) bool {
	k.checkRoute(a)
	return k.refs[a] > 0 || k.local(a)
}

// Server implements companion.IPVS.
func (k expectedKernel) Server(p packet.Packet) ([]netip.AddrPort, bool) {
	w, found := k.desired[keyOf(p)]
	if !found {
		return nil, false
	}
	k.checkServer(w.key)
	var to []netip.AddrPort
	for _, e := range w.endpoints {
		to = append(to, e.Addr)
	}
	return to, true
}

// InSet implements companion.IPVS. The set of virtual servers has those of others, too.
func (k expectedKernel) InSet(s ipset.Set, e ipset.Entry) bool {
	if s == companion.NodeIPSet(k.backend.family) {
		return slices.Contains(k.own, e.Addr)
	}
	at := key{e.Addr, e.Port, e.Protocol}
	_, wanted := k.desired[at]
	return wanted || k.state.servers[at] != nil
}
