// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"kubeproxy/platform/windows/scm"
)

func serviceDriver() (scm.Driver, error) { return scm.System{}, nil }

func runAsService(ctx context.Context, name string, work scm.Work) error {
	return scm.Run(ctx, name, work)
}
