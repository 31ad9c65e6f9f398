// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// portChains returns the chains that only p uses.
func (l layout) portChains(p *service.Port, node *service.Node) []chain {
	chains, _ := l.changedChains(p, nil, node)
	return chains
}

// portNames returns the names of the Ports that have chains of their own, by chain.
func (l layout) portNames(all ...*installed) map[id]service.PortName {
	names := map[id]service.PortName{}
	for _, of := range all {
		if of == nil || of.snapshot == nil {
			continue
		}
		for p := range of.snapshot.Ports(l.family) {
			for _, c := range l.portChains(p, of.snapshot.Node) {
				names[c.id] = p.Name
			}
		}
	}
	return names
}

// changedChains returns the chains that only p uses, except for those branches of lists
// that are the same as in old, which may be nil. same are these, without what is below.
func (l layout) changedChains(p, old *service.Port, node *service.Node) (all []chain, same []id) {
	if l.isIPVS() {
		return nil, nil
	}
	for _, policy := range []service.Policy{service.PolicyCluster, service.PolicyLocal} {
		if UsesPolicy(p, policy) {
			chains, stay := l.listChains(p, old, policy)
			all, same = append(all, chains...), append(same, stay...)
		}
	}
	if !forwardsExternal(p) {
		return all, same
	}
	add := func(name string, rules []string) { all = append(all, chain{id{nat, name}, rules}) }
	add(portChainName(externalPrefix, p), l.externalRules(p, node))
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Sources != nil {
			add(firewallName(p, f), firewallRules(p, f))
		}
	}
	return all, same
}

// frontendKinds reports which kinds of frontends p has.
func frontendKinds(p *service.Port) (internal, external bool) {
	for i := range p.Frontends {
		if p.Frontends[i].Kind.External() {
			external = true
		} else {
			internal = true
		}
	}
	return internal, external
}

// forwardsExternal reports whether some client of an external frontend of p may reach an
// endpoint.
func forwardsExternal(p *service.Port) bool {
	_, external := frontendKinds(p)
	return external && (len(p.Cluster) > 0 || p.External == service.PolicyLocal && len(p.Local) > 0)
}

// hostPrefix returns the prefix that contains only a.
func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// jumpAccept ends table nat for a connection that will be rejected: neither a NodePort
// rule nor another component may translate it before table filter sees it.
const jumpAccept = "-j ACCEPT"

// externalRules are for packets to an external frontend. With policy Local, pods and the
// node itself may reach every endpoint. External clients reach only the endpoints of
// this node.
func (l layout) externalRules(p *service.Port, node *service.Node) []string {
	anywhere := jumpAccept
	if len(p.Cluster) > 0 {
		anywhere = "-j " + portChainName(clusterPrefix, p)
	}
	if p.External == service.PolicyCluster {
		return l.markRules("", anywhere)
	}
	rules := podRules(p.Family, node, anywhere)
	const own = "-m addrtype --src-type LOCAL "
	rules = append(rules, l.markRules(own, anywhere)...)
	if len(p.Local) == 0 {
		return append(rules, jumpAccept)
	}
	return append(rules, "-j "+portChainName(localPrefix, p))
}

// markRules mark matching packets for masquerading and continue with then. With a relay
// nothing is marked here: the relay has an address of its own, and with Bypass all
// packets are marked elsewhere.
func (l layout) markRules(match, then string) []string {
	if l.relays() {
		return []string{match + then}
	}
	return []string{match + "-j " + markChain, match + then}
}

func firewallName(p *service.Port, f *service.Frontend) string {
	return hashedName(firewallPrefix, p.Name.String(), p.Name.Protocol.String(), f.Addr.String())
}

// firewallRules admit the allowed sources of f.
func firewallRules(p *service.Port, f *service.Frontend) []string {
	return append(sourceRules(f.Sources, "-j "+portChainName(externalPrefix, p)), jumpAccept)
}

// sourceRules apply then to packets from one of the sources.
func sourceRules(sources []netip.Prefix, then string) []string {
	var rules []string
	for _, s := range sources {
		if s.Bits() == 0 {
			return []string{then}
		}
		rules = append(rules, "-s "+s.Masked().String()+" "+then)
	}
	return rules
}

// podRules apply then to packets from pods, with one rule for each way in which node
// detects them.
func podRules(f service.Family, node *service.Node, then string) []string {
	switch pods := node.Pods; {
	case pods.Interface != "":
		return []string{"-i " + pods.Interface + " " + then}
	case pods.InterfacePrefix != "":
		return []string{"-i " + pods.InterfacePrefix + "+ " + then}
	default:
		return sourceRules(slices.Clone(service.InFamily(pods.Prefixes, f)), then)
	}
}

// comment returns the rule comment that names p.
func comment(p *service.Port) string { return commentOf(p.Name.String()) }

// commentOf returns the match for a rule comment. It replaces characters that iptables
// would quote or escape, and truncates text to 200 bytes.
func commentOf(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' {
			return '_'
		}
		return r
	}, text)
	return "-m comment --comment \"" + text[:min(len(text), 200)] + "\" "
}
