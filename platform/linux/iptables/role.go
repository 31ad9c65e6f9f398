// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// Role is the purpose of chains that add to what something else does with Services. They have names
// of their own. All roles but nil refer to objects outside of the tables, see ProbeWith. With nil,
// the chains implement Services alone.
type Role struct {
	// Prefix begins the names of the chains, and Branches those of the branches of the tree
	// of addresses, which begins in the chain Root of table nat.
	Prefix, Branches, Root string
	// Jumps are the rules of built-in chains that lead to the chains, behind those to chains of no
	// role: during a change of modes the other mode goes on to translate and to reject.
	Jumps []Table
	// Chains returns the chains except for branches. root are the rules of Root.
	Chains func(node *service.Node, root []string) []Table
	// Redirects returns what the tree translates for p, Addresses where it may ever do so.
	Redirects func(p *service.Port, node *service.Node) []Redirect
	Addresses func(p *service.Port, node *service.Node) []service.Address
	// Purposes say what the rules of a chain do with a packet.
	Purposes map[string]string
	// Needs are the features that only this role uses.
	Needs []Requirement
}

// Redirect translates packets to From, unless one without low priority has the same From.
type Redirect struct {
	From        service.Address
	To          netip.AddrPort
	LowPriority bool
}

// Requirement is a feature that rules use, its kernel module, and a rule in a table that shows it.
type Requirement struct{ Name, Module, Table, Rule string }

// tables returns the tables that hold chains of the role.
func (r *Role) tables() []string {
	if r != nil {
		return allTables
	}
	return tables
}

// owns reports whether a chain belongs to a service proxy in this role.
func (r *Role) owns(i id) bool {
	if r != nil {
		return strings.HasPrefix(i.name, r.Prefix) || strings.HasPrefix(i.name, r.Branches)
	}
	return slices.Contains(proxyChainNames[i.table], i.name) || slices.Contains(upstreamChainNames[i.table], i.name) ||
		i.table != mangle && r.isBranch(i) || i.table == nat &&
		slices.ContainsFunc(proxyChainPrefixes, func(p string) bool { return strings.HasPrefix(i.name, p) })
}

// comesAfter reports whether jumps of the role come behind those to i, a chain of another mode.
func (r *Role) comesAfter(i id) bool {
	var alone *Role
	return r != nil && alone.owns(i)
}

// isBranch reports whether a chain is a branch of a tree, not its root. The rest of the name must
// match, too: other components have names with the same prefix.
func (r *Role) isBranch(i id) bool {
	prefix := addrPrefix
	if r != nil {
		prefix = r.Branches
	}
	if of, found := strings.CutPrefix(i.name, prefix); found {
		p, err := netip.ParsePrefix(of)
		return err == nil && p.Addr().Is4() || len(of) == hashLen && strings.Trim(of, base32Digits) == ""
	}
	of, found := strings.CutPrefix(i.name, portPrefix)
	if !found {
		of, found = strings.CutPrefix(i.name, healthPrefix)
	}
	proto, _, _ := strings.Cut(of, "-")
	return found && slices.Contains([]string{"TCP", "UDP", "SCTP"}, proto)
}

// isTree reports whether a chain is part of a tree. The roots for packets of the node
// itself are left out, because they hold the same entries as those for incoming packets.
func (r *Role) isTree(i id) bool {
	if r != nil {
		return i.name == r.Root || r.isBranch(i)
	}
	return slices.Contains([]string{servicesChain, nodePortsChain, portalsInChain, nodePortsInChain, healthPortsChain, "KUBE-EXTERNAL-SERVICES"}, i.name) ||
		r.isBranch(i)
}

func (r *Role) jumps() []jump {
	var all []jump
	for _, c := range chainsOf(r.Jumps) {
		for _, rule := range c.rules {
			all = append(all, jump{c.id, rule})
		}
	}
	return all
}

func chainsOf(all []Table) []chain {
	var chains []chain
	for _, t := range all {
		for _, c := range t.Chains {
			chains = append(chains, chain{id{t.Name, c.Name}, c.Rules})
		}
	}
	return chains
}

// entries returns the entries of p, which may be nil, maybe several for all ports of an address.
func (l layout) entries(p *service.Port, node *service.Node) []entry {
	switch r := l.options.Role; {
	case p == nil:
		return nil
	case r != nil:
		var all []entry
		for _, x := range r.Redirects(p, node) {
			k := keyAt(x.From)
			rule := k.match() + comment(p) + "-j DNAT --to-destination " + x.To.String()
			all = append(all, entry{key: k, rules: []string{rule}, lowPriority: x.LowPriority})
		}
		return all
	}
	return standaloneEntries(p)
}

// keyAt returns the key in table nat for an address.
func keyAt(a service.Address) key {
	return key{table: nat, addr: a.Addr, port: a.Port, proto: a.Protocol}
}

// keys returns the keys for which p, which may be nil, may ever have entries.
func (l layout) keys(p *service.Port, node *service.Node) []key {
	switch r := l.options.Role; {
	case p == nil:
		return nil
	case r != nil:
		var all []key
		for _, a := range r.Addresses(p, node) {
			all = append(all, keyAt(a))
		}
		return all
	}
	return standaloneKeys(p)
}
