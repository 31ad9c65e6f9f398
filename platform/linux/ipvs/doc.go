// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipvs programs the virtual servers of mode ipvs. A service.Snapshot goes in.
// Virtual servers of IPVS, a dummy interface with local routes for the addresses of
// Services, and sysctls come out, for one family per Backend. Package companion adds the
// ipsets and iptables chains for what IPVS cannot do. The package does not select
// endpoints: the snapshot contains that decision. Only files with the suffix _linux.go
// use kernel interfaces. All other files build and are tested on any system.
package ipvs

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/platform/linux/ipvs/companion"
)

// Device is the dummy interface that the local routes of Service addresses refer to.
const Device = "kube-ipvs0"

// DrainTimeout limits how long a removed endpoint keeps its connections.
const DrainTimeout = time.Hour

// Options are the settings that concern IPVS alone.
type Options struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that selects packets for
	// masquerading in the chains.
	MasqueradeBit int
	// Scheduler selects among endpoints, see ipvsadm(8). "" means rr.
	Scheduler string
	// Exclude are prefixes in which existing virtual servers are never changed.
	Exclude []netip.Prefix
	// SyncPeriod limits how long foreign changes stay undetected.
	SyncPeriod time.Duration
	// StrictARP makes the node ignore ARP requests for addresses of Services.
	StrictARP bool
	// TCP, TCPFin and UDP are the timeouts of idle connections in the kernel. Zero
	// leaves a timeout unchanged. They apply to all virtual servers of the node.
	TCP, TCPFin, UDP time.Duration
}

func (o Options) rulesOptions() companion.Options {
	return companion.Options{MasqueradeBit: o.MasqueradeBit}
}

func (o Options) scheduler() string { return cmp.Or(o.Scheduler, "rr") }

func (o Options) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(o.Exclude, func(p netip.Prefix) bool { return p.Contains(a) })
}
