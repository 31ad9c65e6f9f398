// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import "slices"

// observedSet is a set with its elements, by elementKey. A table has two elements for each
// endpoint, so they are kept in little memory.
type observedSet struct {
	spec     setSpec
	elements map[string]observedElement
}

// observedElement is an element without its key.
type observedElement struct {
	value string
	more  *element // nil if there is nothing but a key and a value
}

func newObservedSet(spec setSpec) *observedSet {
	return &observedSet{spec, map[string]observedElement{}}
}

// put adds a copy of e. It reports false if there is an element with the same key.
func (s *observedSet) put(e element) bool {
	k := elementKey(e)
	if _, found := s.elements[k]; found {
		return false
	}
	x := observedElement{value: string(e.value)}
	if e.end != nil || e.verdict != (verdict{}) || e.comment != "" || e.catchAll || e.expressions {
		x.more = &element{end: slices.Clone(e.end), verdict: e.verdict, comment: e.comment, catchAll: e.catchAll, expressions: e.expressions}
	}
	s.elements[k] = x
	return true
}

// same reports whether x and e, which have the same key, are equal.
func (x observedElement) same(e element) bool {
	old := element{}
	if x.more != nil {
		old = *x.more
	}
	old.value = e.value
	return x.value == string(e.value) && old.same(e)
}

// get returns the element with an elementKey. It does not contain the set.
func (s *observedSet) get(k string) (element, bool) {
	x, found := s.elements[k]
	if !found {
		return element{}, false
	}
	e := element{}
	if x.more != nil {
		e = *x.more
	}
	if !e.catchAll {
		e.key = []byte(k[:len(k)-len(e.end)])
	}
	if x.value != "" {
		e.value = []byte(x.value)
	}
	return e, true
}
