// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import "kubeproxy/platform/linux/iptables/walk"

// pieces splits c so that no part has many more than limit rules of new chains, 0 for no
// limit. have are the chains that exist. Each part but the last only makes chains to which
// no rule leads yet, those first that others refer to. The last part has everything else,
// so packets meet the old rules until it is applied, and then all of the new ones.
//
// iptables-nft-restore took 92 MB of memory for 5,000 Services of ten endpoints in one
// text, and 14 MB for one more chain beside them. TestStartsWithLittleMemory (test/live)
// bounds that memory.
func (c *change) pieces(have map[id]sum, limit int) []change {
	if limit == 0 {
		return []change{*c}
	}
	s := splitter{fresh: map[id]*chain{}, done: map[id]bool{}, limit: limit}
	last := *c
	last.writes = nil
	for i := range c.writes {
		w := &c.writes[i]
		if _, exists := have[w.id]; exists {
			last.writes = append(last.writes, *w)
			continue
		}
		s.fresh[w.id] = w
		s.rules += len(w.rules)
	}
	if s.rules <= limit {
		return []change{*c}
	}
	for i := range c.writes {
		s.add(c.writes[i].id)
	}
	s.cut()
	return append(s.parts, last)
}

// splitter puts new chains into parts.
type splitter struct {
	fresh map[id]*chain
	done  map[id]bool
	limit int
	rules int // of all new chains
	parts []change
	now   change
	size  int // rules in now
}

// add adds a new chain, after those that it refers to.
func (s *splitter) add(i id) {
	c := s.fresh[i]
	if c == nil || s.done[i] {
		return
	}
	s.done[i] = true // chains do not lead back to themselves
	for _, r := range c.rules {
		if to := targetOf(walk.Split(r)); to != "" {
			s.add(id{i.table, to})
		}
	}
	s.now.writes = append(s.now.writes, *c)
	if s.size += len(c.rules); s.size >= s.limit {
		s.cut()
	}
}

func (s *splitter) cut() {
	if len(s.now.writes) > 0 {
		s.parts = append(s.parts, s.now)
	}
	s.now, s.size = change{}, 0
}
