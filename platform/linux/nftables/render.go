// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

// Render writes the tables of both families that a node would hold for want if it started
// without tables. Equal snapshots give equal bytes. The text has the syntax of nft, which
// nft -c -f accepts. JSON holds the same statements in one list per chain and set.
func Render(w io.Writer, want *service.Snapshot, o Options, format document.Format) error {
	var docs []*renderedTable
	for _, f := range service.Families {
		docs = append(docs, newRenderedTable(f, want, o))
	}
	return format.Write(w, map[string]any{"tables": docs}, func(b *bufio.Writer) {
		for _, d := range docs {
			b.WriteString(d.objects().String())
		}
	})
}

// renderedTable is one table in printable form.
type renderedTable struct {
	Family string         `json:"family"`
	Name   string         `json:"name"`
	Sets   []renderedPart `json:"sets"`
	Chains []renderedPart `json:"chains"`

	sets     []*set
	chains   []*chain
	elements map[string][]element // by set
	family   service.Family
	portOf   func(comment string) service.PortName
}

// renderedPart is a set with its elements, or a chain with its rules.
type renderedPart struct {
	Name     string   `json:"name"`
	Type     string   `json:"type,omitempty"`
	Elements []string `json:"elements,omitempty"`
	Rules    []string `json:"rules,omitempty"`
}

// newRenderedTable returns the table that a node would hold for want if it started without a
// table.
func newRenderedTable(f service.Family, want *service.Snapshot, o Options) *renderedTable {
	return renderedAfter(nil, f, want, o)
}

// renderedAfter returns the table that t becomes for want: endpoints keep their slots, and
// chains of size classes stay. t is nil if there is none.
func renderedAfter(t *table, f service.Family, want *service.Snapshot, o Options) *renderedTable {
	d := &renderedTable{Family: nft.FamilyName(f), Name: o.table(), family: f, elements: map[string][]element{}, portOf: want.Commented(f, comment)}
	d.sets = slices.Clone(o.sets())
	d.chains = baseChains(f, want.Node, o)
	need := baseClasses
	var before *comparison
	if t != nil {
		before = &comparison{table: t}
		need = need.union(before.observedClasses())
	}
	var own []*chain
	shared := newShared()
	for p := range want.Ports(f) {
		l := layout{}
		if before != nil {
			l = before.observedLayout(p)
		}
		l = l.next(p)
		need = need.union(l.neededClasses())
		d.sets = append(d.sets, affinitySets(p)...)
		own = append(own, affinityChains(p, o)...)
		shared.add(p, 1)
		for _, e := range l.elements() {
			d.elements[e.in.name] = append(d.elements[e.in.name], e)
		}
	}
	for _, e := range shared.elements() {
		d.elements[e.in.name] = append(d.elements[e.in.name], e)
	}
	d.chains = append(append(d.chains, need.chains(o)...), own...)
	d.describe()
	return d
}

// describe fills in the texts of sets and chains.
func (d *renderedTable) describe() {
	f := d.family
	for _, s := range d.sets {
		d.Sets = append(d.Sets, renderedPart{Name: s.name, Type: typeof(s.key, f), Elements: d.texts(d.elements[s.name])})
	}
	for _, c := range d.chains {
		x := renderedPart{Name: c.name}
		if c.hook != nil {
			x.Type = fmt.Sprintf("nat %s %d", c.hook.name, c.hook.priority)
		}
		for _, r := range c.rules {
			x.Rules = append(x.Rules, r.text(f))
		}
		d.Chains = append(d.Chains, x)
	}
}

func (d *renderedTable) texts(elements []element) []string {
	slices.SortFunc(elements, compareListed)
	var texts []string
	for _, e := range elements {
		texts = append(texts, e.text(d.family))
	}
	return texts
}

// objects returns the table as text.
func (d *renderedTable) objects() reconcile.Objects {
	var all reconcile.Objects
	all.Add("table %s %s {\n", d.Family, d.Name)
	for i, s := range d.sets {
		d.addSet(&all, s.text(d.family), d.elements[s.name], d.Sets[i].Elements)
	}
	for _, c := range d.chains {
		all.Add("%s", c.text(d.family))
	}
	all.Add("}\n")
	return all
}

// addSet adds a set with elements, which have texts, after its declaration.
func (d *renderedTable) addSet(to *reconcile.Objects, declaration string, elements []element, texts []string) {
	to.Add("%s", declaration)
	if len(elements) > 0 {
		to.Add("\t\telements = {\n")
	}
	for i, e := range elements {
		to.AddFor(d.portOf(e.comment), "\t\t\t%s,\n", texts[i])
	}
	if len(elements) > 0 {
		to.Add("\t\t}\n")
	}
	to.Add("\t}\n")
}
