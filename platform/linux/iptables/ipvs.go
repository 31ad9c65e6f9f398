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
	ipvsPrefix     = "KUBE-VS-"
	ipvsAddrPrefix = "KUBE-VA-" // a branch of the tree of addresses

	ipvsServicesChain    = ipvsPrefix + "SERVICES"
	ipvsFrontendChain    = ipvsPrefix + "FRONT"
	ipvsMarkChain        = ipvsPrefix + "MARK"
	ipvsMarkClusterChain = ipvsPrefix + "MARK-CLUSTER"
	ipvsLocalChain       = ipvsPrefix + "LOCAL"
	ipvsInternalChain    = ipvsPrefix + "INTERNAL"
	ipvsTargetsChain     = ipvsPrefix + "TARGETS"
	ipvsPostroutingChain = ipvsPrefix + "POSTROUTING"

	ipvsDropChain         = ipvsPrefix + "DROP"
	ipvsDropLocalChain    = ipvsPrefix + "DROP-LOCAL"
	ipvsDropInternalChain = ipvsPrefix + "DROP-INTERNAL"

	ipvsInputChain       = ipvsPrefix + "INPUT"
	ipvsRefuseChain      = ipvsPrefix + "REFUSE"
	ipvsForwardChain     = ipvsPrefix + "FORWARD"
	ipvsUnallocatedChain = ipvsPrefix + "UNALLOCATED"
)

// The ipsets that the chains refer to, see SetName. Those of addresses alone
// hold elements of type hash:ip, SetSources of hash:ip,port,net and the others of
// hash:ip,port.
const (
	SetClusterIPs       = "CLUSTER-IPS"
	SetVirtualIPs       = "VIRTUAL-IPS"       // the node has them for Services only
	SetNodeIPs          = "NODE-IPS"          // its own, once they are served
	SetVirtualServers   = "VIRTUAL-SERVERS"   // there is a virtual server, whosever
	SetRefused          = "REFUSED"           // nobody serves
	SetDropped          = "DROPPED"           // somebody serves, but the policy leaves nobody
	SetExternal         = "EXTERNAL"          // policy Cluster: masqueraded
	SetLocal            = "LOCAL"             // policy Local: clients are told apart
	SetInternalDropped  = "INTERNAL-DROPPED"  // for pods and the node nobody is left
	SetExternalDropped  = "EXTERNAL-DROPPED"  // for everybody else nobody is left
	SetInternalRedirect = "INTERNAL-REDIRECT" // pods and the node are led elsewhere
	SetExternalRedirect = "EXTERNAL-REDIRECT" // everybody else is led elsewhere
	SetRestricted       = "RESTRICTED"        // some sources only
	SetSources          = "SOURCES"           // which ones
	SetHealthChecks     = "HEALTH-CHECKS"     // where health checks are answered
)

// SetName returns what one of the sets is called in f. Sets share one room for
// names, whatever their family.
func SetName(f service.Family, set string) string {
	if f == service.IPv6 {
		return "KUBE-VS6-" + set
	}
	return ipvsPrefix + set
}

func ipvsJumps() []jump {
	return []jump{
		{id{nat, "PREROUTING"}, "-j " + ipvsServicesChain},
		{id{nat, "OUTPUT"}, "-j " + ipvsServicesChain},
		{id{nat, "POSTROUTING"}, "-j " + ipvsPostroutingChain},
		{id{mangle, "PREROUTING"}, newOnly + "-j " + ipvsDropChain},
		{id{mangle, "OUTPUT"}, newOnly + "-j " + ipvsDropChain},
		{id{filter, "INPUT"}, "-j " + ipvsInputChain},
		{id{filter, "FORWARD"}, "-j " + ipvsForwardChain},
		{id{filter, "OUTPUT"}, newOnly + "-j " + ipvsUnallocatedChain},
	}
}

// inSet matches packets whose fields, such as "dst,dst" for address and port, are in
// a set, and out those whose are not.
func (l layout) inSet(set, fields string) string {
	return "-m set --match-set " + SetName(l.family, set) + " " + fields + " "
}

func (l layout) notInSet(set, fields string) string {
	return "-m set ! --match-set " + SetName(l.family, set) + " " + fields + " "
}

const (
	toPort   = "dst,dst"
	fromNode = "-m addrtype --src-type LOCAL "
)

// ipvsChains returns all chains but the branches of the tree.
func (l layout) ipvsChains(node *service.Node, targets []string) []chain {
	return slices.Concat(l.ipvsNATChains(node, targets), l.ipvsMangleChains(node), l.ipvsFilterChains(node))
}

// ipvsNATChains mark what is to be masqueraded and lead to the virtual server that
// has the right endpoints, before IPVS sees a connection. Then nobody else is to
// translate it: an address of a Service leads to no port that the node has for
// other purposes. But while an address is not routed to the node yet, or virtual
// servers on its own addresses are not there, another mode goes on translating.
func (l layout) ipvsNATChains(node *service.Node, targets []string) []chain {
	mark := l.options.marked()
	return []chain{
		{id{nat, ipvsMarkChain}, []string{"-j MARK --set-xmark " + mark}},
		{id{nat, ipvsMarkClusterChain}, l.markClusterRules(node, ipvsMarkChain)},
		{id{nat, ipvsTargetsChain}, targets},
		{id{nat, ipvsInternalChain}, []string{l.inSet(SetInternalRedirect, toPort) + "-j " + ipvsTargetsChain, jumpAccept}},
		{id{nat, ipvsLocalChain}, append(podRules(l.family, node, "-g "+ipvsInternalChain),
			fromNode+"-j "+ipvsMarkChain,
			fromNode+"-g "+ipvsInternalChain,
			l.inSet(SetExternalRedirect, toPort)+"-j "+ipvsTargetsChain,
			jumpAccept,
		)},
		{id{nat, ipvsFrontendChain}, []string{
			l.inSet(SetClusterIPs, "dst") + "-j " + ipvsMarkClusterChain,
			l.inSet(SetLocal, toPort) + "-g " + ipvsLocalChain,
			l.inSet(SetExternal, toPort) + "-j " + ipvsMarkChain,
			l.inSet(SetVirtualServers, toPort) + jumpAccept,
			l.inSet(SetVirtualIPs, "dst") + jumpAccept,
		}},
		{id{nat, ipvsServicesChain}, []string{
			l.inSet(SetNodeIPs, "dst") + "-g " + ipvsFrontendChain,
			l.inSet(SetVirtualIPs, "dst") + localOnly + "-g " + ipvsFrontendChain,
		}},
		{id{nat, ipvsPostroutingChain}, []string{
			// The node itself needs no masquerading to reach itself.
			"! -o lo " + l.hairpinMatch() + masqueradeRule,
			"-m mark ! --mark " + mark + " -j RETURN",
			"-j MARK --set-xmark " + l.options.unmark(),
			masqueradeRule,
		}},
	}
}

// ipvsMangleChains drop, before IPVS could take it, what nobody may answer.
func (l layout) ipvsMangleChains(node *service.Node) []chain {
	return []chain{
		{id{mangle, ipvsDropInternalChain}, []string{l.inSet(SetInternalDropped, toPort) + "-j DROP"}},
		{id{mangle, ipvsDropLocalChain}, append(podRules(l.family, node, "-g "+ipvsDropInternalChain),
			fromNode+"-g "+ipvsDropInternalChain,
			l.inSet(SetExternalDropped, toPort)+"-j DROP",
		)},
		{id{mangle, ipvsDropChain}, []string{
			l.inSet(SetRestricted, toPort) + l.notInSet(SetSources, "dst,dst,src") + "-j DROP",
			l.inSet(SetDropped, toPort) + "-j DROP",
			l.inSet(SetLocal, toPort) + "-j " + ipvsDropLocalChain,
		}},
	}
}

// ipvsFilterChains refuse what nobody serves, and what no virtual server will take:
// the node has the address for Services only, and nothing else that listens is
// meant by it. Answers pass: under kube-proxy the node's own connections to
// Services come from the Service's address, and they outlive its rules. Health
// checks are let in with all of their packets, whatever the policy of INPUT is.
func (l layout) ipvsFilterChains(node *service.Node) []chain {
	refuse := "-j " + ipvsRefuseChain
	input := []string{
		l.inSet(SetHealthChecks, toPort) + "-j ACCEPT",
		newOnly + l.inSet(SetRefused, toPort) + refuse,
		l.inSet(SetVirtualServers, toPort) + "-j RETURN",
		l.notInSet(SetVirtualIPs, "dst") + "-j RETURN",
		"-m conntrack --ctdir REPLY -j RETURN",
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		input = append(input, "-p "+p.String()+" "+refuse)
	}
	return []chain{
		{id{filter, ipvsRefuseChain}, l.rejectChain().rules},
		{id{filter, ipvsInputChain}, input},
		{id{filter, ipvsUnallocatedChain}, l.unallocatedRules(node)},
		{id{filter, ipvsForwardChain}, []string{
			"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			"-j " + ipvsUnallocatedChain,
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

// FrontendAddrs returns the addresses and ports of a frontend of p on node: the
// frontend's own, or those of the node that answer a NodePort.
func FrontendAddrs(p *service.Port, f *service.Frontend, node *service.Node) []netip.AddrPort {
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

// ipvsKeys are those of ipvsEntries.
func ipvsKeys(p *service.Port, node *service.Node) []key {
	var all []key
	for i := range p.Frontends {
		all = append(all, frontendKeys(p, &p.Frontends[i], node)...)
	}
	return all
}

// frontendKeys are those of one frontend.
func frontendKeys(p *service.Port, f *service.Frontend, node *service.Node) []key {
	if !f.Kind.External() {
		return nil
	}
	var all []key
	for _, a := range FrontendAddrs(p, f, node) {
		all = append(all, key{table: nat, addr: a.Addr(), port: a.Port(), proto: p.Name.Protocol})
	}
	return all
}

// ipvsEntries lead from external frontends to the ClusterIP, whose virtual
// server has another list of endpoints. Sets say who is led, and when.
// An external address that is the node's own goes before NodePorts.
func ipvsEntries(p *service.Port, node *service.Node) []entry {
	i := slices.IndexFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
	if p.External != service.PolicyLocal || i < 0 {
		return nil
	}
	to := netip.AddrPortFrom(p.Frontends[i].Addr, p.Frontends[i].Port)
	var all []entry
	for i := range p.Frontends {
		f := &p.Frontends[i]
		for _, k := range frontendKeys(p, f, node) {
			rule := fmt.Sprintf("%s%s-j DNAT --to-destination %s", k.match(), comment(p), to)
			all = append(all, entry{key: k, rules: []string{rule}, lowPriority: f.Kind == service.NodePort})
		}
	}
	return all
}
