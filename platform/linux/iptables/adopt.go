// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"maps"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// planAll plans from the observed tables t to want. have is what we last installed, nil
// if that is not known. Differences between t and have are drift.
func (b *Backend) planAll(t *observed, have *installed, want *service.Snapshot) *plan {
	sums := t.sums()
	delete(sums, localnetMark) // is added and removed separately, see planLocalnet
	p := &plan{backend: b, from: &installed{}, fullSync: true, dormant: t.dormant}
	b.readLocalnetMark(p, t)
	foreign := b.foreign(t, want)
	p.next = &installed{snapshot: want, sums: sums}
	if want.Incomplete {
		p.next.retained = foreign
	}
	s := &stage{layout: b.layout, sums: sums}
	stay := map[id]bool{localnetMark: true}
	for port := range want.Ports(b.family) {
		chains := b.portChains(port, want.Node)
		for _, c := range chains {
			stay[c.id] = true
		}
		s.ensure(chains...)
		s.changes = append(s.changes, service.Change{New: port})
	}
	shared := b.shared(want.Node, want.Ports(b.family), p.next.retained)
	s.ensureShared(shared)
	for _, c := range shared {
		stay[c.id] = true
	}
	s.insertJumps, s.insertAfter, s.moves = t.missingJumps(b.jumps()), t.insertAfter, t.misplaced(b.jumps())
	surplus := t.extraJumps(stay, b.jumps())
	if have != nil {
		p.drift = drift(t, have, b.jumps(), surplus)
	}
	if !want.Incomplete {
		extraneous := t.extraneous(stay)
		s.deletes, s.deleteJumps = extraneous.deletes, append(extraneous.deleteJumps, surplus...)
		for _, w := range extraneous.writes {
			s.ensure(w)
		}
		p.removed = removedPorts(b.family, foreign)
	}
	p.stage = s
	return p
}

// foreign returns the entries that the tables hold and want does not contain.
func (b *Backend) foreign(t *observed, want *service.Snapshot) []entry {
	wanted := map[key]bool{}
	for p := range want.Ports(b.family) {
		for _, k := range b.keys(p, want.Node) {
			wanted[k] = true
		}
	}
	return slices.DeleteFunc(t.entries(), func(e entry) bool { return wanted[e.key] })
}

// removedPorts returns the frontends that disappear with entries.
func removedPorts(f service.Family, entries []entry) []*service.Port {
	var all []*service.Port
	for _, e := range entries {
		if e.port == 0 || e.check {
			continue
		}
		all = append(all, &service.Port{
			Name:   service.PortName{Protocol: e.proto},
			Family: f, Frontends: []service.Frontend{e.frontend()},
		})
	}
	return all
}

// drift describes how others changed the tables since we installed have. surplus are the
// jumps that others added.
func drift(t *observed, have *installed, jumps, surplus []jump) []string {
	var r reconcile.DriftReport
	add := func(format string, args ...any) { r.Add(func() string { return fmt.Sprintf(format, args...) }) }
	for _, table := range t.dormant {
		add("altered: table %s is dormant, so no packet passes its rules", table)
	}
	now := t.sums()
	delete(now, localnetMark)
	for _, i := range slices.SortedFunc(maps.Keys(have.sums), id.compare) {
		held, found := now[i]
		switch {
		case !found:
			add("missing: chain %s of table %s", i.name, i.table)
		case held != have.sums[i]:
			add("altered: rules of chain %s of table %s", i.name, i.table)
		}
	}
	for _, i := range slices.SortedFunc(maps.Keys(now), id.compare) {
		if _, ours := have.sums[i]; !ours {
			add("foreign: chain %s of table %s", i.name, i.table)
		}
	}
	for _, j := range t.missingJumps(jumps) {
		add("missing: rule %q of chain %s of table %s", j.rule, j.from.name, j.from.table)
	}
	for _, m := range t.misplaced(jumps) {
		r.Add(m.String)
	}
	for _, j := range surplus {
		add("foreign: rule %q of chain %s of table %s", j.rule, j.from.name, j.from.table)
	}
	return r.Lines()
}
