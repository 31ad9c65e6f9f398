// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package silence

import (
	"context"
	"errors"
)

// Run is for Linux.
func (w *Watch) Run(context.Context) error { return errors.ErrUnsupported }

func delayAck(uintptr) {}
