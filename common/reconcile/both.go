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

// Both plans for a Backend and for a second one that serves a part of the same
// snapshot. Neither waits for the other: what goes wrong with one is joined to the
// errors of the plan, and the other goes on.
func Both(ctx context.Context, want *service.Snapshot, main, second Backend) (Plan, error) {
	p, err := main.Plan(ctx, want)
	q, err2 := second.Plan(ctx, want)
	switch {
	case err2 != nil && err != nil:
		return nil, errors.Join(err, err2)
	case err != nil && q.Empty():
		return nil, err
	case err != nil:
		p, err = unplanned{err}, nil
	case err2 != nil:
		q = unplanned{err2}
	}
	return &both{p, q}, nil
}

// unplanned stands for a plan that could not be made.
type unplanned struct{ err error }

func (u unplanned) String() string              { return "" }
func (u unplanned) Empty() bool                 { return false }
func (u unplanned) Drift() []string             { return nil }
func (u unplanned) Apply(context.Context) error { return fmt.Errorf("plan: %w", u.err) }

// both is two plans as one. What only one of them can say is said of the first.
type both struct{ main, second Plan }

var (
	_ Remover = (*both)(nil)
	_ Whole   = (*both)(nil)
	_ Noter   = (*both)(nil)
	_ Bounded = (*both)(nil)
)

// String implements Plan.
func (b *both) String() string { return b.main.String() + b.second.String() }

// Empty implements Plan.
func (b *both) Empty() bool { return b.main.Empty() && b.second.Empty() }

// Drift implements Plan.
func (b *both) Drift() []string { return append(b.main.Drift(), b.second.Drift()...) }

// Apply implements Plan.
func (b *both) Apply(ctx context.Context) error {
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
func (b *both) Removed() []*service.Port {
	if r, ok := b.main.(Remover); ok && !b.main.Empty() {
		return r.Removed()
	}
	return nil
}

// Whole implements Whole.
func (b *both) Whole() bool {
	w, ok := b.main.(Whole)
	return ok && w.Whole()
}

// Without implements Bounded.
func (b *both) Without() string {
	if w, ok := b.main.(Bounded); ok {
		return w.Without()
	}
	return ""
}

// Notes implements Noter.
func (b *both) Notes() Notes {
	var all Notes
	for _, p := range []Plan{b.main, b.second} {
		n, ok := p.(Noter)
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
