// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/platform/linux/iptables/walk"
	"kubeproxy/platform/linux/netlink/nft"
)

// traceComparison compares what a packet meets in the tables with what it should meet.
type traceComparison struct {
	layout
	tables     *observed
	have, plan *path
	list       []string
}

// faults lists the differences. Rules that concern other packets only are left out.
func (c *traceComparison) faults() []string {
	for _, table := range c.tables.dormant {
		c.fault("table %s %s has the flag dormant, so the kernel runs none of its chains", nft.FamilyName(c.family), table)
	}
	visits := maps.Clone(c.plan.visits)
	for i, all := range c.have.visits {
		visits[i] = slices.Concat(visits[i], all)
	}
	for _, i := range slices.SortedFunc(maps.Keys(visits), id.compare) {
		switch {
		case slices.Contains(c.tables.dormant, i.table):
		case c.options.Role.owns(i):
			c.compareChain(i, visits[i])
		case i.isSystem():
			c.compareJumps(i)
		}
	}
	c.foreign()
	return c.list
}

func (c *traceComparison) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.list, text) {
		c.list = append(c.list, text)
	}
}

// compareChain compares the rules of a chain that concern one of the packets.
func (c *traceComparison) compareChain(i id, packets []walk.Packet) {
	at := walk.Chain{Table: i.table, Name: i.name}
	switch {
	case !c.have.tables.Has(at):
		c.fault("chain %s of table %s is missing", i.name, i.table)
		return
	case !c.plan.tables.Has(at):
		c.fault("chain %s of table %s is not one of kube-proxy's now", i.name, i.table)
		return
	}
	have := c.concerning(c.have.tables.Rules(at), packets)
	want := c.concerning(c.plan.tables.Rules(at), packets)
	c.compareRules(i, have, want)
}

// concerning returns those of rules that concern one of the packets.
func (c *traceComparison) concerning(rules []*walk.Rule, packets []walk.Packet) []string {
	var all []string
	for _, r := range rules {
		if slices.ContainsFunc(packets, func(p walk.Packet) bool { return c.have.node.Concerns(r, p) }) {
			all = append(all, r.Text)
		}
	}
	return all
}

// mostRules bounds how many rules of a chain are named.
const mostRules = 3

func (c *traceComparison) compareRules(in id, have, want []string) {
	same := func(a, b string) bool { return unquoted(a) == unquoted(b) }
	if slices.EqualFunc(have, want, same) {
		return
	}
	missing, extra := without(want, have), without(have, want)
	for _, r := range missing[:min(mostRules, len(missing))] {
		c.fault("chain %s of table %s lacks the rule %q", in.name, in.table, r)
	}
	if n := len(missing) - mostRules; n > 0 {
		c.fault("chain %s of table %s lacks %d more rules", in.name, in.table, n)
	}
	for _, r := range extra[:min(mostRules, len(extra))] {
		c.fault("chain %s of table %s has the rule %q, which is not kube-proxy's", in.name, in.table, r)
	}
	if n := len(extra) - mostRules; n > 0 {
		c.fault("chain %s of table %s has %d more rules that are not kube-proxy's", in.name, in.table, n)
	}
	if len(missing)+len(extra) == 0 {
		c.fault("chain %s of table %s has its rules in another order", in.name, in.table)
	}
}

// without returns those of rules that others lacks, each as often as it occurs more.
func without(rules, others []string) []string {
	left := map[string]int{}
	for _, r := range others {
		left[unquoted(r)]++
	}
	var all []string
	for _, r := range rules {
		if left[unquoted(r)]--; left[unquoted(r)] < 0 {
			all = append(all, r)
		}
	}
	return all
}

// compareJumps checks that a built-in chain leads to our chains.
func (c *traceComparison) compareJumps(from id) {
	jumps := slices.DeleteFunc(c.jumps(), func(j jump) bool { return j.from != from })
	for _, j := range c.tables.missingJumps(jumps) {
		c.fault("chain %s of table %s lacks the rule %q", from.name, from.table, j.rule)
	}
	for _, m := range c.tables.misplaced(jumps) {
		c.fault("%s", m)
	}
	stay := map[id]bool{}
	for _, j := range jumps {
		stay[id{from.table, targetOf(walk.Split(j.rule))}] = true
	}
	for _, j := range c.tables.extraJumps(stay, jumps) {
		if j.from == from {
			c.fault("chain %s of table %s has the rule %q, which kube-proxy did not make", from.name, from.table, j.rule)
		}
	}
}

// foreign names rules and policies of others that decide what happens to the connection.
func (c *traceComparison) foreign() {
	if c.have.action() == c.plan.action() && sameTargets(c.have, c.plan) {
		return
	}
	for _, s := range c.have.accepted {
		c.fault("%s lets the packet pass, so that later rules do not see it, and is not kube-proxy's", stepText(s))
	}
	for to := range c.have.targets {
		if _, planned := c.plan.targets[to]; !planned && !c.translates(to.String()) {
			c.fault("a rule that is not kube-proxy's leads to %s", to)
		}
	}
}

func sameTargets(a, b *path) bool { return maps.Equal(a.targets, b.targets) }

// translates reports whether a chain of ours that a packet met leads to an address. Then
// the comparison of that chain has named the rule.
func (c *traceComparison) translates(to string) bool {
	for i := range c.have.visits {
		if !c.options.Role.owns(i) {
			continue
		}
		for _, r := range c.have.tables.Rules(walk.Chain{Table: i.table, Name: i.name}) {
			if strings.Contains(r.Text, "--to-destination "+to) {
				return true
			}
		}
	}
	return false
}

// purpose says what the rules of a chain do.
func (p *path) purpose(c walk.Chain) string {
	if p.relays() && !p.bypasses() && strings.HasPrefix(c.Name, "KUBE-SV") {
		return "redirect it to a listener of kube-proxy"
	}
	if text, ok := purposes[idOf(c)]; ok {
		return text
	}
	for _, x := range prefixPurposes {
		if strings.HasPrefix(c.Name, x.prefix) {
			return x.text
		}
	}
	return "go on there"
}

var purposes = map[id]string{
	{nat, servicesChain}:       "look for the Service of the address",
	{nat, portalsInChain}:      "look for the Service of the address",
	{nat, portalsOutChain}:     "look for the Service of the address, unless the relay sends it",
	{nat, nodePortsChain}:      "the address is the node's: look for the NodePort",
	{nat, nodePortsInChain}:    "the address is the node's: look for the NodePort",
	{nat, nodePortsOutChain}:   "the address is the node's: look for the NodePort",
	{nat, markChain}:           "masquerade it later",
	{nat, markClusterChain}:    "masquerade it later, unless it comes from a pod",
	{nat, postroutingChain}:    "masquerade it if it is to be",
	{filter, servicesChain}:    "refuse or drop what no rule translated, for Services without endpoints",
	{filter, nodePortsChain}:   "the same for NodePorts",
	{filter, forwardChain}:     "accept Service traffic",
	{filter, refuseChain}:      "refuse it",
	{filter, relayChain}:       "keep other clients from the listeners of the relay",
	{filter, healthChain}:      "accept health checks",
	{filter, healthPortsChain}: "the ports of health checks",

	{nat, ipvsServicesChain}:        "find out whether it is for a Service",
	{nat, ipvsFrontendChain}:        "masquerade it later, or choose another virtual server, if its Service needs that",
	{nat, ipvsMarkChain}:            "masquerade it later",
	{nat, ipvsMarkClusterChain}:     "masquerade it later, unless it comes from a pod",
	{nat, ipvsLocalChain}:           "policy Local: distinguish clients outside of the cluster",
	{nat, ipvsInternalChain}:        "a client of the cluster: endpoints on every node",
	{nat, ipvsTargetsChain}:         "the virtual server that has the endpoints for this client",
	{nat, ipvsPostroutingChain}:     "masquerade it if it is to be",
	{mangle, ipvsDropChain}:         "drop what no endpoint may get",
	{mangle, ipvsDropLocalChain}:    "policy Local: drop it if no endpoint is left for this client",
	{mangle, ipvsDropInternalChain}: "policy Local: drop it if no endpoint is left for this client",
	{filter, ipvsInputChain}:        "refuse what no virtual server takes",
	{filter, ipvsRefuseChain}:       "refuse it",
	{filter, ipvsForwardChain}:      "drop what no Service has",
	{filter, ipvsUnallocatedChain}:  "drop what no Service has",
}

var prefixPurposes = []struct{ prefix, text string }{
	{clusterPrefix, "choose an endpoint at random"},
	{localPrefix, "choose an endpoint on this node at random"},
	{externalPrefix, "an external address: masquerade it later if that is needed"},
	{firewallPrefix, "admit the allowed sources"},
	{addrPrefix, "go on with this part of the addresses"},
	{ipvsAddrPrefix, "go on with this part of the addresses"},
	{portPrefix, "go on with this part of the ports"},
	{healthPrefix, "go on with this part of the ports"},
}
