// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"sync"
	"time"
)

// Report is a status report of a service to the SCM.
type Report struct {
	State State
	// CheckPoint increases while the service starts or stops, and shows that it is not
	// stuck.
	CheckPoint uint32
	// WaitHint is the maximum time until the next report.
	WaitHint time.Duration
}

// The times of a service that starts or stops.
const (
	checkPointInterval = time.Second
	waitHint           = 10 * checkPointInterval
)

// Work is what a service does until ctx ends. It calls started when it has started. If it
// waits for anything after that, the SCM does not need to know.
type Work func(ctx context.Context, started func()) error

// Supervise runs work and reports its state. When ctx ends, it reports Stopping until
// work returns.
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
