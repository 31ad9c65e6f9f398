// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// With IPVS, chains are the same for all Services, and ipsets hold what they apply to. A redirected
// connection needs a rule per Service, as an ipset has no values.

// The names of the chains all have the first prefix. kube-vip uses KUBE-VIP-.
const (
	chainPrefix  = "KUBE-VS-"
	branchPrefix = "KUBE-VA-"

	servicesChain    = chainPrefix + "SERVICES"
	frontendChain    = chainPrefix + "FRONT"
	markChain        = chainPrefix + "MARK"
	markClusterChain = chainPrefix + "MARK-CLUSTER"
	localChain       = chainPrefix + "LOCAL"
	internalChain    = chainPrefix + "INTERNAL"
	targetsChain     = chainPrefix + "TARGETS"
	postroutingChain = chainPrefix + "POSTROUTING"

	dropChain         = chainPrefix + "DROP"
	dropLocalChain    = chainPrefix + "DROP-LOCAL"
	dropInternalChain = chainPrefix + "DROP-INTERNAL"

	inputChain       = chainPrefix + "INPUT"
	refuseChain      = chainPrefix + "REFUSE"
	forwardChain     = chainPrefix + "FORWARD"
	unallocatedChain = chainPrefix + "UNALLOCATED"
)

var purposes = map[string]string{
	servicesChain:     "find out whether it is for a Service",
	frontendChain:     "masquerade it later, or choose another virtual server, if its Service needs that",
	markChain:         "masquerade it later",
	markClusterChain:  "masquerade it later, unless it comes from a pod",
	localChain:        "policy Local: distinguish clients outside of the cluster",
	internalChain:     "a client of the cluster: endpoints on every node",
	targetsChain:      "the virtual server that has the endpoints for this client",
	postroutingChain:  "masquerade it if it is to be",
	dropChain:         "drop what no endpoint may get",
	dropLocalChain:    "policy Local: drop it if no endpoint is left for this client",
	dropInternalChain: "policy Local: drop it if no endpoint is left for this client",
	inputChain:        "refuse what no virtual server takes",
	refuseChain:       "refuse it",
	forwardChain:      "drop what no Service has",
	unallocatedChain:  "drop what no Service has",
}

const (
	nat    = "nat"
	mangle = "mangle"
	filter = "filter"

	accept   = "-j ACCEPT"
	newOnly  = "-m conntrack --ctstate NEW "
	toPort   = "dst,dst"
	fromNode = "-m addrtype --src-type LOCAL "
)

// chainWriter writes the chains of one family.
type chainWriter struct {
	service.Family
	iptables.Options
}

// chains returns the options of the chains of one family.
func (o Options) chains(f service.Family) iptables.Options {
	all := iptables.Options{MasqueradeBit: o.MasqueradeBit}
	c := chainWriter{f, all}
	all.Role = &iptables.Role{
		Prefix: chainPrefix, Branches: branchPrefix, Root: targetsChain,
		Jumps: []iptables.Table{
			{Name: nat, Chains: []iptables.Chain{
				{Name: "PREROUTING", Rules: []string{"-j " + servicesChain}},
				{Name: "OUTPUT", Rules: []string{"-j " + servicesChain}},
				{Name: "POSTROUTING", Rules: []string{"-j " + postroutingChain}},
			}},
			{Name: mangle, Chains: []iptables.Chain{
				{Name: "PREROUTING", Rules: []string{newOnly + "-j " + dropChain}},
				{Name: "OUTPUT", Rules: []string{newOnly + "-j " + dropChain}},
			}},
			{Name: filter, Chains: []iptables.Chain{
				{Name: "INPUT", Rules: []string{"-j " + inputChain}},
				{Name: "FORWARD", Rules: []string{"-j " + forwardChain}},
				{Name: "OUTPUT", Rules: []string{newOnly + "-j " + unallocatedChain}},
			}},
		},
		Chains: func(node *service.Node, targets []string) []iptables.Table {
			return []iptables.Table{
				{Name: nat, Chains: c.nat(node, targets)}, {Name: mangle, Chains: c.mangle(node)}, {Name: filter, Chains: c.filter(node)},
			}
		},
		Redirects: redirects,
		Addresses: externalAddresses,
		Purposes:  purposes,
		Needs:     []iptables.Requirement{{Name: "match set", Module: "xt_set", Table: nat, Rule: c.in(virtualIPSet, "dst") + "-j RETURN"}},
	}
	return all
}

// in matches packets whose fields are in a set. An example is "dst,dst" for destination
// address and port. notIn matches packets whose fields are not.
func (c chainWriter) in(set, fields string) string {
	return "-m set --match-set " + setName(c.Family, set) + " " + fields + " "
}

func (c chainWriter) notIn(set, fields string) string {
	return "-m set ! --match-set " + setName(c.Family, set) + " " + fields + " "
}

// nat returns the chains that mark packets for masquerading and redirect to the virtual server with
// the right endpoints, before IPVS. After that no other rule may translate: an address of a Service
// never leads to a port that the node uses otherwise. Only while an address is not routed to the
// node yet, or is the node's own without virtual servers, another mode goes on to translate.
func (c chainWriter) nat(node *service.Node, targets []string) []iptables.Chain {
	return []iptables.Chain{
		{Name: markChain, Rules: []string{"-j MARK --set-xmark " + c.Marked()}},
		{Name: markClusterChain, Rules: iptables.MarkClusterRules(c.Family, node, markChain)},
		{Name: targetsChain, Rules: targets},
		{Name: internalChain, Rules: []string{c.in(internalRedirectSet, toPort) + "-j " + targetsChain, accept}},
		{Name: localChain, Rules: append(iptables.PodRules(c.Family, node, "-g "+internalChain),
			fromNode+"-j "+markChain,
			fromNode+"-g "+internalChain,
			c.in(externalRedirectSet, toPort)+"-j "+targetsChain,
			accept,
		)},
		{Name: frontendChain, Rules: []string{
			c.in(clusterIPSet, "dst") + "-j " + markClusterChain,
			c.in(localSet, toPort) + "-g " + localChain,
			c.in(externalSet, toPort) + "-j " + markChain,
			c.in(virtualServerSet, toPort) + accept,
			c.in(virtualIPSet, "dst") + accept,
		}},
		{Name: servicesChain, Rules: []string{
			c.in(nodeIPSet, "dst") + "-g " + frontendChain,
			c.in(virtualIPSet, "dst") + "-m addrtype --dst-type LOCAL -g " + frontendChain,
		}},
		{Name: postroutingChain, Rules: []string{
			// The node needs no masquerading to reach itself.
			"! -o lo " + iptables.HairpinMatch(c.Family) + iptables.MasqueradeRule,
			"-m mark ! --mark " + c.Marked() + " -j RETURN",
			"-j MARK --set-xmark " + c.Unmark(),
			iptables.MasqueradeRule,
		}},
	}
}

// mangle returns the chains that drop connections without a permitted endpoint, before IPVS.
func (c chainWriter) mangle(node *service.Node) []iptables.Chain {
	return []iptables.Chain{
		{Name: dropInternalChain, Rules: []string{c.in(internalDroppedSet, toPort) + "-j DROP"}},
		{Name: dropLocalChain, Rules: append(iptables.PodRules(c.Family, node, "-g "+dropInternalChain),
			fromNode+"-g "+dropInternalChain,
			c.in(externalDroppedSet, toPort)+"-j DROP",
		)},
		{Name: dropChain, Rules: []string{
			c.in(restrictedSet, toPort) + c.notIn(sourcesSet, "dst,dst,src") + "-j DROP",
			c.in(droppedSet, toPort) + "-j DROP",
			c.in(localSet, toPort) + "-j " + dropLocalChain,
		}},
	}
}

// filter returns the chains that reject connections to Services without endpoints, and packets that
// no virtual server accepts, so that addresses of Services never lead to another listener. Replies
// pass: with kube-proxy, connections of the node have the Service's address as source, and outlive
// its rules. Health checks are accepted, whatever the policy of INPUT is.
func (c chainWriter) filter(node *service.Node) []iptables.Chain {
	refuse := "-j " + refuseChain
	input := []string{
		c.in(healthCheckSet, toPort) + accept,
		newOnly + c.in(refusedSet, toPort) + refuse,
		c.in(virtualServerSet, toPort) + "-j RETURN",
		c.notIn(virtualIPSet, "dst") + "-j RETURN",
		"-m conntrack --ctdir REPLY -j RETURN",
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		input = append(input, "-p "+p.String()+" "+refuse)
	}
	return []iptables.Chain{
		{Name: refuseChain, Rules: iptables.RejectRules(c.Family)},
		{Name: inputChain, Rules: input},
		{Name: unallocatedChain, Rules: c.unallocated(node)},
		{Name: forwardChain, Rules: []string{"-m conntrack --ctstate RELATED,ESTABLISHED " + accept, "-j " + unallocatedChain}},
	}
}

// unallocated returns the rules that drop packets to an address of the Service range that neither a
// Service nor an endpoint has. They would leave the node by a default route, or loop.
func (c chainWriter) unallocated(node *service.Node) []string {
	var rules []string
	for _, a := range node.EndpointsInServiceCIDRs {
		if service.FamilyOf(a) == c.Family {
			rules = append(rules, "-d "+netip.PrefixFrom(a, a.BitLen()).String()+" -j RETURN")
		}
	}
	for _, p := range service.InFamily(node.ServiceCIDRs, c.Family) {
		rules = append(rules, "-d "+p.Masked().String()+" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -m addrtype ! --dst-type LOCAL -j DROP")
	}
	return rules
}

// externalAddresses returns where p may have redirects.
func externalAddresses(p *service.Port, node *service.Node) []service.Address {
	var all []service.Address
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Kind.External() {
			all = append(all, addressesOf(p, f, node)...)
		}
	}
	return all
}

// redirects lead from external frontends to the ClusterIP, whose virtual server has
// another list of endpoints. Sets decide which clients are redirected. An external address
// that the node owns takes precedence over NodePorts.
func redirects(p *service.Port, node *service.Node) []iptables.Redirect {
	i := slices.IndexFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
	if p.External != service.PolicyLocal || i < 0 {
		return nil
	}
	to := netip.AddrPortFrom(p.Frontends[i].Addr, p.Frontends[i].Port)
	var all []iptables.Redirect
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if !f.Kind.External() {
			continue
		}
		for _, a := range addressesOf(p, f, node) {
			all = append(all, iptables.Redirect{From: a, To: to, LowPriority: f.Kind == service.NodePort})
		}
	}
	return all
}

// markRule is a rule of policy routing that asks for the mark of packets, see ip-rule(8).
type markRule struct {
	priority   int
	inverted   bool // it is for packets with another mark
	mark, mask uint32
	table      int
}

// uses reports whether the program that made the rule marks packets with bit. A mask of
// all bits says nothing about those that the mark does not have.
func (r markRule) uses(bit uint32) bool {
	return r.mark&r.mask&bit != 0 || r.mask != math.MaxUint32 && r.mask&bit != 0
}

// String returns r in the words of ip-rule(8).
func (r markRule) String() string {
	not, mask := "", ""
	if r.inverted {
		not = "not "
	}
	if r.mask != math.MaxUint32 {
		mask = fmt.Sprintf("/%#x", r.mask)
	}
	return fmt.Sprintf("%d: %sfwmark %#x%s lookup %d", r.priority, not, r.mark, mask, r.table)
}

// sharedMark says by which rule another program uses the masquerade bit, empty if none
// does. What IPVS translated is known by this bit alone, so a packet that carries it for
// other reasons is masqueraded, too: wg-quick's 0xca6c has 0x4000.
func (o Options) sharedMark(f service.Family, rules []markRule) string {
	bit, command := uint32(1)<<o.MasqueradeBit, "ip rule"
	if f == service.IPv6 {
		command = "ip -6 rule"
	}
	for _, r := range rules {
		if r.uses(bit) {
			return fmt.Sprintf("another program marks packets with the masquerade bit %#x (%s has %q), and mode ipvs masquerades them though they go to no Service: "+
				"set iptables.masqueradeBit to a bit that no program of the node uses", bit, command, r)
		}
	}
	return ""
}

// lookAtMarks shows whether another program uses the masquerade bit, if that can be read.
func (b *Backend) lookAtMarks(ctx context.Context) {
	if b.showSharedMark == nil {
		return
	}
	if rules, err := b.driver.MarkRules(ctx); err == nil {
		b.showSharedMark(b.options.sharedMark(b.family, rules))
	}
}
