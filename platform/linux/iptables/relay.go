// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"net/netip"

	"kubeproxy/common/service"
)

// relays reports that the endpoints are listeners of a relay on this node.
func (l layout) relays() bool { return l.options.Relay[l.family].IsValid() }

// root names the chains from which the trees of a table are entered.
type root struct {
	services, nodePorts string
	before              []string // rules that come first
}

// roots returns those of table. Before a relay there are two for table nat,
// since what the relay itself sends is not to come back to it.
func (l layout) roots(table string) []root {
	if table != nat || !l.relays() {
		return []root{{services: servicesChain, nodePorts: nodePortsChain}}
	}
	return []root{
		{services: portalsInChain, nodePorts: nodePortsInChain},
		{portalsOutChain, nodePortsOutChain, []string{"-m mark --mark " + l.options.marked() + " -j RETURN"}},
	}
}

// relayRules are for what goes to or comes from the address of a relay. What
// was translated is a Service's, whatever other rules think of its ports, and
// nothing else has to do there: neither strangers who guess a port, nor late
// datagrams to clients whose flow is forgotten.
var relayRules = []string{"-m conntrack --ctstate DNAT -j ACCEPT", "-j DROP"}

func (l layout) relayJumps() []jump {
	addr := host(l.options.Relay[l.family])
	return []jump{
		{id{nat, "PREROUTING"}, "-j " + portalsInChain},
		{id{nat, "OUTPUT"}, "-j " + portalsOutChain},
		{id{filter, "INPUT"}, "-d " + addr + " -j " + relayChain},
		{id{filter, "OUTPUT"}, "-s " + addr + " -j " + relayChain},
	}
}

// NewWith returns the Backend for one family that works through d.
func NewWith(f service.Family, o Options, d Driver) *Backend {
	return &Backend{layout: layout{f, o}, driver: d, tally: Tally{Written: perTable()}}
}

// Destinations returns where the chains in the tables translate to, by their
// name: one endpoint of each, which is the only one before a relay.
func (b *Backend) Destinations(ctx context.Context) (map[string]netip.AddrPort, error) {
	h, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]netip.AddrPort{}
	for i, rules := range h.chains {
		for _, r := range rules {
			if to, err := netip.ParseAddrPort(argument(words(r), "--to-destination")); err == nil {
				all[i.name] = to
			}
		}
	}
	return all, nil
}

// ChainOf names the chain that translates to the endpoints of p for policy.
func ChainOf(p *service.Port, policy service.Policy) string {
	if policy == service.PolicyLocal {
		return named(localPrefix, p)
	}
	return named(clusterPrefix, p)
}

// Needs reports whether some frontend of p leads to its endpoints for policy.
func Needs(p *service.Port, policy service.Policy) bool {
	internal, external := enters(p)
	if policy == service.PolicyLocal {
		return len(p.Local) > 0 && (external && p.External == policy || internal && p.Internal == policy)
	}
	return len(p.Cluster) > 0 && (external || internal && p.Internal == policy)
}
