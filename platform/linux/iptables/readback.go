// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"maps"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables/walk"
)

// ReadBack returns the chains that the tables hold, and those that they would hold for
// want, in the text and order of Render. Of the chains of others it has the rules that
// jump to ours. Both texts are equal if no chain has to change for want.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	have, would, err := b.ReadTables(ctx, want)
	return have.Objects(), would.Objects(), err
}

// ReadTables returns what ReadBack returns, as tables.
func (b *Backend) ReadTables(ctx context.Context, want *service.Snapshot) (held, wanted Tables, err error) {
	b.readSettings()
	t, err := b.read(ctx)
	if err != nil {
		return Tables{}, Tables{}, err
	}
	want = b.withPendingNodePorts(want, t)
	wanted = b.document(want)
	held = t.inOrderOf(wanted)
	wanted.portOf = b.portFinder(want)
	held.portOf = wanted.portOf
	return held, wanted, nil
}

// portFinder returns a function that finds the Service port of a rule, or of a chain if
// the rule is empty: in want, or else by the comment of the rule.
func (l layout) portFinder(want *service.Snapshot) func(in id, rule string) service.PortName {
	chains, rules := l.portNames(&installed{snapshot: want}), map[string]service.PortName{}
	for p := range want.Ports(l.family) {
		for _, e := range l.entries(p, want.Node) {
			if e.port == 0 {
				continue // is for each port of the Service
			}
			for _, r := range e.rules {
				rules[r] = p.Name
			}
		}
	}
	return func(in id, rule string) service.PortName {
		if n, found := chains[in]; found {
			return n
		}
		if n, found := rules[rule]; found {
			return n
		}
		return service.ParsePortName(walk.Argument(walk.Split(rule), "--comment"))
	}
}

// inOrderOf returns the chains of h, those that d has first and in its order.
func (h *observed) inOrderOf(d Tables) Tables {
	held := Tables{Command: d.Command}
	for _, t := range d.Tables {
		x := Table{Name: t.Name}
		known := map[id]bool{localnetMark: true}
		for _, c := range t.Chains {
			i := id{t.Name, c.Name}
			known[i] = true
			if i.isSystem() {
				x.Chains = append(x.Chains, h.builtIn(i, c))
			} else if rules, found := h.chains[i]; found {
				x.Chains = append(x.Chains, Chain{c.Name, spelledAs(c.Rules, rules)})
			}
		}
		for _, i := range slices.SortedFunc(maps.Keys(h.chains), id.compare) {
			if i.table == t.Name && !known[i] {
				x.Chains = append(x.Chains, Chain{i.name, h.chains[i]})
			}
		}
		held.Tables = append(held.Tables, x)
	}
	return held
}

// builtIn returns those rules of a built-in chain that jump to our chains: the ones of
// want first, then the others.
func (h *observed) builtIn(i id, want Chain) Chain {
	c := Chain{Name: i.name}
	var others []string
	for _, r := range h.references {
		if b := r.bare().rule; r.from == i && !slices.Contains(want.Rules, b) {
			others = append(others, r.rule)
		}
	}
	for _, rule := range want.Rules {
		if slices.ContainsFunc(h.references, func(r jump) bool { return r.from == i && r.bare().rule == rule }) {
			c.Rules = append(c.Rules, rule)
		}
	}
	c.Rules = append(c.Rules, others...)
	return c
}

// spelledAs returns rules with the quotation marks of those in want that are the same to
// iptables.
func spelledAs(want, rules []string) []string {
	spelling := map[string]string{}
	for _, r := range want {
		spelling[unquoted(r)] = r
	}
	all := slices.Clone(rules)
	for i, r := range all {
		if s, found := spelling[unquoted(r)]; found {
			all[i] = s
		}
	}
	return all
}
