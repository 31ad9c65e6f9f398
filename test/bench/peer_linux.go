// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
)

func measurePeer(ctx context.Context, t task) (*figures, error) {
	return nil, errors.New("to come")
}
