// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package iptables programs the rules of mode iptables, and the rules that modes ipvs and
// userspace need. A service.Snapshot goes in. Chains in the tables nat, filter and mangle
// come out, for one family per Backend, in the variant of iptables (legacy or nft) that
// the node uses. The package does not select endpoints: the snapshot contains that
// decision. Only files with the suffix _linux.go run programs or use kernel interfaces.
// All other files build and are tested on any system.
package iptables

import (
	"fmt"
	"net/netip"

	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Options are the settings that concern iptables alone.
type Options struct {
	// Role is the purpose of the chains, nil if they implement Services alone.
	Role *Role
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that selects packets for
	// masquerading in KUBE-POSTROUTING. That chain clears the bit.
	MasqueradeBit int
	// LocalhostNodePorts makes NodePorts answer on IPv4 loopback addresses, unless the
	// node's NodePort addresses exclude them.
	LocalhostNodePorts bool
	// DropInvalid drops forwarded packets that belong to no tracked connection. Untranslated, they
	// make their receiver reset the connection (kubernetes/kubernetes#74839). It has no effect
	// while net.netfilter.nf_conntrack_tcp_be_liberal is set: the kernel then takes packets outside
	// of the TCP window as valid, apart from resets (kubernetes/kubernetes#120412).
	DropInvalid bool
	// Relay is, by family, the address of the node on which a relay listens, invalid if none does.
	// The endpoints of snapshots are then its listeners. Rules redirect connections there, except
	// marked ones of local processes, masquerade nothing, and drop all other packets to this
	// address.
	Relay [2]netip.Addr
	// RelayPorts, by family, are all ports of that relay, for an address that other programs use,
	// too: rules leave their ports and the connections that they begin alone. The zero value means
	// all.
	RelayPorts [2]Ports
	// Bypass is for a relay that is about to end, and keeps its open connections. The endpoints are
	// those of the Service, and new connections go there, masqueraded as if by the relay.
	Bypass bool
	// ListSize is how many endpoints a chain may have before it is split, 0 for the best size.
	ListSize int
	// Dir is the directory of the iptables commands. If it is empty, PATH is searched.
	Dir string
}

func (o Options) mark() uint32 { return 1 << o.MasqueradeBit }

// Marked returns the mark and its mask in the format of -m mark.
func (o Options) Marked() string { return fmt.Sprintf("0x%x/0x%x", o.mark(), o.mark()) }

// Unmark returns the argument of the target MARK that flips the bit.
func (o Options) Unmark() string { return fmt.Sprintf("0x%x/0x0", o.mark()) }

// command returns the name of the iptables command for f.
func command(f service.Family) string {
	if f == service.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// Mode describes mode iptables.
func Mode() mode.Descriptor {
	return mode.Descriptor{
		Mode: config.Mode{
			Name: config.IPTables, OS: config.Linux, Localhost: config.LocalhostRules,
			Settings: []string{
				"iptables.masqueradeBit", "iptables.masqueradeAll", "iptables.localhostNodePorts", "iptables.syncPeriod", "iptables.minSyncPeriod",
				"conntrack.tcpBeLiberal",
			},
		},
		DefaultRank:  2,
		FallbackRank: 2,
		// iptables-restore needs several times what the proxy does, in the same cgroup:
		// iptables-nft about 150 MB for 5,000 Services of ten endpoints.
		MemoryShare:  4,
		XTables:      true,
		MetricGroups: []string{metrics.IPTables, metrics.Conntrack},
		Needs:        "the commands of iptables 1.6.2 or later, legacy or nft",
		Leaves:       "`KUBE-` chains in tables nat and filter",
		Section:      SectionOf,
		Render:       render,
		Differences: func(want *service.Snapshot, c route.Conn, r mode.Rendering) ([]string, error) {
			return Differences(want, c, OptionsOf(r.Config)), nil
		},
		System: system(),
	}
}

// SectionOf returns what section iptables of the configuration says.
func SectionOf(c *config.Config) mode.Section {
	s := &c.IPTables
	return mode.Section{MinSyncPeriod: s.MinSyncPeriod.Duration, SyncPeriod: s.SyncPeriod.Duration, MasqueradeAll: s.MasqueradeAll}
}

// OptionsOf translates the settings of the configuration.
func OptionsOf(c *config.Config) Options {
	return Options{
		MasqueradeBit:      int(*c.IPTables.MasqueradeBit),
		LocalhostNodePorts: *c.IPTables.LocalhostNodePorts,
		DropInvalid:        !c.Conntrack.TCPBeLiberal,
	}
}

func render(want *service.Snapshot, r mode.Rendering) (reconcile.Objects, any, error) {
	all, doc := Render(want, OptionsOf(r.Config))
	return all, doc, nil
}
