// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"time"

	"k8s.io/utils/clock"
)

// stoppableClock is a clock for a turn. The library pauses after some failures
// without looking whether it is to end, up to a minute: a stop would take as
// long.
type stoppableClock struct {
	clock.RealClock
	ended <-chan struct{}
}

// After implements clock.Clock, but is over at the end of the turn.
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
