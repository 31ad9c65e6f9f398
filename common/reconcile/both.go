// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"kubeproxy/common/service"
)

// PlanBoth plans for a Backend and for a second one that serves a part of the same
// snapshot. Neither depends on the other: if one fails, the other continues, and the
// error is joined to those of the combined plan.
func PlanBoth(ctx context.Context, want *service.Snapshot, main, second Backend) (Plan, error) {
	p, err := main.Plan(ctx, want)
	q, err2 := second.Plan(ctx, want)
	switch {
	case err2 != nil && err != nil:
		return nil, errors.Join(err, err2)
	case err != nil && q.Empty():
		return nil, err
	case err != nil:
		p, err = failedPlan{err}, nil
	case err2 != nil:
		q = failedPlan{err2}
	}
	return &combinedPlan{p, q}, nil
}

// failedPlan is the placeholder for a plan whose Plan call failed.
type failedPlan struct{ err error }

func (u failedPlan) String() string              { return "" }
func (u failedPlan) Empty() bool                 { return false }
func (u failedPlan) Drift() []string             { return nil }
func (u failedPlan) Apply(context.Context) error { return fmt.Errorf("plan: %w", u.err) }

// combinedPlan is two plans as one. Removed, FullSync and Unavailable come from main
// alone.
type combinedPlan struct{ main, second Plan }

var (
	_ Remover           = (*combinedPlan)(nil)
	_ FullSyncer        = (*combinedPlan)(nil)
	_ NotesReporter     = (*combinedPlan)(nil)
	_ FamilyUnavailable = (*combinedPlan)(nil)
)

// String implements Plan.
func (b *combinedPlan) String() string { return b.main.String() + b.second.String() }

// Empty implements Plan.
func (b *combinedPlan) Empty() bool { return b.main.Empty() && b.second.Empty() }

// Drift implements Plan.
func (b *combinedPlan) Drift() []string { return append(b.main.Drift(), b.second.Drift()...) }

// Apply implements Plan.
func (b *combinedPlan) Apply(ctx context.Context) error {
	var errs []error
	for _, p := range []Plan{b.main, b.second} {
		if p.Empty() {
			continue
		}
		if err := p.Apply(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Removed implements Remover.
func (b *combinedPlan) Removed() []*service.Port {
	if r, ok := b.main.(Remover); ok && !b.main.Empty() {
		return r.Removed()
	}
	return nil
}

// FullSync implements FullSyncer.
func (b *combinedPlan) FullSync() bool {
	w, ok := b.main.(FullSyncer)
	return ok && w.FullSync()
}

// Unavailable implements FamilyUnavailable.
func (b *combinedPlan) Unavailable() string {
	if w, ok := b.main.(FamilyUnavailable); ok {
		return w.Unavailable()
	}
	return ""
}

// Notes implements NotesReporter.
func (b *combinedPlan) Notes() Notes {
	var all Notes
	for _, p := range []Plan{b.main, b.second} {
		n, ok := p.(NotesReporter)
		if !ok {
			continue
		}
		switch more := n.Notes(); {
		case len(all) == 0:
			all = more
		case len(more) > 0:
			all = maps.Clone(all)
			for name, notes := range more {
				all[name] = slices.Concat(all[name], notes)
			}
		}
	}
	return all
}
