// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package userspace forwards connections itself: it listens for each Service
// port, has package iptables lead packets to the listeners, and relays what
// comes to an endpoint, one family at a time. Which endpoints serve whom is
// settled before; this package takes them in turn, remembers clients, and goes
// on to the next endpoint where one does not answer.
//
// Only files ending in _linux.go need Linux. The rest runs, and is tested, on
// any system.
package userspace

import (
	"net/netip"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// Addrs are the addresses that listeners have, by family. They are added to
// the loopback interface and mean nothing elsewhere, so no address of the node
// has a port that answers strangers, and each family has all ports.
var Addrs = [...]netip.Addr{
	service.IPv4: netip.MustParseAddr("169.254.107.112"),
	service.IPv6: netip.MustParseAddr("fd6b:7562:6570:726f:7879::1"),
}

// DefaultUDPIdle is how long a UDP client is remembered that falls silent.
const DefaultUDPIdle = 250 * time.Millisecond

// Options are the choices that concern this mode alone.
type Options struct {
	// Rules are for the iptables chains. Relay is filled in.
	Rules iptables.Options
	// Ports are where listeners may be. The zero value leaves that to the
	// system.
	Ports Range
	// UDPIdle is how long a UDP client without traffic keeps its endpoint, 0
	// for DefaultUDPIdle.
	UDPIdle time.Duration
}

// Range is a range of ports, both ends included.
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
