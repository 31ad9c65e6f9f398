// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"context"

	"kubeproxy/platform/windows/scm"
)

// Driver returns the service control manager of this system.
func Driver() (scm.Driver, error) { return scm.System{}, nil }

func runService(ctx context.Context, name string, work scm.Work) error {
	return scm.Run(ctx, name, work)
}
