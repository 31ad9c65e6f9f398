// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"bytes"
	"slices"
	"strings"
)

// find looks for a key. found says whether an element has it. hits are the elements that
// have it, or may have it.
func (s *Set) find(key func(size int) bits) (found match, hits []Element) {
	var all *Element
	for i := range s.Elements {
		e := &s.Elements[i]
		m := no
		switch {
		case e.CatchAll:
			all = e
			continue
		case s.Intervals:
			m = s.inInterval(i, key(len(e.Key)))
		case e.KeyEnd != nil:
			m = s.inRanges(e, key(len(e.Key)))
		default:
			m = key(len(e.Key)).equals(e.Key)
		}
		if m == yes && e.Conditional {
			m = maybe
		}
		switch m {
		case yes:
			return yes, []Element{*e}
		case maybe:
			found, hits = maybe, append(hits, *e)
		}
	}
	if all != nil {
		hits = append(hits, *all)
		if found == no {
			found = yes
		}
	}
	return found, hits
}

// sort puts the elements of a set of intervals in order.
func (s *Set) sort() {
	slices.SortFunc(s.Elements, func(a, b Element) int { return bytes.Compare(a.Key, b.Key) })
}

// inInterval reports whether key is in the interval that element i begins. The next element
// ends it.
func (s *Set) inInterval(i int, key bits) match {
	e := s.Elements[i]
	if e.End {
		return no
	}
	m := atLeast(key, e.Key)
	for _, next := range s.Elements[i+1:] {
		if bytes.Equal(next.Key, e.Key) {
			continue
		}
		return min(m, atLeast(key, next.Key).negated())
	}
	return m
}

// inRanges reports whether each field of key is between those of the element.
func (s *Set) inRanges(e *Element, key bits) match {
	m, from := yes, 0
	fields := s.Fields
	if len(fields) == 0 {
		fields = []int{len(e.Key)}
	}
	for _, size := range fields {
		padded := (size + 3) &^ 3
		to := min(from+size, len(e.Key), len(e.KeyEnd))
		if from >= to {
			break
		}
		m = min(m, between(key.part(from, to-from), e.Key[from:to], e.KeyEnd[from:to]))
		from += padded
	}
	return m
}

// atLeast compares numbers in network byte order.
func atLeast(b bits, limit []byte) match {
	switch {
	case bytes.Compare(b.least(), limit) >= 0:
		return yes
	case bytes.Compare(b.most(), limit) < 0:
		return no
	}
	return maybe
}

func between(b bits, low, high []byte) match {
	return min(atLeast(b, low), moreThan(b, high).negated())
}

func moreThan(b bits, limit []byte) match {
	switch {
	case bytes.Compare(b.least(), limit) > 0:
		return yes
	case bytes.Compare(b.most(), limit) <= 0:
		return no
	}
	return maybe
}

// Operations of Compare (kernel: nf_tables.h, nft_cmp_ops).
const (
	cmpEqual = iota
	cmpNotEqual
	cmpLess
	cmpAtMost
	cmpMore
	cmpAtLeast
)

func (c Compare) matches(r registers) match {
	b := r.load(c.From, len(c.Data))
	switch c.Op {
	case cmpEqual:
		return b.equals(c.Data)
	case cmpNotEqual:
		return b.equals(c.Data).negated()
	case cmpLess:
		return atLeast(b, c.Data).negated()
	case cmpAtMost:
		return moreThan(b, c.Data).negated()
	case cmpMore:
		return moreThan(b, c.Data)
	case cmpAtLeast:
		return atLeast(b, c.Data)
	}
	return maybe
}

func (c Range) matches(r registers) match {
	m := between(r.load(c.From, len(c.Low)), c.Low, c.High)
	if c.Not {
		return m.negated()
	}
	return m
}

// effect is what a rule does with a packet.
type effect struct {
	match match
	// ends are what may end the rule: a Verdict, Translate, Reject or Opaque. There are
	// several if a map has several values for what is known.
	ends []any
	why  []string // what of the rule cannot be told
}

func (e *effect) doubt(why string) {
	e.match = min(e.match, maybe)
	if !slices.Contains(e.why, why) {
		e.why = append(e.why, why)
	}
}

// reason says what of the rule cannot be told.
func (e *effect) reason() string { return strings.Join(e.why, ", ") }
