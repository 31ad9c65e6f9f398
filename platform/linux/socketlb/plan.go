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
	changes []change
	drift   []string
}

// change sets the list of a frontend, or releases it if no endpoint is left.
type change struct {
	addr      netip.AddrPort
	endpoints []service.Endpoint
	port      *service.Port // nil if the snapshot does not have it
}

func (c change) String() string {
	if len(c.endpoints) == 0 {
		return fmt.Sprintf("- take no connection to %s", c.addr)
	}
	var all []string
	for _, e := range c.endpoints {
		all = append(all, e.Addr.String())
	}
	return fmt.Sprintf("+ take connections to %s, %s: %s", c.addr, c.port.Name, strings.Join(all, " "))
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
	var err error
	if p.moved, err = b.driver.Moved(); err != nil {
		p.rebuild = fmt.Sprintf("look for the cgroups of pods: %v", err)
		return
	}
	if !first {
		var r reconcile.DriftReport
		for _, c := range b.tables.differences(b.have, b.family) {
			r.Add(func() string { return "altered: " + strings.TrimLeft(c.String(), "+- ") })
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
	return !p.remove && p.rebuild == "" && p.moved == "" && len(p.changes) == 0
}

// String implements reconcile.Plan.
func (p *plan) String() string {
	switch {
	case p.remove:
		return fmt.Sprintf("- remove socket acceleration of %s\n", p.backend.family)
	case p.rebuild != "":
		return fmt.Sprintf("+ make tables of socket acceleration of %s: %s\n", p.backend.family, p.rebuild)
	}
	var text strings.Builder
	if p.moved != "" {
		fmt.Fprintf(&text, "+ take connections of other pods: %s\n", p.moved)
	}
	for _, c := range p.changes {
		text.WriteString(c.String())
		text.WriteByte('\n')
	}
	return text.String()
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	o := reconcile.Outcome{Drift: p.drift}
	if fault := p.backend.fault; fault != "" {
		o.Degraded = fmt.Sprintf("socket acceleration of %s is off, and all its connections meet the rules: %s", p.backend.family, fault)
	}
	return o
}

// Apply implements reconcile.Plan.
func (p *plan) Apply(context.Context) reconcile.Outcome {
	b := p.backend
	if p.remove {
		if err := known(b.driver.Remove()); err != nil {
			return reconcile.Outcome{Err: fmt.Errorf("remove socket acceleration that an earlier process left: %w", err)}
		}
		b.have = p.want
		return p.Outcome()
	}
	b.have, b.fault = p.want, ""
	err := p.write()
	if err == nil {
		return p.Outcome()
	}
	// Tables with old lists are worse than none.
	b.tables, b.fault = nil, err.Error()
	o := p.Outcome()
	if err := known(b.driver.Remove()); err != nil {
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
	for _, c := range p.changes {
		ok, err := b.tables.set(c, b.driver.Barrier)
		if err != nil {
			return err
		}
		if !ok {
			return p.build()
		}
	}
	return nil
}

// build makes new tables with room to grow, and puts them in force.
func (p *plan) build() error {
	b := p.backend
	frontends, slots := 0, 0
	for f := range allFrontends(p.want, b.family) {
		frontends++
		slots += runFor(len(f.endpoints))
	}
	m, err := b.driver.Build(entriesFor(frontends), slotsFor(slots))
	if err != nil {
		return err
	}
	t := newTables(m)
	for f := range allFrontends(p.want, b.family) {
		if ok, err := t.set(change(f), b.driver.Barrier); err != nil {
			return err
		} else if !ok {
			return fmt.Errorf("new tables have no room for %s", f.addr)
		}
	}
	if err := b.driver.Activate(); err != nil {
		return err
	}
	b.tables = t
	return nil
}
