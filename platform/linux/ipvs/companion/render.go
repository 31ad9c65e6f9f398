// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/packet"
)

// Document is what a node would hold in one family.
type Document struct {
	Sets   []Set           `json:"sets"`
	Chains iptables.Tables `json:"chains"`

	family service.Family
	portOf func(comment string) service.PortName // of elements
}

// Set is a set with its elements, each in the format of ipset.
type Set struct {
	Name     string     `json:"name"`
	Type     ipset.Type `json:"type"`
	Elements []Element  `json:"elements,omitempty"`

	set     ipset.Set
	members []ipset.Member
}

// Element is an element of a set, with its Service if it belongs to a single one.
type Element struct {
	Element string `json:"element"`
	Service string `json:"service,omitempty"`
}

// Servers are the elements of the two sets that package ipvs fills: those for the virtual
// servers, and those for the addresses of the node.
type Servers struct{ Served, Addrs []ipset.Member }

// NewDocument returns what a node would hold in family f after a start from nothing.
func NewDocument(f service.Family, want *service.Snapshot, o Options, servers Servers) Document {
	b := &Backend{family: f}
	return Document{Sets: b.wantedSets(want, servers, nil), Chains: iptables.Document(f, want, o.Chains(f)), family: f, portOf: service.ParsePortName}
}

// wantedSets returns the sets for want. held are the existing elements.
func (b *Backend) wantedSets(want *service.Snapshot, servers Servers, held map[element]use) []Set {
	_, uses := b.countUses(want, held)
	members := map[string][]ipset.Member{virtualServerSet: servers.Served, nodeIPSet: servers.Addrs}
	for e := range uses {
		members[e.set] = append(members[e.set], ipset.Member{Entry: e.Entry, Comment: uses[e].comment})
	}
	var sets []Set
	for _, name := range allNames() {
		sets = append(sets, newSet(setOf(b.family, name), members[name]))
	}
	return sets
}

// newSet sorts members.
func newSet(s ipset.Set, members []ipset.Member) Set {
	slices.SortFunc(members, func(a, b ipset.Member) int { return a.Entry.Compare(b.Entry) })
	x := Set{Name: s.Name, Type: s.Type, set: s, members: members}
	for _, m := range members {
		x.Elements = append(x.Elements, Element{s.Text(m.Entry), m.Comment})
	}
	return x
}

// Objects returns the sets in the format of ipset restore, and then the chains in that of
// iptables-restore.
func (d Document) Objects() reconcile.Objects {
	all := reconcile.Objects{{Text: "# for ipset restore\n"}}
	for _, s := range d.Sets {
		s.set.Write(s.members, func(line, comment string) { all.AddFor(d.portOf(comment), "%s", line) })
	}
	return append(all, d.Chains.Objects()...)
}

// ReadBack returns the sets and chains that the kernel holds, and those that it would hold
// for want, both in the same order.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot, servers Servers) (held, wanted Document, err error) {
	wanted.family, wanted.portOf = b.family, want.Commented(b.family, func(n service.PortName) string { return ipset.Comment(n.String()) })
	held.family, held.portOf = wanted.family, wanted.portOf
	elements := map[element]use{}
	for _, name := range allNames() {
		s := setOf(b.family, name)
		members, err := b.sets.Members(s)
		if errors.Is(err, ipset.ErrMissing) {
			continue
		}
		if err != nil {
			return held, wanted, fmt.Errorf("list ipset %s: %w", s.Name, err)
		}
		for _, m := range members {
			elements[element{name, m.Entry}] = use{1, m.Comment}
		}
		held.Sets = append(held.Sets, newSet(s, members))
	}
	wanted.Sets = b.wantedSets(want, servers, elements)
	held.Chains, wanted.Chains, err = b.chains.ReadTables(ctx, want)
	return held, wanted, err
}

// Question is a connection to follow through chains, ipsets and virtual servers.
type Question struct {
	Want *service.Snapshot // with the real addresses of the node
	Conn route.Conn
	// Observed and Expected are IPVS as it is, and as it should be.
	Observed, Expected IPVS
}

// IPVS is the part of mode ipvs that is in package ipvs.
type IPVS interface {
	// Local reports whether packets to an address are delivered to the node.
	Local(netip.Addr) bool
	// Server returns the destinations that take new connections of the virtual server
	// for p. found is false if there is none.
	Server(p packet.Packet) (to []netip.AddrPort, found bool)
	// InSet reports whether an element should be in VirtualServerSet or NodeIPSet.
	InSet(ipset.Set, ipset.Entry) bool
}

// Follow returns what chains, ipsets and virtual servers do with the first packet of a
// connection. Missing or foreign elements that match the packet are faults of the Walk.
func (b *Backend) Follow(ctx context.Context, q Question) (*explain.Walk, error) {
	t := &setTrace{backend: b, ipvs: q.Expected, heads: map[string]ipset.Header{}, read: map[string][]ipset.Entry{}, want: map[string][]ipset.Entry{}}
	heads, err := b.sets.Headers()
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	for _, h := range heads {
		t.heads[h.Name] = h
	}
	at := NewLocalNode(q.Want, b.family)
	for p := range q.Want.Ports(b.family) {
		at.elements(p, func(e element) {
			name := setName(b.family, e.set)
			t.want[name] = append(t.want[name], e.Entry)
		})
	}
	w, err := b.chains.Follow(ctx, iptables.Question{
		Want: q.Want, Conn: q.Conn,
		Observed: observedSets{q.Observed, t}, Expected: expectedSets{q.Expected, t},
	})
	if err = errors.Join(err, t.err); err != nil {
		return nil, err
	}
	w.Faults = append(w.Faults, t.faults...)
	return w, nil
}

// setTrace evaluates matches of ipsets, and compares the present results with the
// expected ones.
type setTrace struct {
	backend *Backend
	ipvs    IPVS
	heads   map[string]ipset.Header
	read    map[string][]ipset.Entry // elements of the sets that were read
	want    map[string][]ipset.Entry
	faults  []string
	err     error
}

type observedSets struct {
	IPVS
	*setTrace
}

// InSet implements iptables.Companion.
func (s observedSets) InSet(set, fields string, p packet.Packet) packet.Match {
	have, _ := s.ask(set, fields, p)
	return have
}

type expectedSets struct {
	IPVS
	*setTrace
}

// InSet implements iptables.Companion.
func (s expectedSets) InSet(set, fields string, p packet.Packet) packet.Match {
	_, want := s.ask(set, fields, p)
	return want
}

func (t *setTrace) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(t.faults, text) {
		t.faults = append(t.faults, text)
	}
}

// ask returns whether fields of p are in a set, and whether they should be.
func (t *setTrace) ask(name, fields string, p packet.Packet) (have, want packet.Match) {
	f := t.backend.family
	i := slices.IndexFunc(allNames(), func(n string) bool { return setName(f, n) == name })
	if i < 0 {
		return packet.Maybe, packet.Maybe
	}
	s := setOf(f, allNames()[i])
	e, from, ok := entryOf(s, fields, p)
	if !ok {
		return packet.Maybe, packet.Maybe
	}
	haveIt, isPresent := find(t.elements(s), e, from)
	wantIt, isWanted := find(t.want[name], e, from)
	if s == VirtualServerSet(f) || s == NodeIPSet(f) {
		wantIt, isWanted = e, t.ipvs.InSet(s, e)
	}
	switch {
	case isWanted && !isPresent:
		t.fault("ipset %s lacks the element %s", name, s.Text(wantIt))
	case isPresent && !isWanted:
		t.fault("ipset %s has the element %s, and should not", name, s.Text(haveIt))
	}
	return answer(isPresent), answer(isWanted)
}

func answer(is bool) packet.Match {
	if is {
		return packet.Yes
	}
	return packet.No
}

// entryOf returns the element that fields of p form in s, and the client if it is one of
// them.
func entryOf(s ipset.Set, fields string, p packet.Packet) (e ipset.Entry, from netip.Addr, ok bool) {
	e.Addr = p.To.Addr()
	if s.Type != ipset.HashIP {
		e.Protocol, e.Port = p.Protocol, p.To.Port()
	}
	if s.Type == ipset.HashIPPortNet {
		from = p.From
	}
	return e, from, fields == map[ipset.Type]string{ipset.HashIP: "dst", ipset.HashIPPort: "dst,dst", ipset.HashIPPortNet: "dst,dst,src"}[s.Type]
}

// find returns the element that equals e, or that equals e with a prefix that contains
// from.
func find(all []ipset.Entry, e ipset.Entry, from netip.Addr) (ipset.Entry, bool) {
	i := slices.IndexFunc(all, func(x ipset.Entry) bool {
		if net := x.Net; from.IsValid() {
			x.Net = netip.Prefix{}
			return x == e && net.Contains(from)
		}
		return x == e
	})
	if i < 0 {
		return ipset.Entry{}, false
	}
	return all[i], true
}

// elements returns the elements of a set in the kernel. Each set is read once.
func (t *setTrace) elements(s ipset.Set) []ipset.Entry {
	if all, known := t.read[s.Name]; known {
		return all
	}
	if h, there := t.heads[s.Name]; there && (h.Altered || h.Type != s.Type) {
		t.fault("ipset %s is of another type or size than kube-proxy's, or has other options", s.Name)
	}
	members, err := t.backend.sets.Members(s)
	switch {
	case errors.Is(err, ipset.ErrMissing):
		t.fault("ipset %s is missing", s.Name)
	case err != nil && !errors.Is(err, ipset.ErrTypeMismatch):
		t.err = errors.Join(t.err, fmt.Errorf("list ipset %s: %w", s.Name, err))
	}
	var all []ipset.Entry
	for _, m := range members {
		all = append(all, m.Entry)
	}
	t.read[s.Name] = all
	return all
}
