// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// plan is what leads from what sets and chains hold to a snapshot.
type plan struct {
	backend      *Backend
	chains       reconcile.Plan
	create       []string // sets that are missing
	sets         difference
	serviceNames map[element]string // of Services, for those that come
	next         *installed
	delta        map[element]int // to add to next.counts after Apply
	drift        []string
	otherVariant string // what is in the other variant of iptables, "" for nothing
}

var (
	_ reconcile.Remover = (*plan)(nil)
	_ reconcile.Plan    = (*plan)(nil)
)

// difference is what has to come and go between two states of sets.
type difference struct{ add, del []element }

func (d *difference) empty() bool { return len(d.add) == 0 && len(d.del) == 0 }

func (d *difference) sort() {
	slices.SortFunc(d.add, element.compare)
	slices.SortFunc(d.del, element.compare)
}

// diff returns what leads from have to want.
func diff(have, want map[element]int) difference {
	var d difference
	for e := range want {
		if have[e] == 0 {
			d.add = append(d.add, e)
		}
	}
	for e := range have {
		if want[e] == 0 {
			d.del = append(d.del, e)
		}
	}
	d.sort()
	return d
}

// driftLines bounds what is said about drift.
const driftLines = 20

// drift says what others must have done that d is needed, but for sets that are
// missing altogether. What is too much may be an earlier process's while not all
// is known.
func (d difference) drift(f service.Family, missing []string, partial bool) []string {
	var lines []string
	n := 0
	report := func(what string, all []element) {
		for _, e := range all {
			if slices.Contains(missing, e.set) {
				continue
			}
			if n++; n <= driftLines {
				lines = append(lines, what+": "+e.text(f))
			}
		}
	}
	report("missing", d.add)
	if !partial {
		report("foreign", d.del)
	}
	if n > driftLines {
		lines = append(lines, fmt.Sprintf("and %d more", n-driftLines))
	}
	return lines
}

// text is e for people.
func (e element) text(f service.Family) string {
	s := setOf(f, e.set)
	return fmt.Sprintf("element %s of ipset %s", s.Text(e.Entry), s.Name)
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	return len(p.create) == 0 && p.sets.empty() && p.otherVariant == "" && p.chains.Empty()
}

// Drift implements reconcile.Plan.
func (p *plan) Drift() []string { return append(p.drift, p.chains.Drift()...) }

// Removed implements reconcile.Remover. What goes has its virtual server go,
// which tells of it.
func (p *plan) Removed() []*service.Port { return nil }

// String implements reconcile.Plan.
func (p *plan) String() string {
	var b strings.Builder
	f := p.backend.family
	for _, name := range p.create {
		b.WriteString("+ ipset " + iptables.SetName(f, name) + "\n")
	}
	for _, e := range p.sets.add {
		b.WriteString("+ " + e.text(f) + "\n")
	}
	for _, e := range p.sets.del {
		b.WriteString("- " + e.text(f) + "\n")
	}
	b.WriteString(p.chains.String())
	if p.otherVariant != "" {
		b.WriteString("- " + p.otherVariant + ", of the other variant of iptables\n")
	}
	return b.String()
}

// A set changes element by element, and chains by themselves. What is asked for
// first comes first and goes last, so that a client always meets all of what was or
// all of what will be: policy Local begins when everything that it needs is
// there, and ends before any of that goes. All else stands behind it, or,
// as what drops and refuses, decides by itself.
var (
	// addBeforeChains come before chains change, in this order.
	addBeforeChains = []string{
		iptables.SetVirtualIPs, iptables.SetClusterIPs, iptables.SetExternal,
		iptables.SetInternalDropped, iptables.SetExternalDropped, iptables.SetDropped, iptables.SetRefused,
		iptables.SetSources, iptables.SetRestricted, iptables.SetHealthChecks,
	}
	// addAfterChains come when chains lead where they should.
	addAfterChains = []string{iptables.SetInternalRedirect, iptables.SetExternalRedirect, iptables.SetLocal}
	// deleteLast go in the end.
	deleteLast = []string{
		iptables.SetInternalRedirect, iptables.SetExternalRedirect, iptables.SetExternal,
		iptables.SetInternalDropped, iptables.SetExternalDropped, iptables.SetDropped, iptables.SetRefused,
		iptables.SetRestricted, iptables.SetSources, iptables.SetClusterIPs, iptables.SetVirtualIPs, iptables.SetHealthChecks,
	}
)

// Apply implements reconcile.Plan. If a Port's chains are refused, nothing is led
// by them, and the error names it.
func (p *plan) Apply(ctx context.Context) error {
	b := p.backend
	b.installed = nil // if anything fails, the next Plan reads the sets
	for _, name := range p.create {
		if err := b.sets.Create(setOf(b.family, name)); err != nil {
			return fmt.Errorf("make ipset %s: %w", iptables.SetName(b.family, name), err)
		}
	}
	// What fails ends all: the next step relies on it.
	if err := p.addElements(addBeforeChains, nil); err != nil {
		return err
	}
	narrows := func(e element) bool { return !p.liftsRestriction(e) }
	if err := p.deleteElements(narrows, iptables.SetSources); err != nil {
		return err
	}
	if err := p.deleteElements(anyElement, iptables.SetLocal); err != nil {
		return err
	}
	var chains error
	if !p.chains.Empty() {
		chains = p.chains.Apply(ctx)
	}
	if chains != nil && len(reconcile.PortErrors(chains)) == 0 {
		return chains
	}
	but := p.refusedFrontends(chains)
	err := p.addElements(addAfterChains, but)
	if err == nil {
		err = p.deleteElements(func(e element) bool {
			return !but[e.frontend()] && (e.set != iptables.SetSources || p.liftsRestriction(e))
		}, deleteLast...)
	}
	if p.otherVariant != "" && chains == nil && err == nil {
		err = b.otherVariant.Remove(ctx)
	}
	if err = errors.Join(chains, err); err != nil {
		return err
	}
	if !p.sets.empty() || len(p.create) > 0 {
		p.next.sizes, p.next.sizesReadAt, err = b.currentSizes(nil, p.chains)
	}
	if err == nil {
		p.recordInstalled()
	}
	return err
}

// refusedFrontends returns the addresses and ports of the Ports that err is about. They stay
// as they are.
func (p *plan) refusedFrontends(err error) map[ipset.Entry]bool {
	fronts := map[ipset.Entry]bool{}
	for _, e := range reconcile.PortErrors(err) {
		if port := p.next.snapshot.Port(p.backend.family, e.Name); port != nil {
			p.next.localNode.elements(port, func(e element) { fronts[e.frontend()] = true })
		}
	}
	return fronts
}

// frontend is the address and the port that e is about.
func (e element) frontend() ipset.Entry {
	e.Net = netip.Prefix{}
	return e.Entry
}

// addElements adds what is to come to sets, but for what is about some fronts.
func (p *plan) addElements(sets []string, but map[ipset.Entry]bool) error {
	b := p.backend
	for _, name := range sets {
		var members []ipset.Member
		for _, e := range p.sets.add {
			if e.set == name && !but[e.frontend()] {
				members = append(members, ipset.Member{Entry: e.Entry, Comment: p.serviceNames[e]})
			}
		}
		if len(members) == 0 {
			continue
		}
		if err := b.sets.Add(setOf(b.family, name), members); err != nil {
			return err
		}
	}
	return nil
}

// liftsRestriction reports that a source that goes does so as all are let in: the frontend is
// not restricted any more. Others go before anything lets in whom they did.
func (p *plan) liftsRestriction(e element) bool {
	_, goes := slices.BinarySearchFunc(p.sets.del, element{iptables.SetRestricted, e.frontend()}, element.compare)
	return goes
}

func anyElement(element) bool { return true }

// deleteElements removes from sets what is to go and fits.
func (p *plan) deleteElements(match func(element) bool, sets ...string) error {
	b := p.backend
	for _, name := range sets {
		var entries []ipset.Entry
		for _, e := range p.sets.del {
			if e.set == name && match(e) {
				entries = append(entries, e.Entry)
			}
		}
		if len(entries) == 0 {
			continue
		}
		if err := b.sets.Del(setOf(b.family, name), entries); err != nil {
			return err
		}
	}
	return nil
}

// recordInstalled notes that sets are as p wants them.
func (p *plan) recordInstalled() {
	h := p.next
	for e, n := range p.delta {
		if h.counts[e] += n; h.counts[e] <= 0 {
			delete(h.counts, e)
		}
	}
	p.backend.installed = h
}
