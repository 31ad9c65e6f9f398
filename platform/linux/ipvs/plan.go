// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is what leads from what the kernel holds to a snapshot.
type plan struct {
	backend  *Backend
	rules    reconcile.Plan
	settings []string // to be made
	first    []op
	units    []unit
	routes   []op
	next     *installed         // what the kernel holds after Apply
	delta    map[netip.Addr]int // to add to next.addrs after Apply
	drains   drains             // after Apply
	ended    map[key]bool       // virtual servers whose last destination has drained
	drift    []string
	removed  []*service.Port
	whole    bool // made from what the kernel holds, not from what changed
}

var (
	_ reconcile.Remover = (*plan)(nil)
	_ reconcile.Whole   = (*plan)(nil)
)

// unit is the change of one Port, or of none in particular.
type unit struct {
	port *service.Port
	ops  []op
	gone []op  // virtual servers that go, when nothing leads there any more
	err  error // why more cannot be done
}

// add takes u, if it does something.
func (p *plan) add(u unit) {
	if len(u.ops) > 0 || len(u.gone) > 0 || u.err != nil {
		p.units = append(p.units, u)
	}
}

// ops yields everything that p does itself, in order.
func (p *plan) ops() iter.Seq[op] {
	return func(yield func(op) bool) {
		parts := [][]op{p.first}
		for _, u := range p.units {
			parts = append(parts, u.ops)
		}
		parts = append(parts, p.routes)
		for _, u := range p.units {
			parts = append(parts, u.gone)
		}
		for _, part := range parts {
			for _, o := range part {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	return p.rules.Empty() && len(p.settings) == 0 && len(p.first) == 0 && len(p.units) == 0 && len(p.routes) == 0
}

// Drift implements reconcile.Plan.
func (p *plan) Drift() []string { return append(p.drift, p.rules.Drift()...) }

// Removed implements reconcile.Remover.
func (p *plan) Removed() []*service.Port { return p.removed }

// Whole implements reconcile.Whole.
func (p *plan) Whole() bool { return p.whole }

// String implements reconcile.Plan.
func (p *plan) String() string {
	var b strings.Builder
	for _, s := range p.settings {
		b.WriteString("+ setting " + s + "\n")
	}
	for o := range p.ops() {
		b.WriteString(o.text() + "\n")
	}
	return b.String() + p.rules.String()
}

// Apply implements reconcile.Plan. Virtual servers come before the rules
// beside them and these before the addresses that lead there; what goes, goes
// the other way round.
func (p *plan) Apply(ctx context.Context) error {
	b := p.backend
	b.have = nil // if anything fails, the next Plan asks the kernel
	a := &applier{plan: p, ctx: ctx}
	if len(p.settings) > 0 {
		if err := b.driver.Prepare(ctx); err != nil {
			return fmt.Errorf("prepare IPVS for %s: %w", b.family, err)
		}
		b.prepared = true
	}
	if err := a.steps(p.first); err != nil {
		return fmt.Errorf("prepare IPVS for %s: %w", b.family, err)
	}
	a.ports(func(u *unit) []op { return u.ops })
	var rules error
	if !p.rules.Empty() {
		rules = p.rules.Apply(ctx)
	}
	if !isPartial(rules) {
		// Without the rules, an address would lead to whatever listens here.
		return errors.Join(append(a.errs, rules)...)
	}
	if err := a.steps(p.routes); err != nil {
		a.errs = append(a.errs, fmt.Errorf("lead addresses of Services to the node: %w", err))
	}
	a.ports(func(u *unit) []op { return u.gone })
	for i := range p.units {
		if u := &p.units[i]; u.err != nil {
			a.errs = append(a.errs, u.failed(u.err))
		}
	}
	p.tellDrains(ctx)
	b.drain(p.drains)
	if err := errors.Join(append(a.errs, rules)...); err != nil {
		return err
	}
	p.done()
	return nil
}

// done notes that all is as p wants it.
func (p *plan) done() {
	for a, n := range p.delta {
		if p.next.addrs[a] += n; p.next.addrs[a] == 0 {
			delete(p.next.addrs, a)
		}
	}
	b := p.backend
	b.have, b.prepared = p.next, true
	b.drain(p.drains)
}

// isPartial reports that err is about single Ports, if there is one.
func isPartial(err error) bool {
	switch e := err.(type) {
	case nil, *reconcile.PortError:
		return true
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if !isPartial(err) {
				return false
			}
		}
		return true
	}
	return false
}

// applier is one run of Apply.
type applier struct {
	plan *plan
	ctx  context.Context
	errs []error
}

// steps does ops that are no Port's.
func (a *applier) steps(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return failures(ops, a.plan.backend.driver.Commit(a.ctx, ops))
}

// failures joins what went wrong with ops.
func failures(ops []op, failed map[int]error) error {
	var errs []error
	for i := range ops {
		if err := failed[i]; failure(ops[i], err) {
			errs = append(errs, fmt.Errorf("%s: %w", ops[i].text(), err))
		}
	}
	return bounded(errs)
}

// ports does the ops that pick finds in each unit, and names the first failure
// of each.
func (a *applier) ports(pick func(*unit) []op) {
	var ops []op
	var owner []int
	for i := range a.plan.units {
		for _, o := range pick(&a.plan.units[i]) {
			ops = append(ops, o)
			owner = append(owner, i)
		}
	}
	if len(ops) == 0 {
		return
	}
	failed := a.plan.backend.driver.Commit(a.ctx, ops)
	last := -1
	for i := range ops {
		if failed[i] == nil {
			a.plan.backend.noteDone(ops[i])
		}
		if err := failed[i]; failure(ops[i], err) && owner[i] != last {
			last = owner[i]
			u := &a.plan.units[last]
			a.errs = append(a.errs, u.failed(fmt.Errorf("%s: %w", ops[i].text(), err)))
		}
	}
}

// failure reports that err keeps o from having been done. What should go may
// have gone by itself.
func failure(o op, err error) bool {
	goes := o.verb == delServer || o.verb == delDest || o.verb == delRoute || o.verb == delAddr
	return err != nil && !(goes && errors.Is(err, errMissing))
}

// maxErrors bounds how many failures are told of what is no Port's.
const maxErrors = 20

func bounded(errs []error) error {
	if n := len(errs); n > maxErrors {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more", n-maxErrors))
	}
	return errors.Join(errs...)
}
