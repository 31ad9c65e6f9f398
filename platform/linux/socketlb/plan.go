// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan implements reconcile.Plan.
type plan struct {
	backend *Backend
	want    *service.Snapshot
	remove  bool
	// rebuild is why new tables are needed, empty if they are not. Then changes does not
	// count.
	rebuild string
	moved   string // as Driver.Moved says
	evict   bool   // what an earlier process attached
	changes []change
	drift   []string
}

// change sets the list of a frontend, or releases it if no endpoint is left.
type change struct {
	addr      netip.AddrPort
	endpoints []service.Endpoint
	port      *service.Port // nil if the snapshot does not have it
}

func (c change) String() string { return c.describe("+ ", "- ") }

// describe describes c after the word for what it does.
func (c change) describe(add, del string) string {
	if len(c.endpoints) == 0 {
		return del + fmt.Sprintf("take no connection to %s", c.addr)
	}
	var all []string
	for _, e := range c.endpoints {
		all = append(all, e.Addr.String())
	}
	return add + fmt.Sprintf("take connections to %s, %s: %s", c.addr, c.port.Name, strings.Join(all, " "))
}

// compare finds all that differs from the tables. first is whether an earlier process
// wrote them: then nothing counts as drift.
func (p *plan) compare(first bool) {
	b := p.backend
	if err := b.driver.Attached(); err != nil {
		p.rebuild = err.Error()
		if !first {
			p.drift = append(p.drift, p.rebuild)
		}
		return
	}
	if n := b.tables.unplaced; n > 0 {
		p.rebuild = fmt.Sprintf("%d addresses have no place in these", n)
		return
	}
	var err error
	if p.moved, err = b.driver.Moved(); err != nil {
		p.rebuild = fmt.Sprintf("look for the cgroups of pods: %v", err)
		return
	}
	p.evict = b.lookAround().Strays > 0
	if !first {
		var r reconcile.DriftReport
		for _, c := range b.tables.differences(b.have, b.family) {
			r.Add(func() string { return c.describe("altered: ", "altered: ") })
		}
		p.drift = r.Lines()
	}
	p.changes = b.tables.differences(p.want, b.family)
}

// follow finds what differs between the last snapshot and this one.
func (p *plan) follow() {
	b := p.backend
	if !takes(p.want.Node) {
		return
	}
	set := map[netip.AddrPort]bool{}
	var released []change
	for c := range service.Diff(b.have, p.want, b.family) {
		for f := range frontendsOf(c.New) {
			set[f.addr] = true
			p.changes = append(p.changes, change(f))
		}
		for f := range frontendsOf(c.Old) {
			released = append(released, change{addr: f.addr})
		}
	}
	for _, c := range released {
		if !set[c.addr] { // another Service may have the address now
			p.changes = append(p.changes, c)
		}
	}
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	return !p.remove && p.rebuild == "" && p.moved == "" && !p.evict && len(p.changes) == 0
}

// Changes implements reconcile.Plan.
func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	switch {
	case p.remove:
		all.Add("- remove socket acceleration of %s", p.backend.family)
		return all
	case p.rebuild != "":
		all.Add("+ make tables of socket acceleration of %s: %s", p.backend.family, p.rebuild)
		return all
	}
	if p.moved != "" {
		all.Add("+ take connections of other pods: %s", p.moved)
	}
	if p.evict {
		all.Add("- detach programs of socket acceleration of %s that an earlier process left", p.backend.family)
	}
	for _, c := range p.changes {
		x := reconcile.Change{Text: c.String(), Named: true}
		if c.port != nil {
			x.Port = c.port.Name
		}
		all = append(all, x)
	}
	return all
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	o := reconcile.Outcome{Drift: p.drift}
	switch b := p.backend; {
	case b.fault != "" && b.others != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s cannot be kept up to date: %s; %s", b.family, b.fault, b.others)
	case b.fault != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s is off, and all its connections meet the rules: %s", b.family, b.fault)
	case b.tables != nil && b.tables.unplaced > 0:
		o.Degraded = fmt.Sprintf("socket acceleration of %s has no place for %d addresses, which the rules serve", b.family, b.tables.unplaced)
	case b.others != "" && b.off:
		o.Degraded = fmt.Sprintf("socket acceleration of %s, which is off, may be in force, with old lists: %s", b.family, b.others)
	case b.others != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s may not be what decides: %s", b.family, b.others)
	case b.tables != nil && b.missed.text != "":
		o.Degraded = fmt.Sprintf("socket acceleration of %s takes no connection of pods: %s", b.family, b.missed.text)
	}
	return o
}

// Apply implements reconcile.Plan.
func (p *plan) Apply(context.Context) reconcile.Outcome {
	b := p.backend
	if p.remove {
		err := b.driver.Remove()
		if known(err) != nil {
			return reconcile.Outcome{Err: fmt.Errorf("remove socket acceleration that an earlier process left: %w", err)}
		}
		b.have, b.others = p.want, suspicion(err)
		return p.Outcome()
	}
	b.have, b.fault = p.want, ""
	err := p.write()
	if err == nil {
		return p.Outcome()
	}
	// Tables with old lists are worse than none.
	b.tables, b.fault = nil, err.Error()
	err = b.driver.Remove()
	b.others = suspicion(err)
	o := p.Outcome()
	if err := known(err); err != nil {
		b.have = nil
		o.Err = fmt.Errorf("remove socket acceleration of %s, which could not be changed: %w", b.family, err)
	}
	return o
}

// write brings the tables up to date.
func (p *plan) write() error {
	b := p.backend
	if p.rebuild != "" {
		return p.build()
	}
	if p.moved != "" {
		if err := b.driver.Follow(); err != nil {
			return err
		}
	}
	if p.evict {
		if err := b.evict(); err != nil {
			return err
		}
	}
	for _, c := range p.changes {
		ok, err := b.tables.set(c, b.driver.Barrier)
		if err != nil {
			return err
		}
		if !ok || b.tables.unplaced > 0 {
			return p.build()
		}
	}
	return nil
}

// seeds is how many tables are tried until each name has a place. It is the first one unless
// somebody guessed its seed.
const seeds = 3

// build makes new tables with room to grow, and puts them in force.
func (p *plan) build() error {
	b := p.backend
	t, err := p.fill()
	for range seeds - 1 {
		if err == nil && t.unplaced > 0 {
			t, err = p.fill()
		}
	}
	if err != nil {
		return err
	}
	if err := b.driver.Activate(); err != nil {
		return err
	}
	b.tables = t
	return b.evict()
}

// fill makes tables, with another seed each time.
func (p *plan) fill() (*tables, error) {
	b := p.backend
	frontends, slots := 0, 0
	for f := range allFrontends(p.want, b.family) {
		frontends++
		slots += runFor(len(f.endpoints))
	}
	m, err := b.driver.Build(entriesFor(frontends), slotsFor(slots))
	if err != nil {
		return nil, err
	}
	t := newTables(m)
	for f := range allFrontends(p.want, b.family) {
		if ok, err := t.set(change(f), b.driver.Barrier); err != nil {
			return nil, err
		} else if !ok {
			return nil, fmt.Errorf("new tables have no room for %s", f.addr)
		}
	}
	return t, nil
}

// evict leaves no lists in force but those of the tables.
func (b *Backend) evict() error {
	if err := b.driver.Evict(); err != nil {
		return fmt.Errorf("detach programs that an earlier process left: %w", err)
	}
	b.lookAround()
	return nil
}

// lookAround looks for what else may decide.
func (b *Backend) lookAround() Others {
	o, err := b.driver.Others()
	if err != nil {
		o.Text = err.Error()
	}
	b.others = o.Text
	return o
}
