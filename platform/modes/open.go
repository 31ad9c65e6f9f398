// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"

	"kubeproxy/common/service"
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
