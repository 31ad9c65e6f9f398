// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is the change from the installed state to a snapshot.
type plan struct {
	backend         *Backend
	*stage                     // nil if nothing changes
	from            *installed // the state before, snapshot nil if unknown
	next            *installed
	enableLocalnet  bool     // enable route_localnet
	disableLocalnet bool     // disable route_localnet
	dormant         []string // tables, see Driver
	drift           []string
	removed         []*service.Port
	fullSync        bool // made from the tables, not from a difference
}

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	return (p.stage == nil || p.stage.empty()) && !p.enableLocalnet && !p.disableLocalnet && len(p.dormant) == 0
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	b := p.backend
	out := reconcile.Outcome{FullSync: p.fullSync, Drift: p.drift, Removed: p.removed, Degraded: b.degradedReason}
	out.Rules = &reconcile.Rules{Held: b.rules.Held, Written: perTable()}
	if len(p.drift) > 0 {
		out.Suspect = b.driver.Suspect()
	}
	return out
}

// Changes implements reconcile.Plan.
func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	if p.stage != nil {
		all = p.list(p.layout.portNames(p.from, p.next))
	}
	for _, table := range p.dormant {
		all.Add("~ %s table: active, no longer dormant", table)
	}
	if p.enableLocalnet {
		all.Add("+ routing of loopback addresses")
	}
	if p.disableLocalnet {
		all.Add("- routing of loopback addresses")
	}
	return all
}

// ErrBusy means that iptables did not run or could not finish. Its input is not the
// cause.
var ErrBusy = errors.New("iptables is busy or cannot run")

// Apply implements reconcile.Plan.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	b := p.backend
	b.rules = reconcile.Rules{Written: perTable()}
	dormant := p.activate()
	err := p.program(ctx)
	if dormant != nil {
		b.installed = nil
		err = errors.Join(dormant, err)
	}
	out, rules := p.Outcome(), b.rules
	out.Err, out.Rules = err, &rules
	return out
}

// program applies the change. If the kernel refuses the complete text, bisect finds the
// Ports at fault and applies the rest.
func (p *plan) program(ctx context.Context) error {
	b := p.backend
	b.installed = nil // after a failure, the next Plan reads the tables
	if err := p.stopRoutingLocalnet(ctx); err != nil {
		return err
	}
	var err error
	if p.stage != nil && !p.stage.empty() {
		err = b.restoreInPieces(ctx, p.stage)
	}
	switch {
	case err != nil && (errors.Is(err, ErrBusy) || ctx.Err() != nil):
		return fmt.Errorf("program the tables of %s: %w", command(b.family), err)
	case err != nil:
		return p.bisectAndRoute(ctx, err)
	}
	if p.stage != nil {
		p.stage.recordSums()
	}
	if err := p.routeLocalnet(ctx); err != nil {
		return err
	}
	b.recordInstalled(p.next)
	return nil
}

// bisectAndRoute calls bisect. If only some Ports failed, it also enables
// route_localnet, which the others may need.
func (p *plan) bisectAndRoute(ctx context.Context, refusal error) error {
	err := p.bisect(ctx, refusal)
	if !reconcile.OnlyPortErrors(err) {
		return err
	}
	return errors.Join(err, p.routeLocalnet(ctx))
}
