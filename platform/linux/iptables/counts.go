// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import "context"

// Tally counts what a sync did to the rules.
type Tally struct {
	// Refused means that iptables-restore failed, even if only for some ports.
	Refused bool
	// Rules is the number of rules in all our chains, by table. It is nil while the
	// contents of the tables are unknown.
	Rules map[string]int
	// Written is the number of rules written, by table.
	Written map[string]int
}

// Tally returns the counts since its last call. It must not run concurrently with a
// sync.
func (b *Backend) Tally() Tally {
	t := b.tally
	b.tally = Tally{Rules: t.Rules, Written: perTable()}
	return t
}

// restore applies c and counts the result.
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

// recordInstalled records that the tables hold h.
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
