// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// jump is a rule in a built-in chain that leads to a chain of ours.
type jump struct {
	from id
	rule string
}

// jumps returns the rules that lead from the built-in chains to ours. Each is inserted
// at the head of its chain. Their order does not matter: a packet with the masquerade
// mark has been translated, so no rule rejects it.
func (l layout) jumps() []jump {
	if l.isIPVS() {
		return ipvsJumps()
	}
	refuse := []jump{
		{id{filter, "INPUT"}, "-p tcp -j " + healthChain},
		{id{filter, "INPUT"}, newOnly + "-j " + servicesChain},
		{id{filter, "FORWARD"}, newOnly + "-j " + servicesChain},
		{id{filter, "OUTPUT"}, newOnly + "-j " + servicesChain},
	}
	if l.relays() {
		return append(l.relayJumps(), append(refuse, jump{id{filter, "FORWARD"}, "-j " + forwardChain})...)
	}
	return append([]jump{
		{id{nat, "PREROUTING"}, "-j " + servicesChain},
		{id{nat, "OUTPUT"}, "-j " + servicesChain},
		{id{nat, "POSTROUTING"}, "-j " + postroutingChain},
		{id{filter, "FORWARD"}, "-j " + forwardChain},
	}, refuse...)
}

const (
	newOnly   = "-m conntrack --ctstate NEW "
	localOnly = "-m addrtype --dst-type LOCAL "
)

// layout computes the chains of one family.
type layout struct {
	family  service.Family
	options Options
	// noLocalnet disables NodePorts on loopback addresses, and liberal disables
	// DropInvalid, both regardless of options.
	noLocalnet, liberal bool
}

// shared returns the chains that do not belong to a single Port: the trees with the
// entries of ports and of others, and the chains that every node has.
func (l layout) shared(node *service.Node, ports iter.Seq[*service.Port], others []entry) []chain {
	var all, lowPriority []entry
	for p := range ports {
		own := l.entries(p, node)
		lowPriority = append(lowPriority, slices.DeleteFunc(slices.Clone(own), func(e entry) bool { return !e.lowPriority })...)
		all = append(all, slices.DeleteFunc(own, func(e entry) bool { return e.lowPriority })...)
	}
	all = append(all, lowPriority...)
	// Of two entries with the same key the first one counts. Desired entries come before
	// retained ones.
	roots, branches := l.buildTrees(append(all, others...))
	if l.isIPVS() {
		return append(l.ipvsChains(node, roots[id{nat, ipvsTargetsChain}]), branches...)
	}
	if l.localhost(node) && !l.relays() {
		root := id{filter, servicesChain}
		roots[root] = append([]string{martianRule}, roots[root]...)
	}
	chains := l.base(node)
	for _, table := range tables {
		for _, r := range l.roots(table) {
			top := slices.Concat(r.before, roots[id{table, servicesChain}], l.nodePortRules(node, r.nodePorts))
			chains = append(chains,
				chain{id{table, r.nodePorts}, roots[id{table, nodePortsChain}]},
				chain{id{table, r.services}, top})
		}
	}
	return append(append(chains, l.healthChains(node, roots[id{filter, healthPortsChain}])...), branches...)
}

// masqueradeRule selects the source port at random. By default the kernel keeps the port
// of the client. If the first packets of two clients with the same port arrive for one
// endpoint at the same moment, the kernel drops one of them
// (kubernetes/kubernetes#76699).
const masqueradeRule = "-j MASQUERADE --random-fully"

// The rules whose counters are read. loopbackRule has no target, it only counts. A
// connection to a NodePort of a loopback address always carries the masquerade mark, so
// few packets reach this rule.
const (
	invalidRule  = "-m conntrack --ctstate INVALID -j DROP"
	loopbackRule = "-m conntrack --ctorigdst 127.0.0.0/8"
)

// base returns the chains that do not depend on Services.
func (l layout) base(node *service.Node) []chain {
	if l.relays() {
		return l.relayBase()
	}
	mark := l.options.marked()
	forward := []string{
		"-m mark --mark " + mark + " -j ACCEPT",
		"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	}
	if l.options.DropInvalid && !l.liberal {
		forward = append([]string{invalidRule}, forward...)
	}
	postrouting := append([]string{"-m conntrack --ctstate DNAT " + l.hairpinMatch() + masqueradeRule}, l.masqueradeMarked()...)
	if l.localhost(node) {
		postrouting = slices.Insert(postrouting, 2, loopbackRule)
	}
	return []chain{
		{id{nat, markChain}, []string{"-j MARK --set-xmark " + mark}},
		{id{nat, markClusterChain}, l.markClusterRules(node, markChain)},
		{id{nat, postroutingChain}, postrouting},
		l.rejectChain(),
		{id{filter, forwardChain}, forward},
	}
}

// masqueradeMarked masquerades marked packets that were translated. Others may set the
// bit for purposes of their own: kubernetes/kubernetes#113659.
func (l layout) masqueradeMarked() []string {
	return []string{
		"-m mark ! --mark " + l.options.marked() + " -j RETURN",
		"-m conntrack ! --ctstate DNAT -j RETURN",
		"-j MARK --set-xmark " + l.options.unmark(),
		masqueradeRule,
	}
}

func (l layout) rejectChain() chain {
	return chain{id{filter, refuseChain}, []string{
		"-p tcp -j REJECT --reject-with tcp-reset",
		"-j REJECT --reject-with " + l.unreachable(),
	}}
}

func (l layout) unreachable() string {
	if l.family == service.IPv6 {
		return "icmp6-port-unreachable"
	}
	return "icmp-port-unreachable"
}

// healthChains accept packets to health checks, ahead of rules and a policy of INPUT that
// would drop them. ports are the rules at the root of their tree. The addresses of
// NodePorts answer health checks; the address of a relay never does.
func (l layout) healthChains(node *service.Node, ports []string) []chain {
	var rules []string
	if len(ports) > 0 {
		rules = l.nodePortRules(node, healthPortsChain)
	}
	if l.relays() && len(rules) > 0 {
		rules = append([]string{l.hidden()}, rules...)
	}
	return []chain{{id{filter, healthPortsChain}, ports}, {id{filter, healthChain}, rules}}
}

// markClusterRules mark packets for masquerading that arrive for a ClusterIP and need
// it. They jump to chain for that.
func (l layout) markClusterRules(node *service.Node, chain string) []string {
	mark := "-j " + chain
	switch {
	case node.MasqueradeAll:
		return []string{mark}
	case node.Pods.Known(l.family):
		return append(podRules(l.family, node, "-j RETURN"), mark)
	}
	return nil
}

// hairpinMatch matches packets whose source is their destination. No other match
// compares two fields of a packet, so without it each endpoint would need a rule. The
// classic BPF program (docs.kernel.org/networking/filter.html) loads a word of the
// source into A, copies it to X, loads the same word of the destination and compares
// both. It continues with the next word while they are equal.
func (l layout) hairpinMatch() string {
	source, words, size := 12, 1, 4
	if l.family == service.IPv6 {
		source, words, size = 8, 4, 16
	}
	var code []string
	for w := range words {
		at := source + 4*w
		failure := 4*(words-1-w) + 1
		code = append(code,
			fmt.Sprintf("32 0 0 %d", at), "7 0 0 0",
			fmt.Sprintf("32 0 0 %d", at+size),
			fmt.Sprintf("29 0 %d 0", failure))
	}
	code = append(code, "6 0 0 65535", "6 0 0 0")
	return fmt.Sprintf("-m bpf --bytecode \"%d,%s\" ", len(code), strings.Join(code, ","))
}

var loopback = [...]netip.Prefix{service.IPv4: netip.MustParsePrefix("127.0.0.0/8"), service.IPv6: netip.MustParsePrefix("::1/128")}

// martianRule protects loopback addresses. Once the kernel routes such addresses for
// NodePorts, it would also accept packets to them from the network
// (kubernetes/kubernetes#92315).
const martianRule = "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"

// nonLocalSourceRule keeps other hosts from NodePorts on loopback addresses. The DNAT
// happens before the routing decision, so later rules cannot recognize such a packet.
const nonLocalSourceRule = "-d 127.0.0.0/8 -m addrtype ! --src-type LOCAL -j RETURN"

// localhost reports whether NodePorts answer on loopback addresses.
func (l layout) localhost(node *service.Node) bool { return l.wantsLocalhost(node) && !l.noLocalnet }

// wantsLocalhost reports whether the configuration requests that.
func (l layout) wantsLocalhost(node *service.Node) bool {
	if l.family != service.IPv4 || !l.options.LocalhostNodePorts {
		return false
	}
	return slices.ContainsFunc(node.NodePortPrefixes(l.family), loopback[l.family].Overlaps)
}

// nodePortRules jump to the NodePorts for packets to the addresses that answer them.
func (l layout) nodePortRules(node *service.Node, chain string) []string {
	rules := []string{"-d " + loopback[l.family].String() + " -j RETURN"}
	if l.localhost(node) {
		rules = []string{nonLocalSourceRule}
	}
	local := localOnly + "-j " + chain
	prefixes := node.NodePortPrefixes(l.family)
	if len(prefixes) == 0 {
		return nil
	}
	for _, p := range prefixes {
		switch {
		case p.Bits() == 0:
			return append(rules, local)
		case l.localhost(node) || !service.LoopbackOnly(p): // otherwise only listeners answer there
			rules = append(rules, "-d "+p.Masked().String()+" "+local)
		}
	}
	return rules
}
