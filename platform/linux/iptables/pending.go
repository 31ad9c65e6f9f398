// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// pending replaces the node while the addresses that answer NodePorts are not known yet.
// The addresses that answered when the tables were first read stay in use.
type pending struct {
	prefixes []netip.Prefix
	from     *service.Node
	node     *service.Node     // from with prefixes
	want     *service.Snapshot // snapshot with node from
	snapshot *service.Snapshot // snapshot with node node
	read     bool              // prefixes have been read
}

// withPendingNodePorts returns want with the NodePort addresses that the tables use now,
// while those of the node are pending. t is nil if the tables were not read. The same
// want returns the same pointer.
func (b *Backend) withPendingNodePorts(want *service.Snapshot, t *observed) *service.Snapshot {
	v := &b.pending
	if !want.Node.NodePortsPending[b.family] {
		*v = pending{read: true}
		return want
	}
	if t != nil && !v.read {
		v.read, v.prefixes = true, b.nodePortsIn(t)
	}
	if len(v.prefixes) == 0 {
		return want
	}
	if v.from != want.Node {
		node := *want.Node
		node.NodePorts = append(slices.Clone(node.NodePorts), v.prefixes...)
		v.from, v.node = want.Node, &node
	}
	if v.want != want {
		v.want, v.snapshot = want, want.With(want.Generation, v.node, nil)
	}
	return v.snapshot
}

// nodePortsIn reads from the rules in t which addresses answer NodePorts, by rules
// of ours or of kube-proxy.
func (l layout) nodePortsIn(t *observed) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range l.roots(nat) {
		for _, rule := range t.chains[id{nat, r.services}] {
			match, is := strings.CutSuffix(jump{rule: rule}.bare().rule, "-j "+r.nodePorts)
			if !is {
				continue
			}
			if p, ok := l.opened(match); ok && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// opened returns the addresses for which a rule of this match leads to NodePorts.
// kube-proxy leaves out loopback addresses in a match of all local ones, which
// nodePortRules does by a rule of its own, and names single addresses without asking
// whether they are local (kubernetes/kubernetes, pkg/proxy/iptables/proxier.go).
func (l layout) opened(match string) (netip.Prefix, bool) {
	all := netip.PrefixFrom(unspecified[l.family], 0)
	match = strings.TrimPrefix(match, "! -d "+loopback[l.family].String()+" ")
	rest, local := strings.CutSuffix(match, localOnly)
	if rest == "" {
		return all, local
	}
	to, named := strings.CutPrefix(rest, "-d ")
	p, err := netip.ParsePrefix(strings.TrimSpace(to))
	if !named || err != nil || service.FamilyOf(p.Addr()) != l.family {
		return all, false
	}
	return p, local || p.IsSingleIP()
}

var unspecified = [...]netip.Addr{service.IPv4: netip.IPv4Unspecified(), service.IPv6: netip.IPv6Unspecified()}
