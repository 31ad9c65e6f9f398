// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"

	"kubeproxy/common/service"
)

// Flow is one entry of the kernel's table. Its family is that of Dst.
type Flow struct {
	Protocol service.Protocol
	Src, Dst netip.AddrPort // as the first packet came in
	// ReplySrc and ReplyDst are what answers carry: ReplySrc is the endpoint
	// where the destination was translated, else Dst.
	ReplySrc, ReplyDst netip.AddrPort
	// Zone and ReplyZone are 0 unless somebody divides the table.
	Zone, ReplyZone uint16
	ID              uint32 // the kernel's
	// Answered means that a packet came back, and State is how far the
	// connection is, by the kernel's numbers for the protocol.
	Answered bool
	State    uint8
}

// The states of connections whose first packet may be all that there was: a SYN,
// SYNs of both sides, or an INIT, which leads to either state, depending on the
// kernel. See enum tcp_conntrack and enum sctp_conntrack in its
// include/uapi/linux/netfilter.
const (
	tcpSynSent     = 1
	tcpSynSent2    = 9
	sctpClosed     = 1
	sctpCookieWait = 2
)

// opening reports that f is a connection whose client waits for the first answer.
// One that is seen in one direction only, as with asymmetric routes, may well be
// established, but then more than its first packet was seen.
func (f Flow) opening() bool {
	switch {
	case f.Answered:
		return false
	case f.Protocol == service.TCP:
		return f.State == tcpSynSent || f.State == tcpSynSent2
	}
	return f.Protocol == service.SCTP && (f.State == sctpClosed || f.State == sctpCookieWait)
}

// protected reports that f is a connection that must be left alone.
func (f Flow) protected() bool { return f.Protocol != service.UDP && !f.opening() }

// translated reports that the destination was rewritten.
func (f Flow) translated() bool { return f.ReplySrc != f.Dst }

// matcher finds stale flows. It merges rules for one frontend: a flow is fine
// if it is fine for any, so that a frontend which moves from one Service to
// another keeps the flows that its new owner has.
type matcher struct {
	verdicts map[frontendKey]verdict
	// isNodePort reports that packets to addr come to this node's NodePorts.
	// Addresses that are a frontend themselves do not.
	isNodePort func(service.Protocol, netip.AddrPort) bool
}

type frontendKey struct {
	family   service.Family
	protocol service.Protocol
	frontend netip.AddrPort // without an address for a NodePort
}

type verdict struct {
	endpoints []netip.AddrPort
	deleted   bool
}

func newMatcher(rules []Rule, nodePort func(service.Protocol, netip.AddrPort) bool) *matcher {
	m := &matcher{make(map[frontendKey]verdict, len(rules)), nodePort}
	for _, r := range rules {
		t := frontendKey{r.Family, r.Protocol, r.frontend()}
		v := verdict{r.Endpoints, r.Deleted}
		if have, ok := m.verdicts[t]; ok {
			v = verdict{union(have.endpoints, v.endpoints), have.deleted && v.deleted}
		}
		m.verdicts[t] = v
	}
	return m
}

// stale reports that f has to go. Where it is asked matters little for cost,
// as most flows fail the first look-ups, and nodePort is asked last.
func (m *matcher) stale(f Flow) bool {
	if f.protected() {
		return false
	}
	t := frontendKey{service.FamilyOf(f.Dst.Addr()), f.Protocol, f.Dst}
	v, ok := m.verdicts[t]
	viaNode := false
	if !ok {
		t.frontend = netip.AddrPortFrom(netip.Addr{}, f.Dst.Port())
		v, ok = m.verdicts[t]
		viaNode = true
	}
	switch {
	case !ok || contains(v.endpoints, f.ReplySrc):
		return false
	case !f.translated() && (v.deleted || f.Zone != 0):
		// A zone of its own is where switches such as Open vSwitch look at
		// packets that our rules meet later.
		return false
	}
	return !viaNode || m.isNodePort(f.Protocol, f.Dst)
}
