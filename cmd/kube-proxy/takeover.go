// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/health"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// leftovers are what any service proxy may have left in one place. Remove removes all of
// it.
type leftovers interface {
	// String names the place.
	String() string
	// Find describes what is there, empty for nothing.
	Find(context.Context) (string, error)
	// Remove removes it. An empty place is a success.
	Remove(context.Context) error
}

// draining are leftovers that open connections need until they end. Only a cleanup
// removes them at once.
type draining interface {
	leftovers
	// Drain stops new connections to the leftovers and removes the parts that no
	// connection needs. It returns what stays and for how long at most, empty if all is
	// gone. since is when the drain began, zero if it begins now.
	Drain(ctx context.Context, since time.Time) (stays string, err error)
}

// cleanupTarget is a place where a mode of ours, or kube-proxy itself, may have left
// rules.
type cleanupTarget struct {
	leftovers
	family service.Family
	// ipvs is whether the target is virtual servers and their companions.
	ipvs bool
	// upstream is whether no mode of ours leaves anything there.
	upstream bool
	// err is why the target could not be emptied, or an unreadError.
	err error
}

// takeover removes the rules of other modes and other service proxies for one family.
// Until then their rules and those of this process are in force side by side, and
// connections keep the translation that they began with. To refuse no connection, the old
// rules go only when all desired rules are in force, and an independent read of the
// system has verified that.
type takeover struct {
	family  service.Family
	targets []cleanupTarget
	// audit returns a backend without knowledge of what was programmed.
	audit        func() (reconcile.Backend, error)
	log          klog.Logger
	condition    func(text string)
	countFailure func() // counts an attempt that left something
	// onRemoved is called when old rules are gone. They may have created conntrack
	// entries that no present rule would allow.
	onRemoved func()

	// enter returns whether this process may change anything, see lease.Lease.
	enter func(context.Context) (leave func(), ok bool)

	verifyRequests chan struct{} // a round succeeded
	leaseRegained  chan struct{} // another process may have left something
	// allTargets are the places to check again; reportForeignRules shows what reappears
	// there.
	allTargets         []cleanupTarget
	reportForeignRules func(what string)
	// logged holds what was logged last, by target; the empty key is for all targets.
	logged map[string]string
	// removed holds what was removed from a target that is not known to be empty.
	removed map[string]string
	// draining holds, by target, what open connections may still need.
	draining map[string]*drainState

	mu           sync.Mutex
	wasStandby   bool              // another process had the node since the last round
	desired      *service.Snapshot // of the last good round, nil to proceed without one
	partialTimer *time.Timer       // set while rounds fail for single ports only
}

// drainState is the progress of a target's drain.
type drainState struct {
	started   time.Time
	found     string // what was there at first
	remaining string
}

// The times of a takeover.
const (
	// takeoverPortTimeout is how long old rules may serve a port that the present mode
	// cannot program. After that they are out of date.
	takeoverPortTimeout = time.Minute
	// takeoverMaxBackoff is the longest pause after a failure.
	takeoverMaxBackoff = time.Minute
	// drainInterval is how often draining targets are checked for ended connections.
	drainInterval = 5 * time.Second
)

// discover finds and logs what there is to take over.
func (t *takeover) discover(ctx context.Context) {
	var left []cleanupTarget
	for _, p := range t.targets {
		what, err := p.Find(ctx)
		switch {
		case err != nil:
			p.err = unreadError{err}
			t.log.Error(err, unreadText, "place", p.String())
			t.logged[p.String()] = err.Error()
		case what == "":
			continue
		default:
			t.log.Info("Found what an earlier service proxy left; it stays in force until all that is wanted is", "place", p.String(), "what", what)
		}
		left = append(left, p)
	}
	t.targets = left
}

// recordRound records the result of a round for want. What the mode cannot do at all does
// not delay the takeover: for its sake, old rules would serve everything else out of
// date.
func (t *takeover) recordRound(want *service.Snapshot, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wasStandby {
		t.wasStandby = false
		select {
		case t.leaseRegained <- struct{}{}:
		default:
		}
	}
	switch {
	case want == nil || want.Incomplete || closedNodePorts(want, t.family) != "": // the old rules may have what is not known yet
		t.setPartial(false)
	case err == nil || reconcile.Unsupported(err):
		t.setPartial(false)
		t.desired = want
		t.requestVerify()
	default:
		t.setPartial(health.OnlyPortErrors(err))
	}
}

// setPartial records whether single ports, and nothing else, are not in force. If that
// persists, the takeover proceeds without them.
func (t *takeover) setPartial(partial bool) {
	switch {
	case !partial && t.partialTimer != nil:
		t.partialTimer.Stop()
		t.partialTimer = nil
	case partial && t.partialTimer == nil:
		var timer *time.Timer
		timer = time.AfterFunc(takeoverPortTimeout, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.partialTimer == timer {
				t.desired = nil
				t.requestVerify()
			}
		})
		t.partialTimer = timer
	}
}

// requestVerify triggers a verification that the desired rules are in force.
func (t *takeover) requestVerify() {
	select {
	case t.verifyRequests <- struct{}{}:
	default:
	}
}

// waitVerified waits until the desired rules are in force. It returns false if ctx ends
// first.
func (t *takeover) waitVerified(ctx context.Context) bool {
	t.report("they go as soon as all that is wanted is in force", nil)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.verifyRequests:
		}
		t.mu.Lock()
		want := t.desired
		t.mu.Unlock()
		if want == nil || t.audit == nil {
			return true
		}
		err := t.auditMissing(ctx, want)
		if err == nil {
			return true
		}
		t.report("", fmt.Errorf("what is wanted is not all there: %w", err))
		t.verifyLater(ctx)
	}
}

// verifyLater verifies a good round after a pause, unless there is another round.
func (t *takeover) verifyLater(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-t.verifyRequests:
	case <-time.After(time.Second):
	}
	t.requestVerify()
}

// auditMissing returns what is missing of want according to the system.
func (t *takeover) auditMissing(ctx context.Context, want *service.Snapshot) error {
	b, err := t.audit()
	if err != nil {
		return err
	}
	if c, ok := b.(io.Closer); ok {
		defer func() { _ = c.Close() }()
	}
	p, err := b.Plan(ctx, want)
	if err != nil {
		return err
	}
	if p.Empty() {
		return nil
	}
	first, more, _ := strings.Cut(p.String(), "\n")
	return fmt.Errorf("%q and %d more", first, strings.Count(more, "\n"))
}

// remove empties targets. It keeps those where that fails or where connections go on.
func (t *takeover) remove(ctx context.Context) error {
	var left []cleanupTarget
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
			t.log.Info("Removed what an earlier service proxy left", "place", p.String(), "what", cmp.Or(what, t.removed[p.String()]))
		}
	}
	t.targets = left
	err := errors.Join(errs...)
	switch {
	case err != nil:
		t.countFailure()
		t.report("", nil)
	case len(left) > 0:
		t.report("", nil)
	}
	return err
}

// removeOrDrain empties a target. It returns what was there, and whether the target is
// done.
func (t *takeover) removeOrDrain(ctx context.Context, p cleanupTarget) (what string, done bool, err error) {
	r, is := p.leftovers.(draining)
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
		t.log.Info("What an earlier service proxy left takes no new connections from now on; it goes when those that it has end", "place", p.String(), "stays", now.remaining)
	}
	return "", false, nil
}

// removeLeftovers empties a target, and returns what was there.
func removeLeftovers(ctx context.Context, p cleanupTarget) (what string, err error) {
	if what, err = p.inspect(ctx); err != nil || what == "" {
		return "", err
	}
	if err := p.Remove(ctx); err != nil {
		return "", err
	}
	left, err := p.inspect(ctx)
	if err == nil && left != "" {
		err = fmt.Errorf("%s has %s again, which was removed: somebody else makes it", p, left)
	}
	return what, err
}

// prepareTakeover prepares b to take over from previous proxies, and logs what they left.
// It removes nothing; that begins after the first rounds.
func (o *statusReporter) prepareTakeover(ctx context.Context, x *selectedMode, b *backend, kick func()) error {
	if len(b.ownedTargets) == 0 {
		return nil
	}
	all, err := cleanupTargets(x.config)
	if err != nil {
		return err
	}
	log := o.log.WithValues("backend", b.String())
	t := &takeover{
		family: b.family, audit: b.audit, log: log, enter: o.leaseEnter(), verifyRequests: make(chan struct{}, 1), leaseRegained: make(chan struct{}, 1),
		reportForeignRules: func(what string) { o.reportForeignRules(b.family, what) },
		logged:             map[string]string{}, removed: map[string]string{}, draining: map[string]*drainState{},
		condition:    func(text string) { o.health.SetCondition("leftovers-"+b.family.String(), text) },
		countFailure: func() { o.metrics.CleanupFailed(metrics.Backend{Mode: b.mode, Family: b.family}) },
		onRemoved: func() {
			b.recheck.Store(true)
			kick()
		},
	}
	for _, p := range all {
		switch {
		case p.family != b.family:
		case !slices.Contains(b.ownedTargets, p.String()):
			t.targets, t.allTargets = append(t.targets, p), append(t.allTargets, p)
		default:
			logAdopted(ctx, log, p)
		}
	}
	t.discover(ctx)
	b.takeover = t
	return nil
}

// logAdopted logs what is in a target that rounds of this process keep in order.
func logAdopted(ctx context.Context, log klog.Logger, p cleanupTarget) {
	if what, err := p.Find(ctx); err == nil && what != "" {
		log.Info("Found what an earlier service proxy left; adopting what is wanted of it", "place", p.String(), "what", what)
	}
}
