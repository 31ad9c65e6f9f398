// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is what leads from what is installed to a snapshot.
type plan struct {
	backend         *Backend
	*stage                     // nil if nothing is to change
	from            *installed // what there was, snapshot nil if that is not known
	next            *installed
	enableLocalnet  bool     // loopback addresses are to be routed
	disableLocalnet bool     // they are no longer
	dormant         []string // tables, see Driver
	drift           []string
	removed         []*service.Port
	fullSync        bool // made from the tables, not from what changed
}

var (
	_ reconcile.Remover    = (*plan)(nil)
	_ reconcile.FullSyncer = (*plan)(nil)
)

// Empty implements reconcile.Plan.
func (p *plan) Empty() bool {
	return (p.stage == nil || p.stage.empty()) && !p.enableLocalnet && !p.disableLocalnet && len(p.dormant) == 0
}

// Drift implements reconcile.Plan.
func (p *plan) Drift() []string { return p.drift }

// Removed implements reconcile.Remover.
func (p *plan) Removed() []*service.Port { return p.removed }

// FullSync implements reconcile.FullSync.
func (p *plan) FullSync() bool { return p.fullSync }

// String implements reconcile.Plan.
func (p *plan) String() string {
	var lines []string
	if p.stage != nil {
		lines = p.lines()
	}
	for _, table := range p.dormant {
		lines = append(lines, "~ "+table+" table: active, no longer dormant")
	}
	if p.enableLocalnet {
		lines = append(lines, "+ routing of loopback addresses")
	}
	if p.disableLocalnet {
		lines = append(lines, "- routing of loopback addresses")
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// errBusy is why iptables could not be asked, whatever it was to do.
var errBusy = errors.New("iptables is busy or cannot run")

// Apply implements reconcile.Plan.
func (p *plan) Apply(ctx context.Context) error {
	dormant := p.activate()
	err := p.program(ctx)
	if dormant == nil {
		return err
	}
	p.backend.installed = nil
	return errors.Join(dormant, err)
}

// program changes rules. If the text of all changes is refused, it is halved until
// the Port at fault stands alone; the rest goes in.
func (p *plan) program(ctx context.Context) error {
	b := p.backend
	b.installed = nil // if anything fails, the next Plan reads the tables
	b.tally.Rules = nil
	if err := p.unrouteLocalnet(ctx); err != nil {
		return err
	}
	var err error
	if p.stage != nil && !p.stage.empty() {
		err = b.restore(ctx, &p.change)
	}
	switch {
	case err != nil && (errors.Is(err, errBusy) || ctx.Err() != nil):
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

// bisectAndRoute is divide, after which others than the Ports at fault may need more
// than chains.
func (p *plan) bisectAndRoute(ctx context.Context, refusal error) error {
	err := p.bisect(ctx, refusal)
	if len(reconcile.PortErrors(err)) == 0 {
		return err
	}
	return errors.Join(err, p.routeLocalnet(ctx))
}
