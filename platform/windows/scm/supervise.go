// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"sync"
	"time"
)

// Report is what a service tells the manager of itself.
type Report struct {
	State State
	// CheckPoint grows while the service is on its way, and shows that it
	// has not got stuck.
	CheckPoint uint32
	// WaitHint is when the next report may be expected at the latest.
	WaitHint time.Duration
}

// The times of a service on its way.
const (
	checkPointInterval = time.Second
	waitHint           = 10 * checkPointInterval
)

// Work is what a service does until ctx ends. It calls started once it does
// it; whatever it waits for after that is no matter of the service manager.
type Work func(ctx context.Context, started func()) error

// Supervise does work and reports how far it is. When ctx ends, the service stops,
// as slowly as the work does.
func Supervise(ctx context.Context, work Work, report func(Report)) error {
	startedCh := make(chan struct{})
	ended := make(chan error, 1)
	var once sync.Once
	go func() { ended <- work(ctx, func() { once.Do(func() { close(startedCh) }) }) }()
	now := Report{Starting, 0, waitHint}
	tick := time.NewTicker(checkPointInterval)
	defer tick.Stop()
	last := Report{}
	for started, stop := startedCh, ctx.Done(); ; {
		if now != last {
			report(now)
			last = now
		}
		select {
		case err := <-ended:
			return err
		case <-started:
			started = nil
			if now.State == Starting {
				now = Report{State: Running}
			}
		case <-stop:
			stop = nil
			now = Report{Stopping, 0, waitHint}
		case <-tick.C:
			if now.State != Running {
				now.CheckPoint++
			}
		}
	}
}
