// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"

	"kubeproxy/common/service"
)

// hook is where packets enter a base chain. Those of type nat see the first packet
// of each connection only.
type hook struct {
	name     string
	priority int
	filter   bool // the type is filter and not nat: it sees every packet
}

func (h *hook) typ() string {
	if h.filter {
		return "filter"
	}
	return "nat"
}

// chain is a list of rules with a name.
type chain struct {
	name  string
	hook  *hook // nil for chains that others jump to
	rules []rule
}

// text is c in the language of nft.
func (c *chain) text(family service.Family) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\tchain %s {\n", c.name)
	if c.hook != nil {
		fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy accept;\n", c.hook.typ(), c.hook.name, c.hook.priority)
	}
	for _, r := range c.rules {
		fmt.Fprintf(&b, "\t\t%s\n", r.text(family))
	}
	b.WriteString("\t}\n")
	return b.String()
}

// Priorities that netfilter gives to translation of destination and source.
const (
	dstNAT = -100
	srcNAT = 100
)

// Names of chains that verdict maps refer to.
const (
	refuseChain        = "refuse"
	localChain         = "external-local"
	nodePortLocalChain = "nodeport-external-local"
	markChain          = "mark-unless-pod"
	dispatchChain      = "dispatch"
	nodePortChain      = "nodeport-dispatch"
	rememberChain      = "remember"
	unallocatedChain   = "unallocated"
)

var (
	addrKey     = []field{daddr, proto, dport}
	nodePortKey = []field{proto, dport}
)

func jumpVerdict(name string) verdict { return verdict{verdictJump, name} }
func gotoVerdict(name string) verdict { return verdict{verdictGoto, name} }

// baseChains are the chains that a table for family always has, in an order
// in which each only refers to chains and sets that exist before any rule.
func baseChains(f service.Family, node *service.Node, o Options) []*chain {
	bit := o.mark()
	return append(filterChains(o), []*chain{
		{name: refuseChain, rules: []rule{
			{isProto{service.TCP}, reject{tcp: true}},
			{reject{}},
		}},
		{name: markChain, rules: markRules(f, node, bit)},
		{name: localChain, rules: localRules(f, node, bit, addrKey, internalClients, externalClients)},
		{name: nodePortLocalChain, rules: localRules(f, node, bit, nodePortKey, nodePortInternalClients, nodePortExternalClients)},
		{name: nodePortChain, rules: []rule{
			{lookup{nodePortKey, nodePortLocal, false}, gotoVerdict(nodePortLocalChain)},
			{dispatch{nodePortKey, nodePorts}},
		}},
		{name: dispatchChain, rules: dispatchRules(f, node)},
		{name: rememberChain, rules: rememberRules()},
		{name: unallocatedChain, rules: []rule{
			{translated{}, verdict{code: verdictReturn}},
			{isLocal{daddr}, verdict{code: verdictReturn}},
			{verdict{code: verdictDrop}},
		}},
		{name: "prerouting", hook: &hook{name: "prerouting", priority: dstNAT}, rules: []rule{{jumpVerdict(dispatchChain)}}},
		{name: "output", hook: &hook{name: "output", priority: dstNAT}, rules: []rule{{jumpVerdict(dispatchChain)}}},
		{name: "input", hook: &hook{name: "input", priority: srcNAT}, rules: []rule{{translated{}, jumpVerdict(rememberChain)}}},
		{name: "postrouting", hook: &hook{name: "postrouting", priority: srcNAT}, rules: append(unallocatedRules(f, node),
			rule{translated{}, jumpVerdict(rememberChain)},
			rule{marked{bit}, unmark{bit}, masquerade{}},
			rule{lookup{[]field{saddr, daddr}, hairpin, false}, masquerade{}},
		)},
	}...)
}

// filterChains see every packet, so there is none without need. A packet outside of
// the window of its connection is no longer translated back, and its receiver would
// reset what it does not know, see kubernetes/kubernetes#74839.
func filterChains(o Options) []*chain {
	if !o.DropInvalid {
		return nil
	}
	return []*chain{{name: "forward", hook: &hook{name: "forward", filter: true}, rules: []rule{
		{isProto{service.TCP}, invalid{}, verdict{code: verdictDrop}},
	}}}
}

// unallocatedRules drop what goes to an address that only a Service could
// have, and none has: along a default route it would travel for nothing, or in
// a circle. That is only known in the end, when whoever else forwards Services
// had the chance to.
func unallocatedRules(f service.Family, node *service.Node) []rule {
	var rules []rule
	for _, p := range service.InFamily(node.ServiceCIDRs, f) {
		rules = append(rules, rule{within{daddr, p.Masked(), false}, jumpVerdict(unallocatedChain)})
	}
	return rules
}

// dispatchRules find the Service: first by its own address, then, so that
// nothing loops through a default route, every other port of a ClusterIP is
// refused, then by the node's addresses.
func dispatchRules(f service.Family, node *service.Node) []rule {
	rules := []rule{
		{lookup{addrKey, restricted, false}, lookup{append(addrKey[:3:3], saddr), sources, true}, verdict{code: verdictDrop}},
		{lookup{addrKey, externalLocal, false}, gotoVerdict(localChain)},
		{dispatch{addrKey, services}},
		{lookup{[]field{daddr}, clusterIPs, false}, gotoVerdict(refuseChain)},
	}
	loopback := within{daddr, loopbackPrefix(f), true}
	toNode := rule{isLocal{daddr}, loopback, gotoVerdict(nodePortChain)}
	for _, p := range node.NodePortPrefixes(f) {
		switch {
		case p.Bits() == 0:
			return append(rules, toNode)
		case !service.LoopbackOnly(p): // listeners answer there
			rules = append(rules, append(rule{within{daddr, p.Masked(), false}}, toNode...))
		}
	}
	return rules
}

// podRules are rules that run then for traffic from pods, one for each way
// in which node tells it.
func podRules(f service.Family, node *service.Node, then ...statement) []rule {
	var rules []rule
	add := func(is statement) { rules = append(rules, append(rule{is}, then...)) }
	switch pods := node.Pods; {
	case pods.Interface != "":
		add(fromInterface{pods.Interface})
	case pods.InterfacePrefix != "":
		add(fromInterface{pods.InterfacePrefix + "*"})
	default:
		for _, p := range service.InFamily(pods.Prefixes, f) {
			add(within{saddr, p.Masked(), false})
		}
	}
	return rules
}

// markRules mark what enters through a ClusterIP for masquerading.
func markRules(f service.Family, node *service.Node, bit uint32) []rule {
	switch {
	case node.MasqueradeAll:
		return []rule{{mark{bit}}}
	case node.Pods.Known(f):
		return append(podRules(f, node, verdict{code: verdictReturn}), rule{mark{bit}})
	}
	return nil
}

// localRules are for external addresses with policy Local: pods and the node
// itself may go to any endpoint, others to those on this node.
func localRules(f service.Family, node *service.Node, bit uint32, key []field, clientMaps ...*set) []rule {
	rules := podRules(f, node, dispatch{key, clientMaps[0]})
	return append(rules,
		rule{isLocal{saddr}, mark{bit}, dispatch{key, clientMaps[0]}},
		rule{dispatch{key, clientMaps[1]}},
		rule{verdict{code: verdictDrop}})
}

// rememberRules find the chain that remembers a connection's client. The
// protocol is matched first because nft gives a port no type without it.
func rememberRules() []rule {
	var rules []rule
	for _, s := range []*set{affinity, nodePortAffinity} {
		key := []field{proto, origDport}
		if s == affinity {
			key = []field{origDaddr, proto, origDport}
		}
		for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
			rules = append(rules, rule{isProto{p}, dispatch{key, s}})
		}
	}
	return rules
}
