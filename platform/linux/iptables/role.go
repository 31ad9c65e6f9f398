// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"

	"kubeproxy/common/service"
)

// Role is what chains are for. Chains of different roles have different names,
// and none knows of the other's.
type Role uint8

// The roles.
const (
	Standalone    Role = iota // they do all there is to do
	IPVSCompanion             // they do what virtual servers of IPVS and ipsets cannot
)

// tables are those that hold chains of the role.
func (r Role) tables() []string {
	if r == IPVSCompanion {
		return allTables
	}
	return tables
}

// owns reports that a chain belongs to a service proxy in such a role.
func (r Role) owns(i id) bool {
	if r == IPVSCompanion {
		return strings.HasPrefix(i.name, ipvsPrefix) || strings.HasPrefix(i.name, ipvsAddrPrefix)
	}
	return i.isOwned()
}

// comesAfter reports that chains of the role come behind i, another mode's. While
// the node changes its mode that goes on translating, and refuses what it did not.
func (r Role) comesAfter(i id) bool { return r == IPVSCompanion && i.isOwned() }

func (l layout) isIPVS() bool { return l.options.Role == IPVSCompanion }

// root is the chain where the tree of addresses begins.
func (l layout) root() string {
	if l.isIPVS() {
		return ipvsTargetsChain
	}
	return servicesChain
}

// branchPrefix is how the names of its branches begin.
func (l layout) branchPrefix() string {
	if l.isIPVS() {
		return ipvsAddrPrefix
	}
	return addrPrefix
}

// entries returns what p, which may be nil, adds to the trees. Entries for all
// ports of an address may be there more than once.
func (l layout) entries(p *service.Port, node *service.Node) []entry {
	switch {
	case p == nil:
		return nil
	case l.isIPVS():
		return ipvsEntries(p, node)
	}
	return standaloneEntries(p)
}

// keys returns the keys that p, which may be nil, may have entries for, if not
// now.
func (l layout) keys(p *service.Port, node *service.Node) []key {
	switch {
	case p == nil:
		return nil
	case l.isIPVS():
		return ipvsKeys(p, node)
	}
	return standaloneKeys(p)
}
