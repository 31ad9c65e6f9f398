// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package scm

import (
	"context"
)

// SystemDriver returns ErrNotWindows.
func SystemDriver() (Driver, error) { return nil, ErrNotWindows }

func runService(context.Context, string, Work) error { return ErrNotWindows }
