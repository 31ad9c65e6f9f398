// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"kubeproxy/config"
)

func prepare(context.Context, *config.Config) error { return nil }
