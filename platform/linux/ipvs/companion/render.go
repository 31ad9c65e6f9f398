// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"bufio"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Document is what a node would hold in one family.
type Document struct {
	Sets   []Set           `json:"sets"`
	Chains iptables.Tables `json:"chains"`

	family service.Family
}

// Set is a set with its elements, each in the format of ipset.
type Set struct {
	Name     string     `json:"name"`
	Type     ipset.Type `json:"type"`
	Elements []Element  `json:"elements,omitempty"`

	set     ipset.Set
	members []ipset.Member
}

// Element is an element of a set, with its Service if it belongs to a single one.
type Element struct {
	Element string `json:"element"`
	Service string `json:"service,omitempty"`
}

// Servers are the elements of the two sets that package ipvs fills: those for the virtual
// servers, and those for the addresses of the node.
type Servers struct{ Served, Addrs []ipset.Member }

// NewDocument returns what a node would hold in family f after a start from nothing.
func NewDocument(f service.Family, want *service.Snapshot, o Options, servers Servers) Document {
	b := &Backend{family: f}
	return Document{Sets: b.wantedSets(want, servers, nil), Chains: iptables.Document(f, want, o.chains()), family: f}
}

// wantedSets returns the sets for want. held are the existing elements.
func (b *Backend) wantedSets(want *service.Snapshot, servers Servers, held map[element]use) []Set {
	_, uses := b.countUses(want, held)
	members := map[string][]ipset.Member{iptables.SetVirtualServers: servers.Served, iptables.SetNodeIPs: servers.Addrs}
	for e := range uses {
		members[e.set] = append(members[e.set], ipset.Member{Entry: e.Entry, Comment: uses[e].comment})
	}
	var sets []Set
	for _, name := range allNames() {
		sets = append(sets, newSet(setOf(b.family, name), members[name]))
	}
	return sets
}

// newSet sorts members.
func newSet(s ipset.Set, members []ipset.Member) Set {
	slices.SortFunc(members, func(a, b ipset.Member) int { return a.Entry.Compare(b.Entry) })
	x := Set{Name: s.Name, Type: s.Type, set: s, members: members}
	for _, m := range members {
		x.Elements = append(x.Elements, Element{s.Text(m.Entry), m.Comment})
	}
	return x
}

// WriteText writes the sets in the format of ipset restore, and then the chains in that
// of iptables-restore.
func (d Document) WriteText(w *bufio.Writer) {
	w.WriteString("# for ipset restore\n")
	for _, s := range d.Sets {
		s.set.WriteText(w, s.members)
	}
	d.Chains.WriteText(w)
}
