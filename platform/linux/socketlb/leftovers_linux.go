// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"

	"kubeproxy/common/service"
)

// Leftovers is the layer that an earlier process may have left in the kernel.
type Leftovers struct {
	Family  service.Family
	Options Options
}

// String names the layer.
func (l Leftovers) String() string { return "socket acceleration of " + l.Family.String() }

// Find returns a description of what exists, or "" if there is no layer.
func (l Leftovers) Find(context.Context) (string, error) {
	found, err := NewDriver(l.Family, l.Options).Installed()
	switch {
	case err != nil:
		return "", fmt.Errorf("look for %s: %w", l, err)
	case found:
		return "programs", nil
	}
	return "", nil
}

// Remove takes the layer out of the kernel. It succeeds if there is none.
func (l Leftovers) Remove(context.Context) error {
	d := NewDriver(l.Family, l.Options)
	defer d.Release()
	if err := d.Remove(); err != nil {
		return fmt.Errorf("remove %s: %w", l, err)
	}
	return nil
}
