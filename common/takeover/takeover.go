// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package takeover removes what another service proxy or another mode left on the node. A
// Takeover does that beside a running proxy: it finds what was left, waits until the
// rules of this process are in force, and then removes the rest. Cleanup removes all of
// it at once. The caller lists the places to check in Targets.
package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/errtree"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Options are what a Takeover depends on, all required unless they say otherwise.
type Options struct {
	Family service.Family
	// Targets are all places to check. Those of other families are skipped.
	Targets []Target
	// Owned names targets that rounds keep in order, which are logged, not emptied.
	Owned []string
	// Audit returns a backend that remembers nothing. Without it, good rounds count as verified.
	Audit func() (reconcile.Backend, error)
	// Enter returns whether this process may change anything, see lease.Lease, nil for always.
	Enter func(context.Context) (leave func(), ok bool)
	Log   klog.Logger
	// Condition shows why something is still to be taken over, empty if nothing is.
	Condition func(text string)
	// ReportForeignRules shows what reappears after its removal, empty if nothing does.
	ReportForeignRules func(what string)
	// CountFailure counts an attempt that left something.
	CountFailure func()
	// OnRemoved is called when old rules are gone. They may have created conntrack
	// entries that no present rule would allow.
	OnRemoved func()
}

// Takeover removes the rules of other modes and other service proxies for one family. Until then
// theirs and ours are in force side by side, and connections keep their translation. To refuse no
// connection, the old ones go when an independent read of the system has verified that all desired
// ones are in force.
type Takeover struct {
	options Options
	owned   []Target // of the family
	// allTargets are the places to check again.
	allTargets []Target
	targets    []Target // those of allTargets that are not known to be empty

	verifyRequests chan struct{} // a round succeeded
	leaseRegained  chan struct{} // another process may have left something
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

// The times of a takeover.
const (
	// portTimeout is how long old rules may serve a port that the present mode
	// cannot program. After that they are out of date.
	portTimeout = time.Minute
	// maxBackoff is the longest pause after a failure.
	maxBackoff = time.Minute
)

// New returns a Takeover. Call Discover, and then Run.
func New(o Options) *Takeover {
	t := &Takeover{
		options: o, verifyRequests: make(chan struct{}, 1), leaseRegained: make(chan struct{}, 1),
		logged: map[string]string{}, removed: map[string]string{}, draining: map[string]*drainState{},
	}
	for _, p := range o.Targets {
		switch {
		case p.Family != o.Family:
		case slices.Contains(o.Owned, p.String()):
			t.owned = append(t.owned, p)
		default:
			t.allTargets = append(t.allTargets, p)
		}
	}
	t.targets = slices.Clone(t.allTargets)
	return t
}

// Discover logs what is to be taken over, and what is in owned targets. It removes nothing.
func (t *Takeover) Discover(ctx context.Context) {
	for _, p := range t.owned {
		t.logAdopted(ctx, p)
	}
	var left []Target
	for _, p := range t.targets {
		what, err := p.Find(ctx)
		switch {
		case AsUnchecked(err) != nil:
			continue
		case err != nil:
			p.err = unreadError{err}
			t.options.Log.Error(err, UnreadText, "place", p.String())
			t.logged[p.String()] = err.Error()
		case what == "":
			continue
		default:
			t.options.Log.Info("Found what an earlier service proxy left; it stays in force until the new rules are", "place", p.String(), "what", what)
		}
		left = append(left, p)
	}
	t.targets = left
}

// logAdopted logs what is in a target that rounds of this process keep in order.
func (t *Takeover) logAdopted(ctx context.Context, p Target) {
	if what, err := p.Find(ctx); err == nil && what != "" {
		t.options.Log.Info("Found what an earlier service proxy left; adopting what is needed", "place", p.String(), "what", what)
	}
}

// RecordRound records a round. What the mode cannot do at all does not delay the takeover.
// Otherwise old rules would stay, and become out of date for all other ports.
func (t *Takeover) RecordRound(r reconcile.Result) {
	want := r.Snapshot
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
	case want == nil || want.Incomplete || want.NodePortsClosed(t.options.Family): // the old rules may serve what is not known yet
		t.setPartial(false)
	case r.Done():
		t.setPartial(false)
		t.desired = want
		t.requestVerify()
	default:
		t.setPartial(reconcile.OnlyPortErrors(r.Err))
	}
}

// setPartial records whether single ports, and nothing else, are not in force. If that
// persists, the takeover proceeds without them.
func (t *Takeover) setPartial(partial bool) {
	switch {
	case !partial && t.partialTimer != nil:
		t.partialTimer.Stop()
		t.partialTimer = nil
	case partial && t.partialTimer == nil:
		var timer *time.Timer
		timer = time.AfterFunc(portTimeout, func() {
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
func (t *Takeover) requestVerify() {
	select {
	case t.verifyRequests <- struct{}{}:
	default:
	}
}

// waitVerified waits until the desired rules are in force, and returns false at the end of ctx.
func (t *Takeover) waitVerified(ctx context.Context) bool {
	t.report("they are removed as soon as the new rules are in force", nil)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.verifyRequests:
		}
		want, standby := t.wanted()
		if standby {
			continue
		}
		if want == nil || t.options.Audit == nil {
			return true
		}
		err := t.auditMissing(ctx, want)
		if err == nil {
			return true
		}
		t.report("", fmt.Errorf("not all rules are in force: %w", err))
		t.verifyLater(ctx)
	}
}

// wanted returns the last good round's snapshot, and whether another process had the node since.
func (t *Takeover) wanted() (want *service.Snapshot, standby bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.desired, t.wasStandby
}

// verifyLater verifies a good round after a pause, unless there is another round.
func (t *Takeover) verifyLater(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-t.verifyRequests:
	case <-time.After(time.Second):
	}
	t.requestVerify()
}

// auditMissing returns what is missing of want according to the system.
func (t *Takeover) auditMissing(ctx context.Context, want *service.Snapshot) error {
	b, err := t.options.Audit()
	if err != nil {
		return err
	}
	defer func() { _ = b.Close() }()
	p, err := b.Plan(ctx, want)
	if err != nil {
		return err
	}
	if p.Empty() {
		return nil
	}
	first, more := "", 0
	if all := p.Changes(); len(all) > 0 { // some work has no text
		first, more = all[0].String(), len(all)-1
	}
	return fmt.Errorf("%q and %d more", first, more)
}

// The texts of errors in the log. UnreadText is also for one that hides the targets.
const (
	UnreadText = "It is unknown what an earlier service proxy left; trying again later"
	stillText  = "What an earlier service proxy left is still there; trying again"
)

// report shows in the condition why old rules are, or may be, still there, and logs new errors. err
// is about all targets. It, or else fallback, is for those without a reason of their own.
func (t *Takeover) report(fallback string, err error) {
	if err != nil {
		fallback = err.Error()
	}
	t.setCondition(fallback)
	if err != nil {
		t.logOnce(stillText, "", err)
	}
	for _, p := range t.targets {
		switch {
		case errors.As(p.err, &unreadError{}):
			t.logOnce(UnreadText, p.String(), p.err)
		case p.err != nil:
			t.logOnce(stillText, p.String(), p.err)
		}
	}
}

// setCondition groups the targets by reason.
func (t *Takeover) setCondition(fallback string) {
	var order []string // of the texts
	targets := map[string][]string{}
	for _, p := range t.targets {
		text := "an earlier service proxy left rules in %s: " + t.reason(p, fallback)
		if errors.As(p.err, &unreadError{}) {
			text = "it is unknown whether an earlier service proxy left rules in %s: " + p.err.Error()
		}
		if targets[text] == nil {
			order = append(order, text)
		}
		targets[text] = append(targets[text], p.String())
	}
	for i, text := range order {
		order[i] = strings.Replace(text, "%s", strings.Join(targets[text], ", "), 1)
	}
	t.options.Condition(strings.Join(order, "; "))
}

// reason returns why p is still there.
func (t *Takeover) reason(p Target, fallback string) string {
	switch r := t.draining[p.String()]; {
	case p.err != nil:
		return p.err.Error()
	case r != nil:
		return "it takes no new connections, and stays until its connections end: " + r.remaining
	}
	return fallback
}

// ReportUnprogrammed reports what is in targets whose families no backend programs, and stays:
// outdated rules are better than none. show receives the text of a family's condition.
func ReportUnprogrammed(ctx context.Context, log klog.Logger, targets []Target, show func(f service.Family, text string)) {
	left := map[service.Family][]string{}
	for _, p := range targets {
		if what, err := p.Find(ctx); err == nil && what != "" {
			log.Info("Found what an earlier service proxy left; it stays, because nothing replaces it", "family", p.Family.String(), "place", p.String(), "what", what)
			left[p.Family] = append(left[p.Family], p.String())
		}
	}
	for f, targets := range left {
		show(f, "an earlier service proxy left rules in "+strings.Join(targets, ", ")+
			": they stay and get out of date, because nothing replaces them; --cleanup removes them")
	}
}

// logOnce logs an error once in a row for a target, or for all if that is empty.
func (t *Takeover) logOnce(what, target string, err error) {
	if t.logged[target] == err.Error() {
		return
	}
	t.logged[target] = err.Error()
	var args []any
	if target != "" {
		args = []any{"place", target}
	}
	t.options.Log.Error(err, what, args...)
}

// Leftovers are what any service proxy may have left in one place.
type Leftovers interface {
	// String names the place.
	String() string
	// Find describes what is there, empty for nothing.
	Find(context.Context) (string, error)
	// Remove removes it. An empty place is a success.
	Remove(context.Context) error
}

// Draining are leftovers that open connections need. Only a cleanup removes them at once.
type Draining interface {
	Leftovers
	// Drain stops new connections to the leftovers and removes the parts that no
	// connection needs. It returns what stays and for how long at most, empty if all is
	// gone. since is when the drain began, zero if it begins now.
	Drain(ctx context.Context, since time.Time) (stays string, err error)
}

// Target is a place where a mode of ours, or kube-proxy itself, may have left rules.
type Target struct {
	Leftovers
	Family service.Family
	// IPVS is whether the target is virtual servers and their companions.
	IPVS bool
	// Upstream is whether only kube-proxy leaves anything there. A cleanup skips it.
	Upstream bool
	// err is why the target could not be emptied, or an unreadError.
	err error
}

// unreadError is why the content of a target is unknown. The target may be empty.
type unreadError struct{ error }

// Unwrap returns the reason.
func (e unreadError) Unwrap() error { return e.error }

// UncheckedError is the error of Leftovers that this process may not look for. Only a cleanup
// reports it: what nobody sees keeps no proxy from its work.
type UncheckedError struct {
	// Err says which right is missing.
	Err error
	// Suspected is whether there may well be something, so that a cleanup is not complete.
	Suspected bool
}

// Error says which right is missing.
func (e *UncheckedError) Error() string { return e.Err.Error() }

// Unwrap returns what says which right is missing.
func (e *UncheckedError) Unwrap() error { return e.Err }

// AsUnchecked returns the UncheckedError that err is or wraps, nil if there is none.
func AsUnchecked(err error) *UncheckedError {
	if e, is := errors.AsType[*UncheckedError](err); is {
		return e
	}
	return nil
}

// inspect is Find with an unreadError as its error.
func (t Target) inspect(ctx context.Context) (string, error) {
	what, err := t.Find(ctx)
	if err != nil {
		return "", unreadError{err}
	}
	return what, nil
}

// removeLeftovers empties a target, and returns what was there.
func removeLeftovers(ctx context.Context, p Target) (what string, err error) {
	if what, err = p.inspect(ctx); err != nil || what == "" {
		return "", err
	}
	if err := p.Remove(ctx); err != nil {
		return "", err
	}
	left, err := p.inspect(ctx)
	if err == nil && left != "" {
		err = fmt.Errorf("%s has %s again, which was removed: another program makes it", p, left)
	}
	return what, err
}

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

// removeOrDrain empties a target, and returns what was there, and whether it is done.
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
		if !reconcile.Pause(ctx, pause) {
			return
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

// Standby records that another process has the node, whose rules must be taken over later.
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
