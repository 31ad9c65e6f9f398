// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// change is what one run of iptables-restore does.
type change struct {
	writes      []chain // made, or emptied, and filled
	deletes     []id
	moves       []move     // put where jumps are
	insertJumps []jump     // put first in their chains, or
	insertAfter map[id]int // so many rules
	deleteJumps []jump     // removed from their chains
}

func (c *change) empty() bool {
	return len(c.writes) == 0 && len(c.deletes) == 0 && len(c.moves) == 0 && len(c.insertJumps) == 0 && len(c.deleteJumps) == 0
}

// text is c as iptables-restore --noflush takes it.
func (c *change) text() string { return c.textOf(allTables) }

// removal is the text of a change that only removes. Each table is done for
// itself, and the chains that refuse what was not translated go before those
// that translate: somebody else may translate behind them, as IPVS does.
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
		if d.table == table { // emptied first, so that none refers to the other
			head.WriteString(":" + d.name + " - [0:0]\n")
			body.WriteString("-X " + d.name + "\n")
		}
	}
	if head.Len() > 0 || body.Len() > 0 {
		fmt.Fprintf(b, "*%s\n%s%sCOMMIT\n", table, head.String(), body.String())
	}
}

// writeJumps writes what leads from the chains of the system in table. Places count
// what is there now, so what goes from a chain where we are not the first goes last.
func (c *change) writeJumps(body *strings.Builder, table string) {
	remove := func(first bool) {
		for _, j := range c.deleteJumps {
			if j.from.table == table && (c.insertAfter[j.from] == 0) == first {
				body.WriteString("-D " + j.from.name + " " + j.rule + "\n")
			}
		}
	}
	remove(true)
	for _, m := range c.moves { // it stands behind the place that it gets
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

// lines says what c does, a line for each chain or jump.
func (c *change) lines() []string {
	var lines []string
	for _, w := range c.writes {
		lines = append(lines, fmt.Sprintf("+ %s chain %s (rules: %d)", w.table, w.name, len(w.rules)))
	}
	for _, m := range c.moves {
		lines = append(lines, fmt.Sprintf("~ %s rule in %s: %s: ahead of %s", m.from.table, m.from.name, m.jump.rule, m.shadowedBy))
	}
	for _, j := range c.insertJumps {
		lines = append(lines, fmt.Sprintf("+ %s rule in %s: %s", j.from.table, j.from.name, j.rule))
	}
	for _, j := range c.deleteJumps {
		lines = append(lines, fmt.Sprintf("- %s rule in %s: %s", j.from.table, j.from.name, j.rule))
	}
	for _, d := range c.deletes {
		lines = append(lines, fmt.Sprintf("- %s chain %s", d.table, d.name))
	}
	return lines
}

// stage collects a change to chains whose sums are known.
type stage struct {
	change
	layout  layout
	sums    map[id]sum // not changed
	newSums map[id]sum // of the chains that are written
	changes []service.Change
	// keepDeleted has the chains stay of Ports that go, for a partial snapshot: what it
	// does not know may lead to them.
	keepDeleted bool
}

// ensure writes chains that are not as they should be.
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

// changePort goes on from one state of a port to the next.
func (s *stage) changePort(c service.Change, node *service.Node) {
	s.changes = append(s.changes, c)
	stay := map[id]bool{}
	if c.New != nil {
		chains := s.layout.portChains(c.New, node)
		for _, x := range chains {
			stay[x.id] = true
		}
		s.ensure(chains...)
	}
	if c.Old == nil || s.keepDeleted {
		return
	}
	for _, x := range s.layout.portChains(c.Old, node) {
		if _, held := s.sums[x.id]; held && !stay[x.id] {
			s.deletes = append(s.deletes, x.id)
		}
	}
}

// ensureShared takes all chains that are not one Port's, and removes the branches of
// trees that are not among them.
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

// recordSums notes in s.sums what has taken effect.
func (s *stage) recordSums() {
	for i, v := range s.newSums {
		s.sums[i] = v
	}
	for _, d := range s.deletes {
		delete(s.sums, d)
	}
}
