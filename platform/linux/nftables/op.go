// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"fmt"

	"kubeproxy/common/service"
)

// verb is the kind of an op. The order of the constants is the order within a
// transaction: objects are created before others refer to them, and deleted after.
type verb uint8

const (
	delTable verb = iota
	addTable
	clearDormant // clears the flag dormant of the table
	addSet
	addChain
	acceptPolicy // of a base chain
	flushChain   // deletes the rules; a chain with rules cannot be deleted
	addRules
	delElement
	addElement
	delChain
	delSet
)

// op is one step of a transaction. The verb determines which fields it uses.
type op struct {
	verb    verb
	table   string // its name where the verb is about it, empty for TableName
	set     *set
	chain   *chain
	element element
}

// text describes o in one line of a plan.
func (o op) text(f service.Family) string { return o.describe(f, "+ ", "- ") }

// driftText describes the foreign change that makes o necessary.
func (o op) driftText(f service.Family) string { return o.describe(f, "missing: ", "foreign: ") }

// describe describes o after the word for what it does.
func (o op) describe(f service.Family, add, del string) string {
	switch o.verb {
	case delTable:
		return del + "table " + cmp.Or(o.table, TableName)
	case addTable:
		return add + "table " + cmp.Or(o.table, TableName)
	case clearDormant:
		return del + "flag dormant of table " + cmp.Or(o.table, TableName)
	case addSet:
		return add + "set " + o.set.name
	case delSet:
		return del + "set " + o.set.name
	case addChain:
		return add + "chain " + o.chain.name
	case acceptPolicy:
		return del + "policy drop of chain " + o.chain.name
	case delChain:
		return del + "chain " + o.chain.name
	case flushChain:
		return del + "rules of chain " + o.chain.name
	case addRules:
		return add + fmt.Sprintf("rules of chain %s (%d)", o.chain.name, len(o.chain.rules))
	case delElement:
		return del + fmt.Sprintf("%s: %s", o.element.in.name, o.element.text(f))
	}
	return add + fmt.Sprintf("%s: %s", o.element.in.name, o.element.text(f))
}

// appendChain appends the ops that create chains.
func appendChain(ops []op, chains ...*chain) []op {
	for _, c := range chains {
		ops = append(ops, op{verb: addChain, chain: c}, op{verb: addRules, chain: c})
	}
	return ops
}

// appendChainDelete appends the ops that delete c.
func appendChainDelete(ops []op, c *chain) []op {
	return append(ops, op{verb: flushChain, chain: c}, op{verb: delChain, chain: c})
}

// appendElements appends the ops that change have into want. Both must be sorted.
func appendElements(ops []op, have, want []element) []op {
	for len(have) > 0 || len(want) > 0 {
		order := 0
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		default:
			order = have[0].compare(want[0])
		}
		switch {
		case order < 0:
			ops = append(ops, op{verb: delElement, element: have[0]})
			have = have[1:]
		case order > 0:
			ops = append(ops, op{verb: addElement, element: want[0]})
			want = want[1:]
		default:
			if !have[0].same(want[0]) {
				ops = append(ops, op{verb: delElement, element: have[0]}, op{verb: addElement, element: want[0]})
			}
			have, want = have[1:], want[1:]
		}
	}
	return ops
}

// portOps returns the ops that change one layout of a Port into the next. The port of
// either may be nil.
func portOps(from, to layout, o Options) []op {
	var have, want []element
	if sameRoutes(from.port, to.port) {
		have, want = from.changedElements(to), to.changedElements(from)
	} else {
		if from.port != nil {
			have = from.elements()
		}
		if to.port != nil {
			want = to.elements()
		}
	}
	ops := appendElements(nil, have, want)
	return appendAffinityChanges(ops, from.port, to.port, o)
}

// appendAffinityChanges appends the ops for the objects that only one Port uses.
func appendAffinityChanges(ops []op, from, to *service.Port, o Options) []op {
	old, next := affinityChains(from, o), affinityChains(to, o)
	if len(old) == 0 && len(next) == 0 {
		return ops
	}
	oldSets, nextSets := map[string]*set{}, map[string]*set{}
	for _, s := range affinitySets(from) {
		oldSets[s.name] = s
	}
	for _, s := range affinitySets(to) {
		nextSets[s.name] = s
		if oldSets[s.name] == nil {
			ops = append(ops, op{verb: addSet, set: s})
		}
	}
	for _, s := range affinitySets(from) {
		if nextSets[s.name] == nil {
			ops = append(ops, op{verb: delSet, set: s})
		}
	}
	return appendChainChanges(ops, old, next)
}

// appendChainChanges appends the ops that change the chains old into next. It compares
// rules by their text, which is complete.
func appendChainChanges(ops []op, old, next []*chain) []op {
	had := map[string]string{}
	for _, c := range old {
		had[c.name] = c.text(service.IPv4)
	}
	for _, c := range next {
		text, found := had[c.name]
		delete(had, c.name)
		switch {
		case !found:
			ops = appendChain(ops, c)
		case text != c.text(service.IPv4):
			ops = append(ops, op{verb: flushChain, chain: c}, op{verb: addRules, chain: c})
		}
	}
	for _, c := range old {
		if _, gone := had[c.name]; gone {
			ops = appendChainDelete(ops, c)
		}
	}
	return ops
}
