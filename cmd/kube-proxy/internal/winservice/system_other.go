// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package winservice

import (
	"context"

	"kubeproxy/platform/windows/scm"
)

// Driver returns ErrNotWindows.
func Driver() (scm.Driver, error) { return nil, ErrNotWindows }

func runService(context.Context, string, scm.Work) error { return ErrNotWindows }
