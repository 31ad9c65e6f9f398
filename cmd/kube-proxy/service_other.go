// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

import (
	"context"

	"kubeproxy/platform/windows/scm"
)

func serviceDriver() (scm.Driver, error) { return nil, errNotWindows }

func runAsService(context.Context, string, scm.Work) error { return errNotWindows }
