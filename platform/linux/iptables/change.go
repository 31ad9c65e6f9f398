// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// change is the input of one run of iptables-restore.
type change struct {
	writes      []chain // created or flushed, then filled
	deletes     []id
	moves       []move     // moved to the positions of jumps
	insertJumps []jump     // inserted at the head of their chains, or
	insertAfter map[id]int // behind this number of rules
	deleteJumps []jump     // removed from their chains
}

func (c *change) empty() bool {
	return len(c.writes) == 0 && len(c.deletes) == 0 && len(c.moves) == 0 && len(c.insertJumps) == 0 && len(c.deleteJumps) == 0
}

// text returns c in the format of iptables-restore --noflush.
func (c *change) text() string { return c.textOf(allTables) }

// removal returns the text of a change that only removes. iptables-restore commits one
// table after the other. The chains in table filter, which reject untranslated packets,
// go before those that translate: another component such as IPVS may translate after
// them.
func (c *change) removal() string { return c.textOf([]string{filter, nat, mangle}) }

func (c *change) textOf(tables []string) string {
	var b strings.Builder
	for _, table := range tables {
		c.writeTable(&b, table)
	}
	return b.String()
}

func (c *change) writeTable(b *strings.Builder, table string) {
	var head, body strings.Builder
	for _, w := range c.writes {
		if w.table != table {
			continue
		}
		head.WriteString(":" + w.name + " - [0:0]\n")
		for _, r := range w.rules {
			body.WriteString("-A " + w.name + " " + r + "\n")
		}
	}
	c.writeJumps(&body, table)
	for _, d := range c.deletes {
		if d.table == table { // flushed first, so that no rule refers to a deleted chain
			head.WriteString(":" + d.name + " - [0:0]\n")
			body.WriteString("-X " + d.name + "\n")
		}
	}
	if head.Len() > 0 || body.Len() > 0 {
		fmt.Fprintf(b, "*%s\n%s%sCOMMIT\n", table, head.String(), body.String())
	}
}

// writeJumps writes the changes of the built-in chains of table. insertAfter counts
// positions in the present chain, so jumps from a chain where ours are not first are
// deleted last.
func (c *change) writeJumps(body *strings.Builder, table string) {
	remove := func(first bool) {
		for _, j := range c.deleteJumps {
			if j.from.table == table && (c.insertAfter[j.from] == 0) == first {
				body.WriteString("-D " + j.from.name + " " + j.rule + "\n")
			}
		}
	}
	remove(true)
	for _, m := range c.moves { // the old rule is behind its new position
		if m.from.table == table {
			fmt.Fprintf(body, "-D %s %s\n-I %s %d %s\n", m.from.name, m.rule, m.from.name, c.insertAfter[m.from]+1, m.jump.rule)
		}
	}
	for _, j := range c.insertJumps {
		if j.from.table == table {
			fmt.Fprintf(body, "-I %s %d %s\n", j.from.name, c.insertAfter[j.from]+1, j.rule)
		}
	}
	remove(false)
}

// list describes c, with one change per chain or jump. names has the Ports of chains that
// only one Port uses.
func (c *change) list(names map[id]service.PortName) reconcile.Changes {
	var all reconcile.Changes
	for _, w := range c.writes {
		all = append(all, reconcile.Change{Text: fmt.Sprintf("+ %s chain %s (rules: %d)", w.table, w.name, len(w.rules)), Port: names[w.id]})
	}
	for _, m := range c.moves {
		all.Add("~ %s rule in %s: %s: ahead of %s", m.from.table, m.from.name, m.jump.rule, m.shadowedBy)
	}
	for _, j := range c.insertJumps {
		all.Add("+ %s rule in %s: %s", j.from.table, j.from.name, j.rule)
	}
	for _, j := range c.deleteJumps {
		all.Add("- %s rule in %s: %s", j.from.table, j.from.name, j.rule)
	}
	for _, d := range c.deletes {
		all = append(all, reconcile.Change{Text: fmt.Sprintf("- %s chain %s", d.table, d.name), Port: names[d]})
	}
	return all
}

// stage collects a change to chains whose sums are known.
type stage struct {
	change
	layout  layout
	sums    map[id]sum // read only
	newSums map[id]sum // of the chains that are written
	changes []service.Change
	// keepDeleted keeps the chains of removed Ports. It is set for an incomplete
	// snapshot, because retained rules may jump to them.
	keepDeleted bool
}

// ensure writes those chains that differ from the desired ones.
func (s *stage) ensure(chains ...chain) {
	if s.newSums == nil {
		s.newSums = map[id]sum{}
	}
	for _, c := range chains {
		now := c.sum()
		old, held := s.sums[c.id]
		if _, twice := s.newSums[c.id]; twice || held && old == now {
			continue
		}
		s.newSums[c.id] = now
		s.writes = append(s.writes, c)
	}
}

// changePort adds the change of one Port.
func (s *stage) changePort(c service.Change, node *service.Node) {
	s.changes = append(s.changes, c)
	stay := map[id]bool{}
	if c.New != nil {
		chains, same := s.layout.changedChains(c.New, c.Old, node)
		if slices.ContainsFunc(same, func(i id) bool { return !s.holds(i) }) {
			chains = s.layout.portChains(c.New, node)
		}
		for _, x := range chains {
			stay[x.id] = true
		}
		s.ensure(chains...)
	}
	if c.Old == nil || s.keepDeleted {
		return
	}
	chains, _ := s.layout.changedChains(c.Old, c.New, node)
	for _, x := range chains {
		if s.holds(x.id) && !stay[x.id] {
			s.deletes = append(s.deletes, x.id)
		}
	}
}

// holds reports whether the tables have a chain before the change.
func (s *stage) holds(i id) bool {
	_, held := s.sums[i]
	return held
}

// ensureShared adds all chains that do not belong to a single Port, and deletes branches
// of trees that are not among them.
func (s *stage) ensureShared(chains []chain) {
	s.ensure(chains...)
	stay := map[id]bool{}
	for _, c := range chains {
		stay[c.id] = true
	}
	for i := range s.sums {
		if i.isBranch() && !stay[i] {
			s.deletes = append(s.deletes, i)
		}
	}
	slices.SortFunc(s.deletes, id.compare)
}

// recordSums updates s.sums after the change has been applied.
func (s *stage) recordSums() {
	for i, v := range s.newSums {
		s.sums[i] = v
	}
	for _, d := range s.deletes {
		delete(s.sums, d)
	}
}
