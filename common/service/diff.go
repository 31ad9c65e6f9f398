// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import "iter"

// Change is a difference between two snapshots. Old is nil for an added
// port, New for a removed one.
type Change struct{ Old, New *Port }

// Name returns the name of the port that changed.
func (c Change) Name() PortName {
	if c.New != nil {
		return c.New.Name
	}
	return c.Old.Name
}

func (c Change) family() Family {
	if c.New != nil {
		return c.New.Family
	}
	return c.Old.Family
}

// Diff yields the changes in family f that lead from one snapshot to the next, in name
// order. If from is nil, every port counts as added. Diff skips shared chunks by pointer,
// so its cost depends on the size of the difference.
func Diff(from, to *Snapshot, f Family) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		var a, b cursor
		if from != nil {
			a.chunks = from.ports[f].chunks
		}
		b.chunks = to.ports[f].chunks
		for {
			skipShared(&a, &b)
			p, q := a.port(), b.port()
			var c Change
			switch {
			case p == nil && q == nil:
				return
			case p == q: // most ports of a chunk, without a look at their names
				a.i++
				b.i++
			case p == nil || q != nil && q.Name.Compare(p.Name) < 0:
				c.New = q
				b.i++
			case q == nil || p.Name.Compare(q.Name) < 0:
				c.Old = p
				a.i++
			default:
				c = Change{p, q}
				a.i++
				b.i++
			}
			if c.Old != c.New && !yield(c) {
				return
			}
		}
	}
}

// cursor walks a list of chunks.
type cursor struct {
	chunks []*chunk
	i      int // in chunks[0]
}

// port returns the port under c, nil at the end.
func (c *cursor) port() *Port {
	for len(c.chunks) > 0 && c.i == len(c.chunks[0].ports) {
		c.chunks, c.i = c.chunks[1:], 0
	}
	if len(c.chunks) == 0 {
		return nil
	}
	return c.chunks[0].ports[c.i]
}

// skipShared moves both cursors past the chunks that they share.
func skipShared(a, b *cursor) {
	for a.port() != nil && b.port() != nil && a.i == 0 && b.i == 0 && a.chunks[0] == b.chunks[0] {
		a.chunks, b.chunks = a.chunks[1:], b.chunks[1:]
	}
}
