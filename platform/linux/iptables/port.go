// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// portChains returns the chains that only p uses.
func (l layout) portChains(p *service.Port, node *service.Node) []chain {
	var all []chain
	if l.isIPVS() {
		return nil
	}
	add := func(name string, rules []string) { all = append(all, chain{id{nat, name}, rules}) }
	if UsesPolicy(p, service.PolicyCluster) {
		add(portChainName(clusterPrefix, p), l.endpointRules(p, service.PolicyCluster, p.Cluster))
	}
	if UsesPolicy(p, service.PolicyLocal) {
		add(portChainName(localPrefix, p), l.endpointRules(p, service.PolicyLocal, p.Local))
	}
	if !forwardsExternal(p) {
		return all
	}
	add(portChainName(externalPrefix, p), l.externalRules(p, node))
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Sources != nil {
			add(firewallName(p, f), firewallRules(p, f))
		}
	}
	return all
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

// endpointRules send a connection to one of the endpoints, all with the same
// probability. With session affinity, a client returns to its previous endpoint.
func (l layout) endpointRules(p *service.Port, policy service.Policy, endpoints []service.Endpoint) []string {
	rules := make([]string, 0, 2*len(endpoints)+1)
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Kind == service.ClusterIP && p.Internal == policy && !l.relays() {
			rules = append(rules, "-d "+hostPrefix(f.Addr)+" -j "+markClusterChain)
		}
	}
	if l.bypasses() {
		rules = append(rules, "-j "+markChain)
	}
	if p.Affinity > 0 {
		for _, e := range endpoints {
			again := fmt.Sprintf("--update --seconds %d --reap", p.Affinity/time.Second)
			rules = append(rules, dnat(p, e, recentMatch(p, e, again)))
		}
	}
	for i, e := range endpoints {
		match := randomMatch(len(endpoints) - i)
		if p.Affinity > 0 {
			match += recentMatch(p, e, "--set")
		}
		rules = append(rules, dnat(p, e, match))
	}
	return rules
}

func dnat(p *service.Port, e service.Endpoint, match string) string {
	return "-p " + p.Name.Protocol.String() + " " + match + "-j DNAT --to-destination " + e.Addr.String()
}

// randomMatch matches one of n connections. The kernel compares probabilities in units
// of 2^-31 (kernel: net/netfilter/xt_statistic.c).
func randomMatch(n int) string {
	if n == 1 {
		return ""
	}
	const all = 1 << 31
	return fmt.Sprintf("-m statistic --mode random --probability %.11f ", math.Round(all/float64(n))/all)
}

// recentMatch applies action to the list of clients that use e. The list exists while a
// rule refers to it (kernel: net/netfilter/xt_recent.c).
func recentMatch(p *service.Port, e service.Endpoint, action string) string {
	list := hashedName(recentPrefix, p.Name.String(), p.Name.Protocol.String(), e.Addr.String())
	return "-m recent " + action + " --name " + list + " --mask " + fullMask(p.Family) + " --rsource "
}

func fullMask(f service.Family) string {
	if f == service.IPv6 {
		return "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return "255.255.255.255"
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
