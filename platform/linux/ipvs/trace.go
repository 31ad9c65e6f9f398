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
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/packet"
)

// Trace reads virtual servers, routes, ipsets and chains, and returns what they do with the first
// packet of c, for the snapshot want. local reports whether an interface has an address.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	t, err := b.kernelTrace(ctx, want)
	if err != nil {
		return nil, err
	}
	t.local, t.faults, t.setFaults, t.err = local, slices.Clone(t.always), nil, nil
	t.read = func(k service.Address) (*observedServer, error) { return b.readServer(ctx, t.state, k) }
	view := t.view
	t.checkRoute(c.To.Addr())
	w, err := b.rules.(*rules).chains.Follow(ctx, iptables.Question{Want: view, Conn: c, Observed: observedKernel{t}, Expected: expectedKernel{t}})
	if err = errors.Join(err, t.err); err != nil {
		return nil, err
	}
	w.Faults = slices.Concat(w.Faults, t.setFaults, t.faults)
	for _, line := range t.settings {
		w.Faults = append(w.Faults, "a setting of the kernel should be "+line)
	}
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

// ReadOnce makes Trace read what the node has once for a snapshot, for many connections.
func (b *Backend) ReadOnce() {
	b.readsOnce = true
	b.rules.(*rules).chains.ReadOnce()
}

// kernelTrace reads the node, unless it was read for want.
func (b *Backend) kernelTrace(ctx context.Context, want *service.Snapshot) (*kernelTrace, error) {
	if b.kept != nil && b.kept.want == want {
		return b.kept, nil
	}
	view, err := b.view(ctx, want)
	if err != nil {
		return nil, err
	}
	s, err := b.driver.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("list what IPVS has: %w", err)
	}
	t := newKernelTrace(b, s, view)
	t.want = want
	if t.settings, err = b.driver.MissingSettings(ctx, scopeRunning); err != nil {
		return nil, fmt.Errorf("ask for settings of IPVS: %w", err)
	}
	heads, err := b.rules.(*rules).sets.Headers()
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	for _, h := range heads {
		t.heads[h.Name] = h
	}
	if b.readsOnce {
		b.kept = t
	}
	return t, nil
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
	backend    *Backend
	want, view *service.Snapshot // as passed to Trace, and with the real addresses of the node
	state      *state
	settings   []string                          // that are missing
	always     []string                          // faults that concern every packet
	desired    map[service.Address]desiredServer // that have endpoints
	routes     map[netip.Addr]netip.Addr
	refs       map[netip.Addr]int // of the addresses that should have a route
	source     netip.Addr         // of those routes
	own        []netip.Addr
	local      func(netip.Addr) bool
	read       func(service.Address) (*observedServer, error) // nil if there is none
	faults     []string

	heads          map[string]ipset.Header // of all sets
	elements       map[string]*readSet     // of the sets that were read
	wantedElements map[string]entries      // of those that virtual servers do not change
	setFaults      []string
	err            error
}

// entries are the elements of a set by what they have without the prefix of clients.
type entries map[ipset.Entry][]ipset.Entry

func (e entries) add(x ipset.Entry) {
	k := x
	k.Net = netip.Prefix{}
	e[k] = append(e[k], x)
}

// readSet is what was read of a set, and what is wrong with it.
type readSet struct {
	entries
	fault string
}

func newKernelTrace(b *Backend, s *state, view *service.Snapshot) *kernelTrace {
	t := &kernelTrace{
		backend: b, view: view, state: s, desired: map[service.Address]desiredServer{}, refs: map[netip.Addr]int{}, routes: map[netip.Addr]netip.Addr{},
		source: nodeView{node: view.Node}.source(b.family), own: ownAddrs(view.Node, b.family),
		heads: map[string]ipset.Header{}, elements: map[string]*readSet{}, wantedElements: map[string]entries{},
	}
	at := newLocalNode(view, b.family)
	for p := range view.Ports(b.family) {
		for _, w := range b.options.servers(p, at) {
			if len(w.endpoints) > 0 {
				t.desired[w.key] = w
			}
		}
		at.elements(p, func(e element) {
			name := setName(b.family, e.set)
			if t.wantedElements[name] == nil {
				t.wantedElements[name] = entries{}
			}
			t.wantedElements[name].add(e.Entry)
		})
		countAddrs(t.refs, p, view.Node, 1)
	}
	for _, r := range s.routes {
		t.routes[r.addr] = r.source
	}
	if !s.device {
		addFault(&t.always, "interface %s is missing, down or without %s", Device, b.family)
	}
	return t
}

func (t *kernelTrace) fault(format string, args ...any)    { addFault(&t.faults, format, args...) }
func (t *kernelTrace) setFault(format string, args ...any) { addFault(&t.setFaults, format, args...) }

func addFault(to *[]string, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(*to, text) {
		*to = append(*to, text)
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

// observedKernel is IPVS as it is. It implements iptables.Companion.
type observedKernel struct{ *kernelTrace }

func (k observedKernel) Local(a netip.Addr) bool {
	k.checkRoute(a)
	_, routed := k.routes[a]
	return routed || k.local(a)
}

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

func keyOf(p packet.Packet) service.Address { return addressAt(p.To.Addr(), p.To.Port(), p.Protocol) }

// readServer returns the virtual server at k with its destinations, nil if there is none.
// The list s may have left it out, see Driver.
func (b *Backend) readServer(ctx context.Context, s *state, k service.Address) (*observedServer, error) {
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
	l.dests, l.destsKnown = dests, err == nil
	return l, err
}

func (k observedKernel) InSet(set, fields string, p packet.Packet) packet.Match {
	have, _ := k.ask(set, fields, p)
	return have
}

// checkServer compares the server at a key with the desired one, and returns it, nil without one.
func (t *kernelTrace) checkServer(at service.Address) *observedServer {
	l, err := t.read(at)
	if err != nil {
		t.err = errors.Join(t.err, fmt.Errorf("read virtual server %s: %w", nameOf(at), err))
	}
	w, wanted := t.desired[at]
	switch {
	case l == nil && wanted:
		t.fault("virtual server %s is missing", nameOf(at))
	case l == nil:
	case !l.owned() && !wanted:
		t.fault("virtual server %s is not kube-proxy's", nameOf(at))
	case !wanted && slices.ContainsFunc(l.dests, func(d dest) bool { return d.weight > 0 }):
		t.fault("virtual server %s takes new connections, and should not", nameOf(at))
	case wanted && l.server.normalized() != w.server.normalized():
		t.fault("virtual server %s has scheduler %s, flags %#x and timeout %d, and should have %s, %#x and %d",
			nameOf(at), l.scheduler, l.normalized().flags, l.timeout, w.scheduler, w.flags, w.timeout)
	}
	if l != nil && wanted {
		t.checkDests(w, l)
	}
	return l
}

// checkDests compares destinations. One of weight 0 drains, as it should unless it is an endpoint.
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
			t.fault("virtual server %s lacks the destination %s", nameOf(w.key), e.Addr)
		case d.weight != 1:
			t.fault("destination %s of virtual server %s has weight %d, and should have 1", e.Addr, nameOf(w.key), d.weight)
		case d.wrongMode:
			t.fault("destination %s of virtual server %s does not masquerade", e.Addr, nameOf(w.key))
		}
	}
	for _, d := range l.dests {
		if _, extraneous := held[d.addr]; extraneous && d.weight > 0 {
			t.fault("virtual server %s has the destination %s, which is no endpoint", nameOf(w.key), d.addr)
		}
	}
}

// expectedKernel is IPVS as it should be. It implements iptables.Companion.
type expectedKernel struct{ *kernelTrace }

func (k expectedKernel) Local(a netip.Addr) bool {
	k.checkRoute(a)
	return k.refs[a] > 0 || k.local(a)
}

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

func (k expectedKernel) InSet(set, fields string, p packet.Packet) packet.Match {
	_, want := k.ask(set, fields, p)
	return want
}

// wantsServerElement reports whether an element should be in a set that depends on virtual
// servers. The set of virtual servers has those of others, too.
func (t *kernelTrace) wantsServerElement(s ipset.Set, e ipset.Entry) bool {
	if s == setOf(t.backend.family, nodeIPSet) {
		return slices.Contains(t.own, e.Addr)
	}
	at := addressAt(e.Addr, e.Port, e.Protocol)
	_, wanted := t.desired[at]
	return wanted || t.state.servers[at] != nil
}

// ask returns whether fields of p are in a set, and whether they should be.
func (t *kernelTrace) ask(name, fields string, p packet.Packet) (have, want packet.Match) {
	f := t.backend.family
	i := slices.IndexFunc(allNames(), func(n string) bool { return setName(f, n) == name })
	if i < 0 {
		return packet.Maybe, packet.Maybe
	}
	s := setOf(f, allNames()[i])
	e, from, ok := entryFor(s, fields, p)
	if !ok {
		return packet.Maybe, packet.Maybe
	}
	haveIt, isPresent := t.readSet(s).find(e, from)
	wantIt, isWanted := t.wantedElements[name].find(e, from)
	if s == setOf(f, virtualServerSet) || s == setOf(f, nodeIPSet) {
		wantIt, isWanted = e, t.wantsServerElement(s, e)
	}
	switch {
	case isWanted && !isPresent:
		t.setFault("ipset %s lacks the element %s", name, s.Text(wantIt))
	case isPresent && !isWanted:
		t.setFault("ipset %s has the element %s, and should not", name, s.Text(haveIt))
	}
	return answer(isPresent), answer(isWanted)
}

func answer(is bool) packet.Match {
	if is {
		return packet.Yes
	}
	return packet.No
}

// entryFor returns the element that fields of p form in s, and the client if it is one of them.
func entryFor(s ipset.Set, fields string, p packet.Packet) (e ipset.Entry, from netip.Addr, ok bool) {
	e.Addr = p.To.Addr()
	if s.Type != ipset.HashIP {
		e.Protocol, e.Port = p.Protocol, p.To.Port()
	}
	if s.Type == ipset.HashIPPortNet {
		from = p.From
	}
	return e, from, fields == map[ipset.Type]string{ipset.HashIP: "dst", ipset.HashIPPort: "dst,dst", ipset.HashIPPortNet: "dst,dst,src"}[s.Type]
}

// find returns the element that equals e, or does so with a prefix that contains from.
func (all entries) find(e ipset.Entry, from netip.Addr) (ipset.Entry, bool) {
	for _, x := range all[e] {
		if from.IsValid() && x.Net.Contains(from) || !from.IsValid() && !x.Net.IsValid() {
			return x, true
		}
	}
	return ipset.Entry{}, false
}

// readSet returns the elements of a set in the kernel, read once, and adds what is wrong with it.
func (t *kernelTrace) readSet(s ipset.Set) entries {
	r := t.elements[s.Name]
	if r == nil {
		r = &readSet{entries: entries{}}
		if h, there := t.heads[s.Name]; there && (h.Altered || h.Type != s.Type) {
			r.fault = fmt.Sprintf("ipset %s is of another type or size than kube-proxy's, or has other options", s.Name)
		}
		members, err := t.backend.rules.(*rules).sets.Members(s)
		switch {
		case errors.Is(err, ipset.ErrMissing):
			r.fault = fmt.Sprintf("ipset %s is missing", s.Name)
		case err != nil && !errors.Is(err, ipset.ErrTypeMismatch):
			t.err = errors.Join(t.err, fmt.Errorf("list ipset %s: %w", s.Name, err))
			return nil
		}
		for _, m := range members {
			r.entries.add(m.Entry)
		}
		t.elements[s.Name] = r
	}
	if r.fault != "" {
		t.setFault("%s", r.fault)
	}
	return r.entries
}
