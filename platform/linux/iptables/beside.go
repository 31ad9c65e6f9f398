// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// Beside virtual servers of IPVS, chains are the same for all Services, and
// ipsets say which ones they are about. Only where a connection is to be led
// somewhere else each Service has a rule, as a set has no values.

// The names of chains beside IPVS all begin so. kube-vip has KUBE-VIP-.
const (
	besidePrefix     = "KUBE-VS-"
	besideAddrPrefix = "KUBE-VA-" // a branch of the tree of addresses

	enterChain         = besidePrefix + "SERVICES"
	frontChain         = besidePrefix + "FRONT"
	besideMarkChain    = besidePrefix + "MARK"
	besideClusterChain = besidePrefix + "MARK-CLUSTER"
	localChain         = besidePrefix + "LOCAL"
	insideChain        = besidePrefix + "INSIDE"
	targetsChain       = besidePrefix + "TARGETS"
	leaveChain         = besidePrefix + "POSTROUTING"

	dropChain       = besidePrefix + "DROP"
	dropLocalChain  = besidePrefix + "DROP-LOCAL"
	dropInsideChain = besidePrefix + "DROP-INSIDE"

	inputChain         = besidePrefix + "INPUT"
	besideRefuseChain  = besidePrefix + "REFUSE"
	besideForwardChain = besidePrefix + "FORWARD"
	unallocatedChain   = besidePrefix + "UNALLOCATED"
)

// The ipsets that the chains refer to, see SetName. Those of addresses alone
// hold elements of type hash:ip, SetSources of hash:ip,port,net and the others of
// hash:ip,port.
const (
	SetClusterIPs     = "CLUSTER-IPS"
	SetVirtualIPs     = "VIRTUAL-IPS"     // the node has them for Services only
	SetNodeIPs        = "NODE-IPS"        // its own, once they are served
	SetServed         = "SERVED"          // there is a virtual server, whosever
	SetRefused        = "REFUSED"         // nobody serves
	SetDropped        = "DROPPED"         // somebody serves, but the policy leaves nobody
	SetExternal       = "EXTERNAL"        // policy Cluster: masqueraded
	SetLocal          = "LOCAL"           // policy Local: clients are told apart
	SetInsideDropped  = "INSIDE-DROPPED"  // for pods and the node nobody is left
	SetOutsideDropped = "OUTSIDE-DROPPED" // for everybody else nobody is left
	SetInsideLed      = "INSIDE-LED"      // pods and the node are led elsewhere
	SetOutsideLed     = "OUTSIDE-LED"     // everybody else is led elsewhere
	SetRestricted     = "RESTRICTED"      // some sources only
	SetSources        = "SOURCES"         // which ones
	SetHealthChecks   = "HEALTH-CHECKS"   // where health checks are answered
)

// SetName returns what one of the sets is called in f. Sets share one room for
// names, whatever their family.
func SetName(f service.Family, set string) string {
	if f == service.IPv6 {
		return "KUBE-VS6-" + set
	}
	return besidePrefix + set
}

func besideJumps() []jump {
	return []jump{
		{id{nat, "PREROUTING"}, "-j " + enterChain},
		{id{nat, "OUTPUT"}, "-j " + enterChain},
		{id{nat, "POSTROUTING"}, "-j " + leaveChain},
		{id{mangle, "PREROUTING"}, newOnly + "-j " + dropChain},
		{id{mangle, "OUTPUT"}, newOnly + "-j " + dropChain},
		{id{filter, "INPUT"}, "-j " + inputChain},
		{id{filter, "FORWARD"}, "-j " + besideForwardChain},
		{id{filter, "OUTPUT"}, newOnly + "-j " + unallocatedChain},
	}
}

// in matches packets whose fields, such as "dst,dst" for address and port, are in
// a set, and out those whose are not.
func (l layout) in(set, fields string) string {
	return "-m set --match-set " + SetName(l.family, set) + " " + fields + " "
}

func (l layout) out(set, fields string) string {
	return "-m set ! --match-set " + SetName(l.family, set) + " " + fields + " "
}

const (
	toPort     = "dst,dst"
	fromItself = "-m addrtype --src-type LOCAL "
)

// besideChains returns all chains but the branches of the tree.
func (l layout) besideChains(node *service.Node, targets []string) []chain {
	return slices.Concat(l.enterChains(node, targets), l.dropChains(node), l.judgeChains(node))
}

// enterChains mark what is to be masqueraded and lead to the virtual server that
// has the right endpoints, before IPVS sees a connection. Then nobody else is to
// translate it: an address of a Service leads to no port that the node has for
// other purposes. But while an address is not routed to the node yet, or virtual
// servers on its own addresses are not there, another mode goes on translating.
func (l layout) enterChains(node *service.Node, targets []string) []chain {
	mark := l.options.marked()
	return []chain{
		{id{nat, besideMarkChain}, []string{"-j MARK --set-xmark " + mark}},
		{id{nat, besideClusterChain}, l.markClusterRules(node, besideMarkChain)},
		{id{nat, targetsChain}, targets},
		{id{nat, insideChain}, []string{l.in(SetInsideLed, toPort) + "-j " + targetsChain, leave}},
		{id{nat, localChain}, append(podRules(l.family, node, "-g "+insideChain),
			fromItself+"-j "+besideMarkChain,
			fromItself+"-g "+insideChain,
			l.in(SetOutsideLed, toPort)+"-j "+targetsChain,
			leave,
		)},
		{id{nat, frontChain}, []string{
			l.in(SetClusterIPs, "dst") + "-j " + besideClusterChain,
			l.in(SetLocal, toPort) + "-g " + localChain,
			l.in(SetExternal, toPort) + "-j " + besideMarkChain,
			l.in(SetServed, toPort) + leave,
			l.in(SetVirtualIPs, "dst") + leave,
		}},
		{id{nat, enterChain}, []string{
			l.in(SetNodeIPs, "dst") + "-g " + frontChain,
			l.in(SetVirtualIPs, "dst") + localOnly + "-g " + frontChain,
		}},
		{id{nat, leaveChain}, []string{
			// The node itself needs no masquerading to reach itself.
			"! -o lo " + l.toItself() + masqueradeRule,
			"-m mark ! --mark " + mark + " -j RETURN",
			"-j MARK --set-xmark " + l.options.unmark(),
			masqueradeRule,
		}},
	}
}

// dropChains drop, before IPVS could take it, what nobody may answer.
func (l layout) dropChains(node *service.Node) []chain {
	return []chain{
		{id{mangle, dropInsideChain}, []string{l.in(SetInsideDropped, toPort) + "-j DROP"}},
		{id{mangle, dropLocalChain}, append(podRules(l.family, node, "-g "+dropInsideChain),
			fromItself+"-g "+dropInsideChain,
			l.in(SetOutsideDropped, toPort)+"-j DROP",
		)},
		{id{mangle, dropChain}, []string{
			l.in(SetRestricted, toPort) + l.out(SetSources, "dst,dst,src") + "-j DROP",
			l.in(SetDropped, toPort) + "-j DROP",
			l.in(SetLocal, toPort) + "-j " + dropLocalChain,
		}},
	}
}

// judgeChains refuse what nobody serves, and what no virtual server will take:
// the node has the address for Services only, and nothing else that listens is
// meant by it. Answers pass: under kube-proxy the node's own connections to
// Services come from the Service's address, and they outlive its rules. Health
// checks are let in with all of their packets, whatever the policy of INPUT is.
func (l layout) judgeChains(node *service.Node) []chain {
	refuse := "-j " + besideRefuseChain
	judge := []string{
		l.in(SetHealthChecks, toPort) + "-j ACCEPT",
		newOnly + l.in(SetRefused, toPort) + refuse,
		l.in(SetServed, toPort) + "-j RETURN",
		l.out(SetVirtualIPs, "dst") + "-j RETURN",
		"-m conntrack --ctdir REPLY -j RETURN",
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		judge = append(judge, "-p "+p.String()+" "+refuse)
	}
	return []chain{
		{id{filter, besideRefuseChain}, l.refuse().rules},
		{id{filter, inputChain}, judge},
		{id{filter, unallocatedChain}, l.unallocatedRules(node)},
		{id{filter, besideForwardChain}, []string{
			"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			"-j " + unallocatedChain,
		}},
	}
}

// unallocatedRules drop what goes to an address that only a Service could have,
// and none has: along a default route it would travel for nothing, or in a
// circle.
func (l layout) unallocatedRules(node *service.Node) []string {
	var rules []string
	for _, p := range service.InFamily(node.ServiceCIDRs, l.family) {
		rules = append(rules, "-d "+p.Masked().String()+" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -m addrtype ! --dst-type LOCAL -j DROP")
	}
	return rules
}

// Fronts returns the addresses and ports of a frontend of p on node: the
// frontend's own, or those of the node that answer a NodePort.
func Fronts(p *service.Port, f *service.Frontend, node *service.Node) []netip.AddrPort {
	if f.Kind != service.NodePort {
		return []netip.AddrPort{netip.AddrPortFrom(f.Addr, f.Port)}
	}
	var all []netip.AddrPort
	for _, a := range node.Addrs {
		if service.FamilyOf(a) == p.Family && node.AnswersNodePorts(a) {
			all = append(all, netip.AddrPortFrom(a, f.Port))
		}
	}
	return all
}

// besideKeys are those of besideEntries.
func besideKeys(p *service.Port, node *service.Node) []key {
	var all []key
	for i := range p.Frontends {
		all = append(all, frontKeys(p, &p.Frontends[i], node)...)
	}
	return all
}

// frontKeys are those of one frontend.
func frontKeys(p *service.Port, f *service.Frontend, node *service.Node) []key {
	if !f.Kind.External() {
		return nil
	}
	var all []key
	for _, a := range Fronts(p, f, node) {
		all = append(all, key{table: nat, addr: a.Addr(), port: a.Port(), proto: p.Name.Protocol})
	}
	return all
}

// besideEntries lead from external frontends to the ClusterIP, whose virtual
// server has another list of endpoints. Sets say who is led, and when.
// An external address that is the node's own goes before NodePorts.
func besideEntries(p *service.Port, node *service.Node) []entry {
	i := slices.IndexFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
	if p.External != service.PolicyLocal || i < 0 {
		return nil
	}
	to := netip.AddrPortFrom(p.Frontends[i].Addr, p.Frontends[i].Port)
	var all []entry
	for i := range p.Frontends {
		f := &p.Frontends[i]
		for _, k := range frontKeys(p, f, node) {
			rule := fmt.Sprintf("%s%s-j DNAT --to-destination %s", k.match(), comment(p), to)
			all = append(all, entry{key: k, rules: []string{rule}, yields: f.Kind == service.NodePort})
		}
	}
	return all
}
