// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is the work of one sync. Its changes come from a dry run of the same work.
type plan struct {
	backend *Backend
	next    *state
	work    *work
	changes []desiredChange
	// reserve, if not nil, is the source VIP's endpoint that must be created.
	reserve  *Endpoint
	fullSync bool
	drift    []string

	dry *pass // p.work without effects
}

// desiredChange is the change of one Service port's desired state.
type desiredChange struct {
	name     service.PortName
	from, to DesiredState
}

// delta returns the change of the claims.
func (p *plan) delta() claims {
	c := newClaims()
	for _, x := range p.changes {
		c.add(x.from, -1)
		c.add(x.to, 1)
	}
	return c
}

// Empty implements reconcile.Plan. Failures and limits are work that is not done, so a plan
// with only these is not empty.
func (p *plan) Empty() bool {
	return len(p.dry.changes)+len(p.dry.failed)+len(p.limits()) == 0 && p.reserve == nil
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	return reconcile.Outcome{
		Err: errors.Join(portErrors(p.backend.family, p.dry.failed, p.limits())...), FullSync: p.fullSync, Drift: p.drift,
		Notes: p.next.notes, Unavailable: p.next.site.Unavailable,
	}
}

// Changes implements reconcile.Plan.
func (p *plan) Changes() reconcile.Changes {
	if p.reserve == nil {
		return p.dry.changes
	}
	return append(reconcile.Changes{p.reserveChange()}, p.dry.changes...)
}

// reserveChange is the change that reserves a source VIP.
func (p *plan) reserveChange() reconcile.Change {
	at := "at an address that HNS chooses"
	if len(p.reserve.Addrs) > 0 {
		at = p.reserve.Addrs[0].String()
	}
	return reconcile.Change{Text: fmt.Sprintf("+ endpoint %s %s", p.reserve.Name, at)}
}

// addChange adds a change to the plan that a dry pass makes. n is the Service port of a
// load balancer.
func (p *pass) addChange(n service.PortName, format string, args ...any) {
	if !p.dry {
		return
	}
	c := reconcile.Change{Text: fmt.Sprintf(format, args...), Port: n}
	if n.Namespace == unknownNamespace {
		c = reconcile.Change{Text: c.String()}
	}
	p.changes = append(p.changes, c)
}

// Apply implements reconcile.Plan. If an answer shows that HNS holds something other than
// the listing, Apply lists, compares and applies once more.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	err := p.program(ctx)
	out := p.Outcome() // of the plan that was made again, if one was
	out.Err = err
	return out
}

// program makes the changes of p.
func (p *plan) program(ctx context.Context) error {
	b := p.backend
	b.state = nil
	if p.reserve != nil {
		if err := p.reserveVIP(ctx); err != nil {
			return err
		}
	}
	done := p.execute(ctx)
	if done.stale && done.fatal == nil {
		b.host.save()
		if err := p.replan(ctx); err != nil {
			return errors.Join(append(portErrors(b.family, done.failed), err)...)
		}
		done = p.execute(ctx)
	}
	b.host.save()
	if done.fatal != nil {
		return fmt.Errorf("program HNS: %w", done.fatal)
	}
	p.finish(done)
	return errors.Join(portErrors(b.family, done.failed, p.limits())...)
}

// replan computes p again from a new listing.
func (p *plan) replan(ctx context.Context) error {
	fresh, err := p.backend.planAll(ctx, p.next.snapshot)
	if err != nil {
		return err
	}
	fresh.drift, fresh.fullSync = p.drift, p.fullSync
	*p = *fresh
	if p.reserve != nil {
		return p.reserveVIP(ctx)
	}
	return nil
}

func (p *plan) execute(ctx context.Context) *pass {
	b := p.backend
	b.host.recordPending(p.dry.creates)
	applied := newPass(ctx, b.host, &p.next.site, b.family, p.next.model)
	applied.do(p.work)
	b.host.markWritten()
	b.host.confirm(applied.owned)
	return applied
}

// reserveVIP creates the source VIP's endpoint. HNS may assign another address than
// requested, which changes the desired state of every load balancer.
func (p *plan) reserveVIP(ctx context.Context) error {
	b := p.backend
	defer b.host.markWritten()
	e, err := b.host.driver.CreateEndpoint(ctx, *p.reserve)
	if (errors.Is(err, ErrExists) || errors.Is(err, ErrRefused)) && !b.options.SourceVIP.IsValid() && len(p.reserve.Addrs) > 0 {
		free := *p.reserve
		free.Addrs = nil
		e, err = b.host.driver.CreateEndpoint(ctx, free)
	}
	if err != nil {
		return fmt.Errorf("reserve the source VIP in network %q: %w; want --source-vip with an address that is free", p.next.site.Network.Name, err)
	}
	if len(e.Addrs) == 0 {
		return fmt.Errorf("reserve the source VIP in network %q: HNS gave endpoint %s no address; want --source-vip", p.next.site.Network.Name, e.ID)
	}
	b.host.recordEndpoint(&e)
	b.host.report(fmt.Sprintf("Source VIP: reserved %s in network %q as endpoint %s", e.Addrs[0], p.next.site.Network.Name, e.Name))
	p.next.model.putEndpoint(&e)
	p.reserve = nil
	if p.next.site.SourceVIP != e.Addrs[0] {
		p.next.site.SourceVIP = e.Addrs[0]
		p.work = b.workAll(p.next, nil)
		b.dryRun(ctx, p)
	}
	return nil
}

// finish records what HNS holds now, as far as that is known. A nil pass means that there
// was nothing to do.
func (p *plan) finish(done *pass) {
	b, next := p.backend, p.next
	if len(p.changes) > 0 {
		p.commitChanges()
	}
	b.reportNotes(next)
	b.host.reportShortage(b.family, done.shortageText())
	if done == nil {
		for _, a := range p.dry.adoptions {
			b.host.recordBalancer(a.lb, a.name.String())
		}
		b.host.confirm(p.dry.owned)
		b.host.save()
		next.clean = true
		b.state = next
		return
	}
	next.clean = len(done.failed) == 0
	next.retry = slices.SortedFunc(maps.Keys(done.failed), service.PortName.Compare)
	next.relistEndpoints = done.relistEndpoints
	if done.stateUnknown || slices.ContainsFunc(slices.Collect(maps.Values(next.limits)), isTemporary) {
		return // the next plan lists
	}
	b.state = next
}

// isTemporary reports whether a limit may disappear on its own.
func isTemporary(limits []error) bool {
	return slices.ContainsFunc(limits, func(err error) bool { return !errors.Is(err, errors.ErrUnsupported) })
}

// commitChanges applies the changes to the claims, limits and notes in next.
func (p *plan) commitChanges() {
	if slices.ContainsFunc(p.changes, func(x desiredChange) bool { return len(x.from.Notes)+len(x.to.Notes) > 0 }) {
		p.next.notes = maps.Clone(p.next.notes)
	}
	for _, x := range p.changes {
		p.next.claims.add(x.from, -1)
		p.next.claims.add(x.to, 1)
		p.next.setLimits(x.name, x.to)
	}
	p.changes = nil
}

// limits returns what HNS cannot provide for each Service port after this plan.
func (p *plan) limits() map[service.PortName][]error {
	if len(p.changes) == 0 {
		return p.next.limits
	}
	all := maps.Clone(p.next.limits)
	for _, x := range p.changes {
		delete(all, x.name)
		if len(x.to.Limits) > 0 {
			all[x.name] = x.to.Limits
		}
	}
	return all
}
