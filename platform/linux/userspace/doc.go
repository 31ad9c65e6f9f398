// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package userspace implements mode userspace. The input is a service.Snapshot. The
// package opens listeners for each Service port, makes package iptables redirect
// connections to them, and relays each connection or datagram to an endpoint, for one
// family per Backend. It also relays NodePorts on loopback addresses for other modes,
// see Localhost. The snapshot contains which endpoints serve which clients. This package
// selects among them in turn, implements session affinity, and tries the next endpoint
// if one does not answer.
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

// Addrs are the addresses of the listeners, by family. They are on the loopback
// interface and reachable only there. So no address of the node has a port that answers
// other hosts, and each family can use all ports.
var Addrs = [...]netip.Addr{
	service.IPv4: netip.MustParseAddr("169.254.107.112"),
	service.IPv6: netip.MustParseAddr("fd6b:7562:6570:726f:7879::1"),
}

// DefaultUDPIdle is how long a silent UDP client keeps its endpoint.
const DefaultUDPIdle = 250 * time.Millisecond

// Options are the settings that concern this mode alone.
type Options struct {
	// Rules are the options of the iptables chains. The package sets Relay.
	Rules iptables.Options
	// Ports are the ports that listeners may use. With the zero value the system selects
	// them.
	Ports Range
	// UDPIdle is how long a UDP client without traffic keeps its endpoint, 0 for
	// DefaultUDPIdle.
	UDPIdle time.Duration
}

// Range is a range of ports, including both ends.
type Range struct{ First, Last uint16 }

func (r Range) unset() bool { return r.First == 0 }

func (r Range) contains(port uint16) bool { return r.First <= port && port <= r.Last }

func (o Options) rules() iptables.Options {
	o.Rules.Relay = Addrs
	return o.Rules
}

func (o Options) udpIdle() time.Duration {
	if o.UDPIdle == 0 {
		return DefaultUDPIdle
	}
	return o.UDPIdle
}
