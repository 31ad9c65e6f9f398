// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import "math/bits"

// allocator hands out slots. A run of slots that was given back may still be read by a
// program that found it before, so it cools until the driver's barrier, after which no
// such program runs.
type allocator struct {
	next, size int // the slots from next on were never used
	live       int
	free       map[int][]int // first slots, by length
	cooling    map[int][]int
	cold       bool // the slots from next on may be in use by a program, too
}

func newAllocator(size int) *allocator {
	return &allocator{size: size, free: map[int][]int{}, cooling: map[int][]int{}}
}

// runFor returns the length of the run for a list of n. Lists that grow or shrink a
// little find runs of the same length again.
func runFor(n int) int {
	step := 1 << max(bits.Len(uint(n))-3, 0)
	return (n + step - 1) &^ (step - 1)
}

// take returns the first slot of a run for n, or false if there is none without a barrier.
func (a *allocator) take(n int) (first int, ok bool) {
	run := runFor(n)
	if same := a.free[run]; len(same) > 0 {
		first = same[len(same)-1]
		a.free[run] = same[:len(same)-1]
		a.live += run
		return first, true
	}
	if a.cold || a.next+run > a.size {
		return 0, false
	}
	first, a.next = a.next, a.next+run
	a.live += run
	return first, true
}

// give takes back the run of l.
func (a *allocator) give(l list) {
	if l.len() == 0 {
		return
	}
	run := runFor(l.len())
	a.live -= run
	a.cooling[run] = append(a.cooling[run], l.first())
}

// hopeful reports whether a barrier can be worth its time: it frees a good part of the
// slots, so that the next one is far.
func (a *allocator) hopeful() bool { return a.cold || a.live <= a.size/2 && len(a.cooling) > 0 }

// cool frees what was given back. It follows a barrier.
func (a *allocator) cool() {
	for run, firsts := range a.cooling {
		a.free[run] = append(a.free[run], firsts...)
	}
	clear(a.cooling)
	a.cold = false
}

// adopt returns the allocator of m, which another process has filled.
func adopt(m *Memory) (a *allocator, live int) {
	a = newAllocator(m.size())
	a.cold = true
	for i := range m.entries() {
		if m.used(m.at(i)) {
			live++
		}
		if l := m.list(i); l.len() > 0 {
			a.live += runFor(l.len())
			a.next = max(a.next, l.first()+runFor(l.len()))
		}
	}
	return a, live
}
