// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"

	"kubeproxy/common/service"
)

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
	// Answered means that a reply was seen. State is the kernel's number for the state of
	// the connection, by protocol.
	Answered bool
	State    uint8
}

// The states in which the client may have sent no more than its first packet: a SYN, SYNs
// from both sides, or an INIT. An INIT leads to either state, depending on the kernel. The
// kernel defines enum tcp_conntrack and enum sctp_conntrack in
// include/uapi/linux/netfilter/nf_conntrack_tcp.h and nf_conntrack_sctp.h.
const (
	tcpSynSent     = 1
	tcpSynSent2    = 9
	sctpClosed     = 1
	sctpCookieWait = 2
)

// opening reports whether f is a connection whose client waits for the first reply. With
// asymmetric routes the kernel may see only one direction of an established connection,
// but then it saw more than the first packet.
func (f Flow) opening() bool {
	switch {
	case f.Answered:
		return false
	case f.Protocol == service.TCP:
		return f.State == tcpSynSent || f.State == tcpSynSent2
	}
	return f.Protocol == service.SCTP && (f.State == sctpClosed || f.State == sctpCookieWait)
}

// protected reports whether f is a connection that must not be deleted.
func (f Flow) protected() bool { return f.Protocol != service.UDP && !f.opening() }

// translated reports whether the destination was translated.
func (f Flow) translated() bool { return f.ReplySrc != f.Dst }

// matcher finds stale flows. It merges the rules for one frontend: a flow is valid if any
// rule permits it. A frontend that moves to another Service thus keeps the flows that are
// valid for its new owner.
type matcher struct {
	verdicts map[frontendKey]Rule
	// isNodePort reports whether packets to the address reach the NodePorts of this node.
	// It is false for addresses that are frontends themselves.
	isNodePort func(service.Protocol, netip.AddrPort) bool
	// isOutside reports whether a client is neither a pod nor the node itself.
	isOutside func(netip.Addr) bool
}

type frontendKey struct {
	family   service.Family
	protocol service.Protocol
	frontend netip.AddrPort // a NodePort has no address
}

func newMatcher(rules []Rule, nodePort func(service.Protocol, netip.AddrPort) bool, outside func(netip.Addr) bool) *matcher {
	m := &matcher{make(map[frontendKey]Rule, len(rules)), nodePort, outside}
	for _, r := range rules {
		t := frontendKey{r.Family, r.Protocol, r.frontend()}
		if have, ok := m.verdicts[t]; ok {
			r = have.or(r)
		}
		m.verdicts[t] = r
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
	t := frontendKey{service.FamilyOf(f.Dst.Addr()), f.Protocol, f.Dst}
	v, ok := m.verdicts[t]
	viaNode := false
	if !ok {
		t.frontend = netip.AddrPortFrom(netip.Addr{}, f.Dst.Port())
		v, ok = m.verdicts[t]
		viaNode = true
	}
	switch {
	case !ok || m.permits(&v, f):
		return false
	case !f.translated() && (v.Deleted || f.Zone != 0):
		// Switches such as Open vSwitch track packets in a zone of their own before these
		// packets reach our rules.
		return false
	}
	return !viaNode || m.isNodePort(f.Protocol, f.Dst)
}
