// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"math/bits"
	"slices"

	"kubeproxy/common/service"
)

// tables is a Memory and what is known of its use.
type tables struct {
	*Memory
	slots *allocator
	used  int // entries, those without a list included
	// unplaced counts frontends that found both buckets full. The rules serve them.
	unplaced int
}

func newTables(m *Memory) *tables { return &tables{Memory: m, slots: newAllocator(m.size())} }

// errForeign means that tables do not hold what this program writes.
var errForeign = errors.New("its tables are damaged")

// adopted returns the tables that another process has filled.
func adopted(m *Memory) (*tables, error) {
	for i := range m.entries() {
		if !m.inside(m.list(i)) {
			return nil, errForeign
		}
	}
	a, used := adopt(m)
	return &tables{Memory: m, slots: a, used: used}, nil
}

// inside reports whether the tables have the slots of l.
func (m *Memory) inside(l list) bool { return l.first()+runFor(l.len()) <= m.size() }

// The least sizes of tables.
const (
	minEntries = 256
	minSlots   = 1024
)

// entriesFor returns the number of entries for n frontends: at most a third is in use, so
// that names have room to be near the entry that their hash names.
func entriesFor(n int) int { return 1 << bits.Len(uint(max(3*n, minEntries)-1)) }

// slotsFor returns the number of slots for lists that fill n. The others take changed lists
// while the old ones cool.
func slotsFor(n int) int { return max(2*n, minSlots) }

// set applies c. It returns false if only larger tables have room.
func (t *tables) set(c change, barrier func() error) (ok bool, err error) {
	n := nameOf(c.addr)
	i, found := t.find(n)
	if len(c.endpoints) == 0 {
		if found {
			t.replace(i, 0)
		}
		return true, nil
	}
	switch {
	case i < 0:
		t.unplaced++
		return true, nil
	case !found && t.used >= t.entries()/2:
		return false, nil
	}
	first, ok := t.slots.take(len(c.endpoints))
	if !ok && t.slots.hopeful() {
		if err := barrier(); err != nil {
			return false, err
		}
		t.slots.cool()
		first, ok = t.slots.take(len(c.endpoints))
	}
	if !ok {
		return false, nil
	}
	t.fill(first, c.endpoints)
	if !found {
		t.claim(i, n)
		t.used++
	}
	t.replace(i, listOf(first, len(c.endpoints)))
	return true, nil
}

// replace makes entry i use l, and lets its old slots cool.
func (t *tables) replace(i int, l list) {
	old := t.list(i)
	t.setList(i, l)
	if t.inside(old) {
		t.slots.give(old)
	}
}

// differences lists what would make the tables equal to s. Frontends that s does not have
// stay while it is incomplete.
func (t *tables) differences(s *service.Snapshot, f service.Family) []change {
	var changes []change
	wanted := make([]uint64, (t.entries()+63)/64)
	for x := range allFrontends(s, f) {
		i, found := t.find(nameOf(x.addr))
		if i >= 0 {
			wanted[i/64] |= 1 << (i % 64)
		}
		if !found || !t.holds(t.list(i), x.endpoints) {
			changes = append(changes, change(x))
		}
	}
	if s.Incomplete {
		return changes
	}
	for i := range t.entries() {
		if t.list(i) != 0 && wanted[i/64]&(1<<(i%64)) == 0 {
			changes = append(changes, change{addr: t.at(i).addrPort(f)})
		}
	}
	return changes
}

// holds reports whether l has exactly these endpoints.
func (t *tables) holds(l list, endpoints []service.Endpoint) bool {
	if l.len() != len(endpoints) || !t.inside(l) {
		return false
	}
	i := l.first() - 1
	return !slices.ContainsFunc(endpoints, func(e service.Endpoint) bool {
		i++
		return t.slot(i) != e.Addr
	})
}
