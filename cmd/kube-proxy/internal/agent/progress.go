// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// progress logs what a slow start is still waiting for.
type progress struct {
	log      klog.Logger
	mu       sync.Mutex
	waiting  []string
	unsynced func() []string // sources that have not been read yet
	allDone  chan struct{}   // closed when nothing is left
}

// progressInterval is the pause before the first line of progress. It doubles from there
// to maxProgressInterval.
const progressInterval, maxProgressInterval = 2 * time.Second, time.Minute

func newProgress(log klog.Logger, unsynced func() []string) *progress {
	return &progress{log: log, unsynced: unsynced, allDone: make(chan struct{})}
}

func (p *progress) expect(name string) { p.waiting = append(p.waiting, name) }

func (p *progress) done(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, name)
	if i < 0 {
		return
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	if len(p.waiting) == 0 {
		close(p.allDone)
	}
}

// wait returns true when everything is done, false when ctx ended first.
func (p *progress) wait(ctx context.Context) bool {
	start := time.Now()
	for pause := progressInterval; ; pause = min(2*pause, maxProgressInterval) {
		select {
		case <-ctx.Done():
			return false
		case <-p.allDone:
			return true
		case <-time.After(pause):
		}
		p.mu.Lock()
		left := strings.Join(append(p.unsynced(), p.waiting...), ", ")
		p.mu.Unlock()
		p.log.Info("Still reading and programming for the first time", "waitingFor", left, "elapsed", fmt.Sprint(time.Since(start).Round(time.Second)))
	}
}
