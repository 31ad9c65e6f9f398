// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"time"
)

// Every calls do after each period until ctx is done. It is for what has to be looked at,
// because nobody reports its changes.
func Every(ctx context.Context, period time.Duration, do func()) error {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			do()
		}
	}
}
