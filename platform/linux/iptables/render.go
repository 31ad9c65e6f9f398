// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bufio"
	"io"
	"slices"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Tables are the tables of a node in one family.
type Tables struct {
	Command string  `json:"command"` // the command that restores them
	Tables  []Table `json:"tables"`
	// Unsupported is what the mode cannot do, by Service port.
	Unsupported []string `json:"unsupported,omitempty"`

	portOf func(in id, rule string) service.PortName // see portFinder; nil for none
}

// Table is one table.
type Table struct {
	Name   string  `json:"name"`
	Chains []Chain `json:"chains"`
}

// Chain is a chain with its rules.
type Chain struct {
	Name  string   `json:"name"`
	Rules []string `json:"rules,omitempty"`
}

// Render writes the tables of both families that a node would hold for want after a
// start with empty tables. The output for the same want is the same. The text is the
// output of iptables-save for such tables, IPv4 first. iptables-restore or
// ip6tables-restore accept their part of it. JSON contains the same rules in a list per
// chain.
func Render(w io.Writer, want *service.Snapshot, o Options, format document.Format) error {
	var docs []Tables
	for _, f := range service.Families {
		docs = append(docs, Document(f, want, o))
	}
	return WriteDocuments(w, docs, format)
}

// WriteDocuments writes docs as Render does.
func WriteDocuments(w io.Writer, docs []Tables, format document.Format) error {
	return format.Write(w, docs, func(b *bufio.Writer) {
		for _, d := range docs {
			b.WriteString(d.Objects().String())
		}
	})
}

// Document returns the tables that a node would hold in family f.
func Document(f service.Family, want *service.Snapshot, o Options) Tables {
	return layout{family: f, options: o}.document(want)
}

// document returns the tables that a node would hold for want.
func (l layout) document(want *service.Snapshot) Tables {
	chains := l.shared(want.Node, want.Ports(l.family), nil)
	for p := range want.Ports(l.family) {
		chains = append(chains, l.portChains(p, want.Node)...)
	}
	d := Tables{Command: command(l.family)}
	for _, name := range l.options.Role.tables() {
		t := Table{Name: name}
		for _, j := range slices.Backward(l.jumps()) {
			if j.from.table == name {
				t.jump(j)
			}
		}
		for _, c := range chains {
			if c.table == name {
				t.Chains = append(t.Chains, Chain{c.name, c.rules})
			}
		}
		d.Tables = append(d.Tables, t)
	}
	return d
}

// jump appends a rule to a built-in chain.
func (t *Table) jump(j jump) {
	i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == j.from.name })
	if i < 0 {
		i = len(t.Chains)
		t.Chains = append(t.Chains, Chain{Name: j.from.name})
	}
	t.Chains[i].Rules = append(t.Chains[i].Rules, j.rule)
}

// Objects returns d in the format of iptables-restore.
func (d Tables) Objects() reconcile.Objects {
	var all reconcile.Objects
	none := service.PortName{}
	portOf := d.portOf
	if portOf == nil {
		portOf = func(id, string) service.PortName { return none }
	}
	all.Add("# for %s-restore\n", d.Command)
	for _, s := range d.Unsupported {
		all.Add("# unsupported: %s\n", s)
	}
	for _, t := range d.Tables {
		all.Add("*%s\n", t.Name)
		for _, c := range t.Chains {
			i, policy := id{t.Name, c.Name}, "-"
			if i.isSystem() {
				policy = "ACCEPT"
			}
			all.AddFor(portOf(i, ""), ":%s %s [0:0]\n", c.Name, policy)
		}
		for _, c := range t.Chains {
			for _, r := range c.Rules {
				all.AddFor(portOf(id{t.Name, c.Name}, r), "-A %s %s\n", c.Name, r)
			}
		}
		all.Add("COMMIT\n")
	}
	return all
}
