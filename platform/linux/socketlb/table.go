// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"net/netip"
	"slices"
	"sync/atomic"

	"kubeproxy/common/service"
)

// Memory is the tables of one family that the programs read, as bpf/socketlb.c describes
// them. The programs see every store at once.
type Memory struct {
	family service.Family
	seed   uint64 // of the hash
	// frontends is a table of entries with open addressing: a name, and the word of a
	// list. An entry belongs to one frontend as long as the table lasts, so that a
	// program that has found it cannot meet another frontend there.
	frontends []uint64
	// slots has the names of endpoints. Those of a list follow one another.
	slots []uint64
}

// name is an address and port in the words of the tables. Those of IPv4 have one word.
type name [3]uint64

// words is the number of words in a name of each family.
var words = [...]int{service.IPv4: 1, service.IPv6: 3}

// bucket is the entries in a bucket, BUCKET of the programs. A name is in one of two.
const bucket = 8

func nameOf(a netip.AddrPort) name {
	port := uint64(bits.ReverseBytes16(a.Port()))
	if a.Addr().Is4() {
		b := a.Addr().As4()
		return name{uint64(binary.LittleEndian.Uint32(b[:]))<<16 | port}
	}
	b := a.Addr().As16()
	return name{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:]), port}
}

// addrPort is the reverse of nameOf.
func (n name) addrPort(f service.Family) netip.AddrPort {
	if f == service.IPv4 {
		var b [4]byte
		binary.LittleEndian.PutUint32(b[:], uint32(n[0]>>16))
		return netip.AddrPortFrom(netip.AddrFrom4(b), bits.ReverseBytes16(uint16(n[0])))
	}
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], n[0])
	binary.LittleEndian.PutUint64(b[8:], n[1])
	return netip.AddrPortFrom(netip.AddrFrom16(b), bits.ReverseBytes16(uint16(n[2])))
}

// hash equals hash of the programs. It is the last step of MurmurHash3.
func hash(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// hash names the two buckets of n. The seed keeps those who choose names from filling them.
func (m *Memory) hash(n name) uint64 {
	if m.family == service.IPv4 {
		return hash(n[0] ^ m.seed)
	}
	return hash(n[0] ^ hash(n[1]^hash(n[2]^m.seed)))
}

// list is the word of a list: the first slot in the upper half, the number of slots in
// the lower one. 0 is the empty list, with which an entry takes no connection.
type list uint64

func listOf(first, n int) list { return list(first)<<32 | list(n) }
func (l list) first() int      { return int(l >> 32) }
func (l list) len() int        { return int(uint32(l)) }

// entries returns the number of entries of the table, a power of two.
func (m *Memory) entries() int { return len(m.frontends) / (words[m.family] + 1) }

func (m *Memory) size() int { return len(m.slots) / words[m.family] }

// at returns the name in entry i. It is the zero name in an unused one.
func (m *Memory) at(i int) (n name) {
	return load(m.frontends[i*(words[m.family]+1):][:words[m.family]])
}

// used reports whether n is a name. The last word contains the port.
func (m *Memory) used(n name) bool { return n[words[m.family]-1] != 0 }

// list returns the list of entry i.
func (m *Memory) list(i int) list { return list(atomic.LoadUint64(m.listWord(i))) }

func (m *Memory) listWord(i int) *uint64 {
	w := words[m.family] + 1
	return &m.frontends[i*w+w-1]
}

// setList replaces the list of entry i by one store: a program reads the old or the new one.
func (m *Memory) setList(i int, l list) { atomic.StoreUint64(m.listWord(i), uint64(l)) }

func (m *Memory) slot(i int) netip.AddrPort {
	w := words[m.family]
	return load(m.slots[i*w : (i+1)*w]).addrPort(m.family)
}

// fill writes endpoints from slot first on. No list may contain these slots.
func (m *Memory) fill(first int, endpoints []service.Endpoint) {
	w := words[m.family]
	for i, e := range endpoints {
		store(m.slots[(first+i)*w:][:w], nameOf(e.Addr))
	}
}

// find returns the entry of n, or where it may be: the emptier bucket. It is -1 if both are full,
// which is rare, as the table grows when half of it is used.
func (m *Memory) find(n name) (i int, found bool) {
	h := m.hash(n)
	a, used, found := m.search(n, uint32(h))
	if found {
		return a, true
	}
	b, usedB, found := m.search(n, uint32(h>>32))
	switch {
	case found:
		return b, true
	case usedB < used:
		a, used = b, usedB
	}
	if used == bucket {
		return -1, false
	}
	return a, false
}

// search returns n's entry in bucket h, or the first unused one, and how many are used.
func (m *Memory) search(n name, h uint32) (i, used int, found bool) {
	first := int(h) & (m.entries() - 1) &^ (bucket - 1)
	for used = range bucket {
		switch x := m.at(first + used); {
		case x == n:
			return first + used, used, true
		case !m.used(x):
			return first + used, used, false
		}
	}
	return -1, bucket, false
}

// claim writes n into the unused entry i. Its last word comes last, and makes it count.
func (m *Memory) claim(i int, n name) {
	w := words[m.family]
	store(m.frontends[i*(w+1):][:w], n)
}

func load(from []uint64) (n name) {
	for i := range from {
		n[i] = atomic.LoadUint64(&from[i])
	}
	return n
}

func store(to []uint64, n name) {
	for i := range to {
		atomic.StoreUint64(&to[i], n[i])
	}
}

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

// slotsFor returns the slots for lists that fill n: changed lists need some while old ones cool.
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

// differences lists what would make the tables equal to s, and what s lacks while incomplete.
func (t *tables) differences(s *service.Snapshot, f service.Family) []change {
	var changes []change
	wanted := make([]uint64, (t.entries()+63)/64)
	for x := range allFrontends(s, f) {
		i, found := t.find(nameOf(x.addr))
		if i >= 0 {
			wanted[i/64] |= 1 << (i % 64)
		}
		if !found || !t.holds(t.list(i), x.endpoints) {
			changes = append(changes, x)
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
