// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"

	"kubeproxy/common/service"
)

// Role is the purpose of a set of chains. Chains of different roles have different names
// and do not affect each other.
type Role uint8

// The roles.
const (
	Standalone    Role = iota // the chains implement Services alone
	IPVSCompanion             // the chains add what IPVS and ipsets cannot do
)

// tables returns the tables that hold chains of the role.
func (r Role) tables() []string {
	if r == IPVSCompanion {
		return allTables
	}
	return tables
}

// owns reports whether a chain belongs to a service proxy in this role.
func (r Role) owns(i id) bool {
	if r == IPVSCompanion {
		return strings.HasPrefix(i.name, ipvsPrefix) || strings.HasPrefix(i.name, ipvsAddrPrefix)
	}
	return i.isOwned()
}

// comesAfter reports whether jumps of the role are placed behind jumps to i, a chain of
// another mode. During a change of modes the other mode continues to translate, and to
// reject what it did not translate.
func (r Role) comesAfter(i id) bool { return r == IPVSCompanion && i.isOwned() }

func (l layout) isIPVS() bool { return l.options.Role == IPVSCompanion }

// root returns the chain where the tree of addresses begins.
func (l layout) root() string {
	if l.isIPVS() {
		return ipvsTargetsChain
	}
	return servicesChain
}

// branchPrefix returns the prefix of the names of its branches.
func (l layout) branchPrefix() string {
	if l.isIPVS() {
		return ipvsAddrPrefix
	}
	return addrPrefix
}

// entries returns the entries of p, which may be nil. Entries for all ports of an
// address may occur more than once.
func (l layout) entries(p *service.Port, node *service.Node) []entry {
	switch {
	case p == nil:
		return nil
	case l.isIPVS():
		return ipvsEntries(p, node)
	}
	return standaloneEntries(p)
}

// keys returns the keys for which p, which may be nil, may have entries, now or in
// another state.
func (l layout) keys(p *service.Port, node *service.Node) []key {
	switch {
	case p == nil:
		return nil
	case l.isIPVS():
		return ipvsKeys(p, node)
	}
	return standaloneKeys(p)
}
