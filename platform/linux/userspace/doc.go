// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package userspace implements mode userspace. A service.Snapshot goes in. The package
// opens listeners for each Service port, redirects connections to them through package
// iptables, and relays each connection or datagram to an endpoint, for one family per
// Backend. It also relays NodePorts on loopback addresses for other modes, see Localhost.
// The snapshot contains which endpoints serve which clients. This package selects among
// them in turn, implements session affinity, and tries the next endpoint if one does not
// answer.
//
// Only files with the suffix _linux.go need Linux. All other files build and are tested
// on any system.
package userspace

import (
	"net/netip"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// Addrs are the addresses that listeners have, by family, unless Options name
// others. They are added to the loopback interface and mean nothing elsewhere, so no
// address of the node has a port that answers other clients, and each family has all ports.
var Addrs = [...]netip.Addr{
	service.IPv4: netip.MustParseAddr("169.254.107.112"),
	service.IPv6: netip.MustParseAddr("fd6b:7562:6570:726f:7879::1"),
}

// DefaultUDPIdle is how long a silent UDP client keeps its endpoint.
const DefaultUDPIdle = 250 * time.Millisecond

// Options are the settings that concern this mode alone.
type Options struct {
	// Rules are for the iptables chains. Relay and RelayPorts are filled in.
	Rules iptables.Options
	// Ports are the ports that listeners may use. With the zero value the system selects
	// them.
	Ports Range
	// Listen, by family, is the address of the node that listeners have instead of that
	// of Addrs, if it is valid. It is used only with Ports, because only these ports of
	// that address are guarded.
	Listen [2]netip.Addr
	// UDPIdle is how long a UDP client without traffic keeps its endpoint, 0
	// for DefaultUDPIdle.
	UDPIdle time.Duration
}

// Range is a range of ports, including both ends.
type Range struct{ First, Last uint16 }

func (r Range) unset() bool { return r.First == 0 }

func (r Range) contains(port uint16) bool { return r.First <= port && port <= r.Last }

// bound reports whether listeners of f are at an address of the node.
func (o Options) bound(f service.Family) bool { return o.Listen[f].IsValid() && !o.Ports.unset() }

// addr returns the address of listeners of f.
func (o Options) addr(f service.Family) netip.Addr {
	if o.bound(f) {
		return o.Listen[f]
	}
	return Addrs[f]
}

func (o Options) rules() iptables.Options {
	for _, f := range service.Families {
		o.Rules.Relay[f] = o.addr(f)
		if o.bound(f) {
			o.Rules.RelayPorts[f] = iptables.Ports(o.Ports)
		}
	}
	return o.Rules
}

func (o Options) udpIdle() time.Duration {
	if o.UDPIdle == 0 {
		return DefaultUDPIdle
	}
	return o.UDPIdle
}
