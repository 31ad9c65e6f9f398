// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"kubeproxy/common/service"
)

// hook is where packets enter a base chain. A chain of type nat sees only the first
// packet of each connection, see nft(8).
type hook struct {
	name     string
	priority int
	filter   bool // the type is filter instead of nat: the chain sees every packet
}

func (h *hook) typ() string {
	if h.filter {
		return "filter"
	}
	return "nat"
}

// chain is a named list of rules.
type chain struct {
	name  string
	hook  *hook // nil for a chain that is not a base chain
	rules []rule
}

// text returns c in the syntax of nft(8).
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

// dstNAT and srcNAT are netfilter's priorities for the translation of the destination and
// the source (kernel: include/uapi/linux/netfilter_ipv4.h, NF_IP_PRI_NAT_DST and
// NF_IP_PRI_NAT_SRC).
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
	outputChain        = "output"
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

// baseChains returns the chains that the table of family f always contains. The order
// ensures that each chain refers only to chains before it and to sets.
func baseChains(f service.Family, node *service.Node, o Options) []*chain {
	bit := o.mark()
	return append(append(filterChains(o), countChains(o)...), []*chain{
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
		{name: unallocatedChain, rules: unallocatedRules(f, node)},
		{name: "prerouting", hook: &hook{name: "prerouting", priority: dstNAT}, rules: []rule{{jumpVerdict(dispatchChain)}}},
		{name: outputChain, hook: &hook{name: "output", priority: dstNAT}, rules: append(unrelayedRules(f, node), rule{jumpVerdict(dispatchChain)})},
		{name: "input", hook: &hook{name: "input", priority: srcNAT}, rules: append(countingRules(o), rule{translated{}, jumpVerdict(rememberChain)})},
		{name: "postrouting", hook: &hook{name: "postrouting", priority: srcNAT}, rules: append(append(rangeRules(f, node), countingRules(o)...),
			rule{translated{}, jumpVerdict(rememberChain)},
			rule{marked{bit}, translated{}, unmark{bit}, masquerade{}}, // others may set the bit, too: kubernetes/kubernetes#113659
			rule{lookup{[]field{saddr, daddr}, hairpin, false}, masquerade{}},
		)},
	}...)
}

// filterChains returns chains that see every packet, so there is none unless an option
// needs it. Connection tracking does not translate the source of a reply outside of the
// TCP window. The client does not know such a packet and would answer with a reset, see
// kubernetes/kubernetes#74839.
func filterChains(o Options) []*chain {
	if !o.DropInvalid {
		return nil
	}
	return []*chain{{name: "forward", hook: &hook{name: "forward", filter: true}, rules: []rule{
		{isProto{service.TCP}, invalid{}, verdict{code: verdictDrop}},
	}}}
}

// unallocatedRules drop packets to an address in a Service CIDR that neither a Service
// nor, as far as is known, a pod has. With a default route such a packet would leave the
// node for nothing, or come back in a loop.
func unallocatedRules(f service.Family, node *service.Node) []rule {
	rules := []rule{
		{translated{}, verdict{code: verdictReturn}},
		{isLocal{daddr}, verdict{code: verdictReturn}},
	}
	for _, a := range node.EndpointsInServiceCIDRs {
		if service.FamilyOf(a) == f {
			rules = append(rules, rule{within{daddr, netip.PrefixFrom(a, a.BitLen()), false}, verdict{code: verdictReturn}})
		}
	}
	return append(rules, rule{verdict{code: verdictDrop}})
}

// rangeRules lead to unallocatedRules. They run last, in postrouting, so that another
// proxy on the node can translate the packet first.
func rangeRules(f service.Family, node *service.Node) []rule {
	var rules []rule
	for _, p := range service.InFamily(node.ServiceCIDRs, f) {
		rules = append(rules, rule{within{daddr, p.Masked(), false}, jumpVerdict(unallocatedChain)})
	}
	return rules
}

// dispatchRules find the frontend. The address of a Service comes first. After that every
// other port of a ClusterIP is refused, so that such packets do not loop through a
// default route. The node's own addresses come last.
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
		case !service.LoopbackOnly(p): // the local listeners for NodePorts serve loopback addresses
			rules = append(rules, append(rule{within{daddr, p.Masked(), false}}, toNode...))
		}
	}
	return rules
}

// refuseUnrelayed returns the rule that refuses NodePorts at the loopback address of f for
// which the local listeners cannot serve the protocol. The kernel never confirms the
// connection of a packet that is refused, so each further packet gets there and is counted.
func refuseUnrelayed(f service.Family) rule {
	at := service.Localhost(f)
	return rule{within{daddr, netip.PrefixFrom(at, at.BitLen()), false}, lookup{nodePortKey, unrelayed, false}, counter{}, reject{}}
}

// unrelayedRules are there if the operator wants NodePorts on the loopback address.
func unrelayedRules(f service.Family, node *service.Node) []rule {
	if !node.LocalhostNodePorts(f) {
		return nil
	}
	return []rule{refuseUnrelayed(f)}
}

// podRules returns rules that run then for traffic from pods, one for each of the ways in
// which node identifies pods.
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

// markRules mark packets to a ClusterIP for masquerading.
func markRules(f service.Family, node *service.Node, bit uint32) []rule {
	switch {
	case node.MasqueradeAll:
		return []rule{{mark{bit}}}
	case node.Pods.Known(f):
		return append(podRules(f, node, verdict{code: verdictReturn}), rule{mark{bit}})
	}
	return nil
}

// localRules implement policy Local for external addresses. Pods and the node itself
// reach any endpoint. Other clients reach only the endpoints on this node.
func localRules(f service.Family, node *service.Node, bit uint32, key []field, clientMaps ...*set) []rule {
	rules := podRules(f, node, dispatch{key, clientMaps[0]})
	return append(rules,
		rule{isLocal{saddr}, mark{bit}, dispatch{key, clientMaps[0]}},
		rule{dispatch{key, clientMaps[1]}},
		rule{verdict{code: verdictDrop}})
}

// rememberRules jump to the chain that records the client of a connection. They match the
// protocol first, because without it nft cannot determine the type of a port.
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
