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
	Alone      Role = iota // they do all there is to do
	BesideIPVS             // they do what virtual servers of IPVS and ipsets cannot
)

// tables are those that hold chains of the role.
func (r Role) tables() []string {
	if r == BesideIPVS {
		return everyTable
	}
	return tables
}

// owns reports that a chain belongs to a service proxy in such a role.
func (r Role) owns(i id) bool {
	if r == BesideIPVS {
		return strings.HasPrefix(i.name, besidePrefix) || strings.HasPrefix(i.name, besideAddrPrefix)
	}
	return i.owned()
}

// follows reports that chains of the role come behind i, another mode's. While
// the node changes its mode that goes on translating, and refuses what it did not.
func (r Role) follows(i id) bool { return r == BesideIPVS && i.owned() }

func (l layout) beside() bool { return l.options.Role == BesideIPVS }

// root is the chain where the tree of addresses begins.
func (l layout) root() string {
	if l.beside() {
		return targetsChain
	}
	return servicesChain
}

// branches is how the names of its branches begin.
func (l layout) branches() string {
	if l.beside() {
		return besideAddrPrefix
	}
	return addrPrefix
}

// entries returns what p, which may be nil, adds to the trees. Entries for all
// ports of an address may be there more than once.
func (l layout) entries(p *service.Port, node *service.Node) []entry {
	switch {
	case p == nil:
		return nil
	case l.beside():
		return besideEntries(p, node)
	}
	return aloneEntries(p)
}

// keys returns the keys that p, which may be nil, may have entries for, if not
// now.
func (l layout) keys(p *service.Port, node *service.Node) []key {
	switch {
	case p == nil:
		return nil
	case l.beside():
		return besideKeys(p, node)
	}
	return aloneKeys(p)
}
