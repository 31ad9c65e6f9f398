// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import "context"

// Tally is what a round did to the rules.
type Tally struct {
	// Refused says that iptables-restore failed, be it that only some ports had to
	// do without.
	Refused bool
	// Rules has, by table, those of all chains of ours. It is nil while nobody
	// knows what the tables hold.
	Rules map[string]int
	// Written has, by table, the rules that were written.
	Written map[string]int
}

// Tally returns what was done since it was last asked. It is called between
// two rounds.
func (b *Backend) Tally() Tally {
	t := b.tally
	b.tally = Tally{Rules: t.Rules, Written: perTable()}
	return t
}

// restore makes c take effect, and counts what came of it.
func (b *Backend) restore(ctx context.Context, c *change) error {
	if err := b.driver.Restore(ctx, c.text()); err != nil {
		b.tally.Refused = true
		return err
	}
	for _, w := range c.writes {
		b.tally.Written[w.table] += len(w.rules)
	}
	for _, j := range c.insertJumps {
		b.tally.Written[j.from.table]++
	}
	return nil
}

// recordInstalled notes that the tables hold what h says.
func (b *Backend) recordInstalled(h *installed) {
	b.installed = h
	b.tally.Rules = perTable()
	for i, s := range h.sums {
		b.tally.Rules[i.table] += s.rules
	}
}

func perTable() map[string]int {
	n := map[string]int{}
	for _, t := range tables {
		n[t] = 0
	}
	return n
}
