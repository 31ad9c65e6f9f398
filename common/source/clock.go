// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"time"

	"k8s.io/utils/clock"
)

// stoppableClock is a clock for one turn of a watcher. The library pauses after some
// failures without checking its context, and would delay a stop by that: client-go
// tools/cache/reflector.go.
type stoppableClock struct {
	clock.RealClock
	ended <-chan struct{}
}

// After implements clock.Clock, but also fires at the end of the turn.
func (c stoppableClock) After(d time.Duration) <-chan time.Time {
	over := make(chan time.Time, 1)
	t := time.NewTimer(d)
	go func() {
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.ended:
		}
		over <- time.Now()
	}()
	return over
}
