// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"strings"
	"time"
)

// The pauses between checks for leftovers that reappear.
const (
	// recheckInterval is the pause before the first check and while nothing reappears.
	recheckInterval = time.Minute
	// recheckMaxInterval is the longest pause while another program adds rules again and
	// again. Then its rules and ours are both in force and serve the same endpoints.
	recheckMaxInterval = 16 * time.Minute
)

// Run takes over until ctx ends. Leftovers that reappear after their removal belong to a
// program that runs beside this process.
func (t *Takeover) Run(ctx context.Context) {
	for pause := recheckInterval; ctx.Err() == nil; {
		t.runOnce(ctx)
		regained := false
		select {
		case <-ctx.Done():
			return
		case <-t.leaseRegained:
			regained = true
		case <-time.After(pause):
		}
		found := t.rediscover(ctx)
		switch {
		case found == "":
			t.options.ReportForeignRules("")
			pause = recheckInterval
		case regained: // another process had the node, see lease.Lease
			t.options.Log.Info("Found what another service proxy left meanwhile; it stays in force until the new rules are", "what", found)
		default:
			t.options.ReportForeignRules(found)
			pause = min(2*pause, recheckMaxInterval)
		}
	}
}

// runOnce returns when all is taken over, or ctx ends.
func (t *Takeover) runOnce(ctx context.Context) {
	if len(t.targets) == 0 {
		return
	}
	defer t.options.Condition("")
	if !t.waitVerified(ctx) {
		return
	}
	for failures := 0; ; {
		targetCount, drainCount := len(t.targets), len(t.draining)
		pause := drainInterval
		entered, err := t.removeExclusively(ctx)
		if !entered {
			if !t.waitVerified(ctx) {
				return
			}
			continue
		}
		if err != nil {
			pause = min(time.Second<<min(failures, 10), maxBackoff)
			failures++
		}
		if len(t.targets) < targetCount || len(t.draining) > drainCount {
			t.options.OnRemoved()
		}
		if len(t.targets) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// removeExclusively empties targets. It does not enter if another process programs the
// node, or did since the last round: what is left may be all that is in force.
func (t *Takeover) removeExclusively(ctx context.Context) (entered bool, err error) {
	if t.options.Enter != nil {
		leave, ok := t.options.Enter(ctx)
		if !ok {
			return false, nil
		}
		defer leave()
	}
	if _, standby := t.wanted(); standby {
		return false, nil
	}
	return true, t.remove(context.WithoutCancel(ctx))
}

// Standby records that another process has the node. What it leaves must be taken over
// once this process has the node again.
func (t *Takeover) Standby() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.desired, t.wasStandby = nil, true
	select {
	case <-t.verifyRequests:
	default:
	}
}

// rediscover checks all places again, and returns what is to be taken over.
func (t *Takeover) rediscover(ctx context.Context) string {
	if t.options.Enter != nil {
		leave, ok := t.options.Enter(ctx)
		if !ok {
			return ""
		}
		defer leave()
	}
	var found []string
	t.targets = nil
	for _, p := range t.allTargets {
		p.err = nil
		what, err := p.Find(ctx)
		if err != nil || what == "" {
			continue // an earlier check succeeded
		}
		t.targets = append(t.targets, p)
		found = append(found, p.String()+": "+what)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(found) > 0 && t.desired != nil {
		t.requestVerify()
	}
	return strings.Join(found, "; ")
}
