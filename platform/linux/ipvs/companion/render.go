// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"bufio"
	"maps"
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

// NewDocument returns what a node would hold in family f after a start from nothing.
// served are the elements for the virtual servers, and addrs those for the addresses of
// the node.
func NewDocument(f service.Family, want *service.Snapshot, o Options, served, addrs []ipset.Member) Document {
	b := &Backend{family: f}
	_, uses := b.countUses(want, nil)
	for _, list := range [][]ipset.Member{served, addrs} {
		slices.SortFunc(list, func(a, b ipset.Member) int { return a.Entry.Compare(b.Entry) })
	}
	members := map[string][]ipset.Member{iptables.SetVirtualServers: served, iptables.SetNodeIPs: addrs}
	for _, e := range slices.SortedFunc(maps.Keys(uses), element.compare) {
		members[e.set] = append(members[e.set], ipset.Member{Entry: e.Entry, Comment: uses[e].comment})
	}
	d := Document{Chains: iptables.Document(f, want, o.chains()), family: f}
	for _, name := range allNames() {
		s := setOf(f, name)
		x := Set{Name: s.Name, Type: s.Type, set: s, members: members[name]}
		for _, m := range x.members {
			x.Elements = append(x.Elements, Element{s.Text(m.Entry), m.Comment})
		}
		d.Sets = append(d.Sets, x)
	}
	return d
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
