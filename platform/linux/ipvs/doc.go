// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipvs plans and programs virtual servers of IPVS that forward what a
// snapshot says, one family at a time, with ipsets and iptables chains
// beside them for what IPVS cannot do, see package beside. It decides nothing about Services: which endpoints
// serve is settled before. Only files ending in _linux.go talk to the kernel;
// everything else is ordinary code that builds and is tested on any system.
package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/platform/linux/beside"
)

// Device is the dummy interface that the addresses of Services are routed to,
// within the node.
const Device = "kube-ipvs0"

// DrainTimeout is how long an endpoint that left may keep its connections, if
// they do not end before.
const DrainTimeout = time.Hour

// Options are the choices that concern IPVS alone.
type Options struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that tells the
	// chains beside to masquerade.
	MasqueradeBit int
	// Scheduler chooses among endpoints, "" is rr.
	Scheduler string
	// Exclude are prefixes in which a virtual server is never touched that is
	// there already.
	Exclude []netip.Prefix
	// SyncPeriod is how long changes by others may stay unnoticed.
	SyncPeriod time.Duration
	// StrictARP keeps the node from answering ARP requests for addresses of
	// Services.
	StrictARP bool
	// TCP, TCPFin and UDP are how long the kernel remembers an idle
	// connection, zero leaves them alone. They hold for all of the node's
	// virtual servers.
	TCP, TCPFin, UDP time.Duration
}

func (o Options) rulesOptions() beside.Options { return beside.Options{MasqueradeBit: o.MasqueradeBit} }

func (o Options) scheduler() string { return cmp.Or(o.Scheduler, "rr") }

func (o Options) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(o.Exclude, func(p netip.Prefix) bool { return p.Contains(a) })
}
