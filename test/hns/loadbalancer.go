// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"
)

// flags of a load balancer.
const (
	flagDSR  = 1
	flagIPv6 = 2
)

// The protocols HNS supports, by their IP numbers.
var protocols = []int{6, 17, 132}

// checkLoadBalancer checks a new load balancer, or the modified version of old.
func (c *call) checkLoadBalancer(lb Document, old *object) Code {
	if len(lb.Endpoints()) == 0 || len(lb.Ports()) == 0 {
		return InvalidParameter
	}
	if lb.Flags()&flagDSR != 0 && !c.options.Version.dsr() || lb.v6() && !c.options.Version.dualStack() {
		return InvalidParameter
	}
	for _, p := range lb.Ports() {
		if !c.validPort(p) {
			return InvalidParameter
		}
	}
	for _, vip := range append(lb.VIPs(), lb.SourceVIP()) {
		if ip, err := netip.ParseAddr(vip); vip != "" && (err != nil || ip.Is6() != lb.v6()) {
			return InvalidIP
		}
	}
	if code := c.checkTargets(lb); code != OK {
		return code
	}
	if old == nil && !c.portsLeft(lb) {
		return PortExists
	}
	return c.checkFronts(lb, old)
}

// portBlock is how many dynamic ports of the host a load balancer takes for each of its
// ports, unless it has direct server return.
const portBlock = 64

// portsLeft returns whether the host has the dynamic ports for a new load balancer.
func (c *call) portsLeft(lb Document) bool {
	if c.ports == 0 {
		return true
	}
	need := blocksOf(lb)
	for _, o := range c.store[LoadBalancer].all() {
		for protocol, blocks := range blocksOf(o.doc) {
			if need[protocol] > 0 {
				need[protocol] += blocks
			}
		}
	}
	for _, blocks := range need {
		if blocks*portBlock > c.ports {
			return false
		}
	}
	return true
}

// blocksOf counts the blocks of ports that a load balancer takes, by protocol.
func blocksOf(lb Document) map[int]int {
	blocks := map[int]int{}
	if lb.Flags()&flagDSR == 0 {
		for _, p := range lb.Ports() {
			blocks[p.number("Protocol")]++
		}
	}
	return blocks
}

func (c *call) validPort(p Document) bool {
	distribution := p.number("DistributionType")
	if distribution > 2 || distribution > 0 && !c.options.Version.affinity() {
		return false
	}
	for _, key := range []string{"InternalPort", "ExternalPort"} {
		if n := p.number(key); n < 1 || n > 65535 {
			return false
		}
	}
	return slices.Contains(protocols, p.number("Protocol"))
}

// checkTargets checks that all endpoints exist, are in one network, are on the switch,
// and have an address of the load balancer's family.
func (c *call) checkTargets(lb Document) Code {
	network, seen := "", map[string]bool{}
	for _, id := range lb.Endpoints() {
		e := c.store[Endpoint].objects[id]
		if e == nil {
			return EndpointNotFound
		}
		if e.portless || e.plugged > c.total {
			return PortNotFound
		}
		if network != "" && network != e.doc.NetworkID() {
			return InvalidParameter
		}
		if !slices.ContainsFunc(e.doc.IPs(), func(ip netip.Addr) bool { return ip.Is6() == lb.v6() }) {
			return InvalidIP
		}
		if seen[id] {
			c.warn("load balancer %s leads to endpoint %s twice", lb.ID(), id)
		}
		seen[id], network = true, e.doc.NetworkID()
	}
	return OK
}

// checkFronts checks that no other load balancer has the frontends.
func (c *call) checkFronts(lb Document, old *object) Code {
	for _, f := range frontsOf(lb) {
		owner := c.store[LoadBalancer].objects[c.index.fronts[f]]
		switch {
		case owner != nil && owner != old && owner.restored:
			return AlreadyExists
		case owner != nil && owner != old, c.portHeld(f, lb):
			return PortExists
		}
	}
	return OK
}

// portHeld returns whether a program on the host listens on a frontend. On Windows Server
// 2019 any listen address conflicts, unless the load balancer has direct server return.
func (c *call) portHeld(f front, lb Document) bool {
	if c.heldPorts[f.hostPort] == 0 {
		return false
	}
	return f.vip == "" || c.options.Version.server2019() && lb.Flags()&flagDSR == 0
}
