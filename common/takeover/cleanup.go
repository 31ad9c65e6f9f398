// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/errtree"
)

// CleanupOptions are the options of Cleanup.
type CleanupOptions struct {
	// Skip returns which option excludes a target, empty if none does.
	Skip func(Target) string
	// Privileges is the advice to a user who lacks the privileges for a cleanup.
	Privileges string
}

// Cleanup empties targets, except those that belong to upstream kube-proxy and those that
// o.Skip selects, and logs what it removed. It continues after a failure, and its error
// names everything that is still there, or suspected to be.
func Cleanup(ctx context.Context, targets []Target, o CleanupOptions) error {
	log := klog.FromContext(ctx)
	var errs []error
	var forbidden []string
	for _, p := range targets {
		if p.Upstream {
			continue
		}
		if why := o.Skip(p); why != "" {
			log.Info("Left alone, as "+why+" asks for", "place", p.String())
			continue
		}
		what, err := removeLeftovers(ctx, p)
		switch unchecked := AsUnchecked(err); {
		case unchecked != nil && !unchecked.Suspected:
			log.Info("Warning: not checked, for want of rights; if it was ever in use here, it may be left", "place", p.String(), "reason", err.Error())
		case errtree.Only(err, fs.ErrPermission): // all that is missing are privileges
			forbidden = append(forbidden, p.String())
			log.V(2).Info("Not allowed to clean up", "place", p.String(), "err", err.Error())
		case err != nil:
			errs = append(errs, fmt.Errorf("clean up %s: %w", p, err))
		case what == "":
			log.Info("Nothing to clean up", "place", p.String())
		default:
			log.Info("Cleaned up", "place", p.String(), "removed", what)
		}
	}
	if len(forbidden) > 0 {
		errs = append(errs, fmt.Errorf("clean up %s: %w: %s", strings.Join(forbidden, ", "), fs.ErrPermission, o.Privileges))
	}
	return errors.Join(errs...)
}

// drainInterval is how often draining targets are checked for ended connections.
const drainInterval = 5 * time.Second

// drainState is the progress of a target's drain.
type drainState struct {
	started   time.Time
	found     string // what was there at first
	remaining string
}

// remove empties targets. It keeps those where that fails or where connections go on.
func (t *Takeover) remove(ctx context.Context) error {
	var left []Target
	var errs []error
	for _, p := range t.targets {
		what, done, err := t.removeOrDrain(ctx, p)
		switch {
		case err != nil:
			p.err = err
			left, errs = append(left, p), append(errs, err)
			t.removed[p.String()] = cmp.Or(what, t.removed[p.String()])
		case !done:
			p.err = nil
			left = append(left, p)
		case cmp.Or(what, t.removed[p.String()]) != "":
			t.options.Log.Info("Removed what an earlier service proxy left", "place", p.String(), "what", cmp.Or(what, t.removed[p.String()]))
		}
	}
	t.targets = left
	err := errors.Join(errs...)
	switch {
	case err != nil:
		t.options.CountFailure()
		t.report("", nil)
	case len(left) > 0:
		t.report("", nil)
	}
	return err
}

// removeOrDrain empties a target. It returns what was there, and whether the target is
// done.
func (t *Takeover) removeOrDrain(ctx context.Context, p Target) (what string, done bool, err error) {
	r, is := p.Leftovers.(Draining)
	if !is {
		what, err = removeLeftovers(ctx, p)
		return what, true, err
	}
	now := t.draining[p.String()]
	if now == nil {
		now = &drainState{}
		if now.found, err = p.inspect(ctx); err != nil || now.found == "" {
			return "", true, err
		}
	}
	first := now.started.IsZero()
	if now.remaining, err = r.Drain(ctx, now.started); err != nil {
		return "", false, err
	}
	if now.remaining == "" {
		delete(t.draining, p.String())
		_, err := removeLeftovers(ctx, p) // or another program has added it again
		return now.found, true, err
	}
	if first {
		now.started = time.Now()
		t.draining[p.String()] = now
		t.options.Log.Info("What an earlier service proxy left takes no new connections from now on; it is removed when its connections have ended", "place", p.String(), "stays", now.remaining)
	}
	return "", false, nil
}

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
