// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/platform/mode"
)

// Open returns the backends of d for each family that this node can have, with what the
// system needs in every mode, and why other families are missing. It fails if the primary
// family is missing.
func Open(ctx context.Context, d mode.Descriptor, s mode.Setup) ([]*mode.Backend, map[service.Family]string, error) {
	all, unavailable, err := withHints(d).Open(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	accompany(ctx, d, s, all)
	return all, unavailable, nil
}

// Prepare does what --init-only does for d, and for what accompanies it.
func Prepare(ctx context.Context, d mode.Descriptor, s mode.Setup) error {
	err := removeAcceleration(ctx, s.Config)
	if d.System != nil && d.System.Prepare != nil {
		err = errors.Join(err, d.System.Prepare(ctx, s))
	}
	return err
}

// Pending lists what Prepare would change, one a line. It changes nothing.
func Pending(ctx context.Context, d mode.Descriptor, s mode.Setup) ([]string, error) {
	lines, err := pendingAcceleration(ctx, s.Config)
	if d.System != nil && d.System.Pending != nil {
		more, pendingErr := d.System.Pending(ctx, s)
		lines, err = append(lines, more...), errors.Join(err, pendingErr)
	}
	return lines, err
}

// Targets lists where any mode of t, or what accompanies it, may have left something on this
// node, by family.
func Targets(ctx context.Context, t mode.Table, s mode.Setup) ([]takeover.Target, error) {
	of, err := t.Targets(ctx, s)
	all := append(accelerationTargets(s.Config), of...)
	slices.SortStableFunc(all, func(a, b takeover.Target) int { return cmp.Compare(a.Family, b.Family) })
	return all, err
}
