// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conntrack deletes entries of the connection tracking table that send packets to a wrong
// destination. The kernel translates a flow's destination once, for its first packet, and later
// ones follow that entry even after the endpoint or Service was removed. A Reconciler takes
// snapshots and deletes entries that became stale, for TCP and SCTP only those without a reply,
// whose client repeats its first packet. Established connections end on their own.
//
// The kernel's table is compared with the desired state, so a missed sync does no harm. Only
// entries to frontends of Services are deleted, one by one. Backends program the rules for new
// flows.
package conntrack

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
)

// Rule describes which endpoints may answer the flows to one frontend.
type Rule struct {
	service.Address
	// Endpoints are those permitted, sorted. Without any, every flow is stale.
	Endpoints []netip.AddrPort
	// OnlyLocal, for external traffic policy Local, means that external clients may use only Local,
	// a part of Endpoints, and are not masqueraded.
	OnlyLocal bool
	Local     []netip.AddrPort
	// Deleted means that the frontend is gone. Only translated flows were flows to it.
	Deleted bool
}

// All returns a rule for each frontend of s in family f.
func All(s *service.Snapshot, f service.Family) []Rule {
	var all []Rule
	for p := range s.Ports(f) {
		all = append(all, rules(p)...)
	}
	return all
}

// Between returns the rules for changes in family f. Without from it returns All, and with those
// for removed frontends if the addresses for NodePorts changed.
func Between(from, to *service.Snapshot, f service.Family) []Rule {
	if from == nil {
		return All(to, f)
	}
	var between []Rule
	if !sameNodePorts(from.Node, to.Node) {
		between = All(to, f)
	}
	for c := range service.Diff(from, to, f) {
		between = append(between, Changes(c.Old, c.New)...)
	}
	return between
}

func sameNodePorts(a, b *service.Node) bool {
	return a == b || slices.Equal(a.NodePorts, b.NodePorts) && slices.Equal(a.Addrs, b.Addrs)
}

// Changes returns the rules for frontends that were removed, were added, lost an endpoint, or got
// their first one between old and new. Either may be nil.
func Changes(old, new *service.Port) []Rule {
	if differOnlyInCluster(old, new) && len(old.Cluster) > 0 {
		if len(removedEndpoints(old.Cluster, new.Cluster)) == 0 {
			return nil
		}
		return rules(new) // all of its frontends have the same endpoints
	}
	return compareRules(rules(old), rules(new))
}

// compareRules compares the rules of each frontend.
func compareRules(before, after []Rule) []Rule {
	var changed []Rule
	for _, r := range after {
		i := slices.IndexFunc(before, func(b Rule) bool { return b.Address == r.Address })
		if i < 0 || invalidates(before[i].Endpoints, r.Endpoints) || invalidates(before[i].outside(), r.outside()) ||
			r.OnlyLocal && !before[i].OnlyLocal {
			changed = append(changed, r)
		}
	}
	for _, r := range before {
		if !slices.ContainsFunc(after, func(a Rule) bool { return a.Address == r.Address }) {
			r.Endpoints, r.Local, r.OnlyLocal, r.Deleted = nil, nil, false, true
			changed = append(changed, r)
		}
	}
	return changed
}

// differOnlyInCluster reports whether both Ports have the same frontends and use Cluster alone.
func differOnlyInCluster(a, b *service.Port) bool {
	return usesOnlyCluster(a) && usesOnlyCluster(b) && a.Family == b.Family && a.Name.Protocol == b.Name.Protocol &&
		slices.EqualFunc(a.Frontends, b.Frontends, service.Frontend.SameAddress)
}

func usesOnlyCluster(p *service.Port) bool {
	return p != nil && len(p.Draining) == 0 && p.Internal == service.PolicyCluster && p.External == service.PolicyCluster
}

// removedEndpoints returns endpoints of before that are not in after. Both are sorted.
func removedEndpoints(before, after []service.Endpoint) []service.Endpoint {
	removed, added := service.TrimCommon(before, after)
	return slices.DeleteFunc(slices.Clone(removed), func(e service.Endpoint) bool {
		_, found := slices.BinarySearchFunc(added, e, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
		return found
	})
}

// invalidates reports whether a flow valid with before may be stale with after.
func invalidates(before, after []netip.AddrPort) bool {
	if len(before) == 0 {
		return len(after) > 0
	}
	removed, _ := service.TrimCommon(before, after)
	return slices.ContainsFunc(removed, func(e netip.AddrPort) bool { return !contains(after, e) })
}

// rules returns a rule for each frontend of p in their order, none for nil.
func rules(p *service.Port) []Rule {
	if p == nil {
		return nil
	}
	internal, external, local := allowedEndpoints(p)
	var all []Rule
	for _, f := range p.Frontends {
		r := Rule{Address: p.Address(f), Endpoints: internal}
		if f.Kind.External() {
			r.Endpoints = external
			if p.External == service.PolicyLocal {
				r.OnlyLocal, r.Local = true, local
			}
		}
		i := slices.IndexFunc(all, func(a Rule) bool { return a.Address == r.Address })
		if i < 0 {
			all = append(all, r)
		} else { // the same address for two kinds of frontend
			all[i] = all[i].or(r)
		}
	}
	return all
}

// or returns a rule that permits what r or x permits. Both are for the same frontend.
func (r Rule) or(x Rule) Rule {
	r.Local, r.OnlyLocal = union(r.outside(), x.outside()), r.OnlyLocal && x.OnlyLocal
	r.Endpoints, r.Deleted = union(r.Endpoints, x.Endpoints), r.Deleted && x.Deleted
	if !r.OnlyLocal && len(r.Local) == len(r.Endpoints) {
		r.Local = nil
	}
	return r
}

// outside returns the endpoints for clients outside of the cluster.
func (r Rule) outside() []netip.AddrPort {
	if r.OnlyLocal || len(r.Local) > 0 {
		return r.Local
	}
	return r.Endpoints
}

// allowedEndpoints returns the endpoints that may answer flows to the ClusterIP and to
// the external frontends of p, and those for clients outside if a policy is Local. Pods
// and the node itself reach an external frontend with policy Local through the Cluster
// endpoints, so these are permitted too. So are draining endpoints, which get no new flows.
func allowedEndpoints(p *service.Port) (internal, external, local []netip.AddrPort) {
	cluster := union(addrs(p.Cluster), addrs(p.Draining))
	if p.Internal == service.PolicyCluster && p.External == service.PolicyCluster {
		return cluster, cluster, nil
	}
	internal, external = cluster, cluster
	local = union(addrs(p.Local), addrs(localEndpoints(p.Draining)))
	if p.Internal == service.PolicyLocal {
		internal = local
	}
	if p.External == service.PolicyLocal {
		external = union(local, cluster)
	}
	return internal, external, local
}

func localEndpoints(endpoints []service.Endpoint) []service.Endpoint {
	var ones []service.Endpoint
	for _, e := range endpoints {
		if e.Local {
			ones = append(ones, e)
		}
	}
	return ones
}

func addrs(endpoints []service.Endpoint) []netip.AddrPort {
	sorted := make([]netip.AddrPort, len(endpoints))
	for i, e := range endpoints {
		sorted[i] = e.Addr
	}
	return sorted
}

// union returns the addresses in a or b. Both must be sorted, and are not modified.
func union(a, b []netip.AddrPort) []netip.AddrPort {
	both := slices.Concat(a, b)
	slices.SortFunc(both, netip.AddrPort.Compare)
	return slices.Compact(both)
}

func contains(sorted []netip.AddrPort, e netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(sorted, e, netip.AddrPort.Compare)
	return found
}

// Flow is one entry of the connection tracking table. Its family is that of Dst.
type Flow struct {
	Protocol service.Protocol
	Src, Dst netip.AddrPort // original direction, before any translation
	// ReplySrc and ReplyDst are the addresses of replies. ReplySrc is the endpoint if the
	// destination was translated, otherwise it equals Dst.
	ReplySrc, ReplyDst netip.AddrPort
	// Zone and ReplyZone are 0 unless the table is divided into zones.
	Zone, ReplyZone uint16
	ID              uint32 // assigned by the kernel
	// Answered means that a reply was seen. State is the kernel's number, by protocol.
	Answered bool
	State    uint8
	// Owed means that data of a TCP client is not acknowledged.
	Owed bool
	// Expires is in how many seconds the entry ends if no packet comes.
	Expires uint32
	// Since is when it began, if net.netfilter.nf_conntrack_timestamp is on.
	Since time.Time
}

// The states in which the client may have sent no more than its first packet: a SYN, SYNs
// from both sides, or an INIT. An INIT leads to either state, depending on the kernel. The
// kernel defines enum tcp_conntrack and enum sctp_conntrack in
// include/uapi/linux/netfilter/nf_conntrack_tcp.h and nf_conntrack_sctp.h.
const (
	tcpSynSent     = 1
	tcpLastAck     = 6
	tcpTimeWait    = 7
	tcpClose       = 8
	tcpSynSent2    = 9
	sctpClosed     = 1
	sctpCookieWait = 2
)

// TCPEstablished is the state of a TCP connection that both sides use.
const TCPEstablished = 3

// Ended reports whether both sides closed f, or it was reset. Its entry stays for a while.
func (f Flow) Ended() bool {
	return f.Protocol == service.TCP && (f.State == tcpLastAck || f.State == tcpTimeWait || f.State == tcpClose)
}

// Opening reports whether f's client waits for the first reply. By asymmetric routes the kernel may
// see one direction alone, but then more of it than the first packet.
func (f Flow) Opening() bool {
	switch {
	case f.Answered:
		return false
	case f.Protocol == service.TCP:
		return f.State == tcpSynSent || f.State == tcpSynSent2
	}
	return f.Protocol == service.SCTP && (f.State == sctpClosed || f.State == sctpCookieWait)
}

// protected reports whether f is a connection that must not be deleted.
func (f Flow) protected() bool { return f.Protocol != service.UDP && !f.Opening() }

// translated reports whether the destination was translated.
func (f Flow) translated() bool { return f.ReplySrc != f.Dst }

// matcher finds stale flows. Any rule for a frontend may permit one, so that a frontend that moves
// to another Service keeps flows that are valid there.
type matcher struct {
	verdicts map[service.Address]Rule
	// isNodePort reports whether packets to the address reach the NodePorts of this node.
	// It is false for addresses that are frontends themselves.
	isNodePort func(service.Protocol, netip.AddrPort) bool
	// isOutside reports whether a client is neither a pod nor the node itself.
	isOutside func(netip.Addr) bool
}

func newMatcher(rules []Rule, nodePort func(service.Protocol, netip.AddrPort) bool, outside func(netip.Addr) bool) *matcher {
	m := &matcher{make(map[service.Address]Rule, len(rules)), nodePort, outside}
	for _, r := range rules {
		if have, ok := m.verdicts[r.Address]; ok {
			r = have.or(r)
		}
		m.verdicts[r.Address] = r
	}
	return m
}

// permits reports whether new flows like f are still possible.
func (m *matcher) permits(v *Rule, f Flow) bool {
	if !contains(v.Endpoints, f.ReplySrc) {
		return false
	}
	// An endpoint that is its own client is masqueraded, whatever the policy is.
	masqueraded := f.ReplyDst.Addr() != f.Src.Addr() && f.ReplySrc.Addr() != f.Src.Addr()
	if contains(v.outside(), f.ReplySrc) && !(v.OnlyLocal && masqueraded) {
		return true
	}
	return !m.isOutside(f.Src.Addr())
}

// stale reports whether f must be deleted. Most flows fail the first lookups. isNodePort
// and isOutside come last, because they are expensive.
func (m *matcher) stale(f Flow) bool {
	if f.protected() {
		return false
	}
	t := service.AddressOf(f.Protocol, f.Dst)
	v, ok := m.verdicts[t]
	viaNode := !ok
	if viaNode {
		v, ok = m.verdicts[t.OnNode()]
	}
	switch {
	case !ok || m.permits(&v, f):
		return false
	case !f.translated() && (v.Deleted || f.Zone != 0):
		// Switches such as Open vSwitch track packets in a zone of their own before ours.
		return false
	}
	return !viaNode || m.isNodePort(f.Protocol, f.Dst)
}

// Entry is a flow of one client.
type Entry struct {
	Flow
	// Stale means that a Reconciler deletes it.
	Stale bool
}

// Client is whose entries are looked up.
type Client struct {
	Protocol service.Protocol
	From     netip.Addr
	To       netip.AddrPort // before any translation
}

// Entries returns the flows of a client to one destination: of those in one state, the one
// that had the latest packet first. now is the snapshot in force.
func Entries(ctx context.Context, d Driver, now *service.Snapshot, c Client) ([]Entry, error) {
	f := Filter{Family: service.FamilyOf(c.From), Protocol: c.Protocol, Port: c.To.Port()}
	if f.Family == service.IPv4 {
		f.Addr = c.To.Addr()
	}
	flows := map[netip.AddrPort]Flow{}
	err := d.Dump(ctx, f, func(x Flow) {
		if x.Protocol == c.Protocol && x.Src.Addr() == c.From && x.Dst == c.To {
			flows[x.Src] = x
		}
	})
	if err != nil || len(flows) == 0 {
		return nil, err
	}
	host := newHostLookup(d, now)
	m := host.matcher(ctx, All(now, f.Family))
	var all []Entry
	for _, x := range flows {
		all = append(all, Entry{x, m.stale(x)})
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Or(cmp.Compare(b.Expires, a.Expires), a.Src.Compare(b.Src)) })
	return all, host.err
}
