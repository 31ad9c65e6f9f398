// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import "context"

// restore applies c and counts the result.
func (b *Backend) restore(ctx context.Context, c *change) error {
	if err := b.driver.Restore(ctx, c.text()); err != nil {
		b.rules.Refused = true
		return err
	}
	for _, w := range c.writes {
		b.rules.Written[w.table] += len(w.rules)
	}
	for _, j := range c.insertJumps {
		b.rules.Written[j.from.table]++
	}
	return nil
}

// restoreInPieces applies the change of s. Its last piece brings it into force.
func (b *Backend) restoreInPieces(ctx context.Context, s *stage) error {
	for _, c := range s.pieces(s.sums, b.driver.PieceRules()) {
		if err := b.restore(ctx, &c); err != nil {
			return err
		}
	}
	return nil
}

// recordInstalled records that the tables hold h.
func (b *Backend) recordInstalled(h *installed) {
	b.installed = h
	b.rules.Held = perTable()
	for i, s := range h.sums {
		b.rules.Held[i.table] += s.rules
	}
}

func perTable() map[string]int {
	n := map[string]int{}
	for _, t := range tables {
		n[t] = 0
	}
	return n
}
