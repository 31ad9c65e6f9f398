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

// remains are what a service proxy may have left in one place, whichever it
// was. All of it is removed together.
type remains interface {
	// String names the place.
	String() string
	// Find says what is there, nothing if there is nothing.
	Find(context.Context) (string, error)
	// Remove removes that. Nothing to remove is success.
	Remove(context.Context) error
}

// retiring are remains that open connections need for as long as they last.
// They are removed at once only in a cleanup.
type retiring interface {
	remains
	// Retire has them take no new connections and removes what no connection
	// needs any more. It says what stays and for how long at most, nothing if
	// all is gone. since is when it began, zero if it begins now.
	Retire(ctx context.Context, since time.Time) (stays string, err error)
}

// place is where a mode of ours, or kube-proxy itself, may have left rules.
type place struct {
	remains
	family service.Family
	// ipvs says that it is virtual servers and what belongs to them.
	ipvs bool
	// upstream says that no mode of ours leaves anything there.
	upstream bool
	// trouble is why it could not be emptied, or an errUnread.
	trouble error
}

// takeover removes what other modes and other service proxies left for one
// family. Until then the old rules and those of this process are in force side
// by side, and connections keep to whichever translated them. So nobody is
// refused if the old ones go only once all that is wanted is in force, and was
// seen to be by somebody who read it from the system again.
type takeover struct {
	family service.Family
	places []place
	// audit returns a backend that knows nothing of what was programmed.
	audit     func() (reconcile.Backend, error)
	log       klog.Logger
	condition func(text string)
	failed    func() // counts an attempt that left something
	// done is called when old rules are gone, by which flows may have begun
	// that no present rule would allow.
	done func()

	// enter reports that this process may change anything, see lease.Lease.
	enter func(context.Context) (leave func(), ok bool)

	good chan struct{} // a round was good
	anew chan struct{} // another process may have left something
	// all are the places to look at again, and rival shows what comes back in them.
	all   []place
	rival func(what string)
	// told has what was last complained about, by place, empty for all of them.
	told map[string]string
	// removed says what was removed from a place that is not known to be empty.
	removed map[string]string
	// retired has, by place, what open connections may still need.
	retired map[string]*retirement

	mu     sync.Mutex
	missed bool              // another process had the node since the last round
	want   *service.Snapshot // of the last good round, nil if there is no hope of one
	lapse  *time.Timer       // set while rounds are good but for some ports
}

// retirement is how far a place is with its connections.
type retirement struct {
	began time.Time
	what  string // was there at first
	stays string
}

// The times of a takeover.
const (
	// takeoverPatience is how long old rules may serve a port that the present
	// mode cannot program. By then they are out of date.
	takeoverPatience = time.Minute
	// takeoverPause is the longest one after a failure.
	takeoverPause = time.Minute
	// retirePause is how often it is looked at which connections have ended.
	retirePause = 5 * time.Second
)

// look finds what there is to take over, and says so.
func (t *takeover) look(ctx context.Context) {
	var left []place
	for _, p := range t.places {
		what, err := p.Find(ctx)
		switch {
		case err != nil:
			p.trouble = errUnread{err}
			t.log.Error(err, unreadText, "place", p.String())
			t.told[p.String()] = err.Error()
		case what == "":
			continue
		default:
			t.log.Info("Found what an earlier service proxy left; it stays in force until all that is wanted is", "place", p.String(), "what", what)
		}
		left = append(left, p)
	}
	t.places = left
}

// round takes in how a round for want went. What the mode cannot do at all is no
// reason to wait: old rules for it would serve all the rest as well, out of date.
func (t *takeover) round(want *service.Snapshot, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.missed {
		t.missed = false
		select {
		case t.anew <- struct{}{}:
		default:
		}
	}
	switch {
	case want == nil || want.Partial || closedNodePorts(want, t.family) != "": // the old rules may have what is not known yet
		t.refused(false)
	case err == nil || reconcile.Unsupported(err):
		t.refused(false)
		t.want = want
		t.verify()
	default:
		t.refused(health.Partial(err))
	}
}

// refused notes whether it is single ports and nothing else that are not in force
// now. If that stays so, it is as good as it gets.
func (t *takeover) refused(now bool) {
	switch {
	case !now && t.lapse != nil:
		t.lapse.Stop()
		t.lapse = nil
	case now && t.lapse == nil:
		var lapse *time.Timer
		lapse = time.AfterFunc(takeoverPatience, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.lapse == lapse {
				t.want = nil
				t.verify()
			}
		})
		t.lapse = lapse
	}
}

// verify has it verified that what is wanted is in force.
func (t *takeover) verify() {
	select {
	case t.good <- struct{}{}:
	default:
	}
}

// verified waits until what is wanted is in force, and reports that it is.
func (t *takeover) verified(ctx context.Context) bool {
	t.complain("they go as soon as all that is wanted is in force", nil)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.good:
		}
		t.mu.Lock()
		want := t.want
		t.mu.Unlock()
		if want == nil || t.audit == nil {
			return true
		}
		err := t.lacks(ctx, want)
		if err == nil {
			return true
		}
		t.complain("", fmt.Errorf("what is wanted is not all there: %w", err))
		t.again(ctx)
	}
}

// again has a good round looked at again after a while, unless there is
// another one.
func (t *takeover) again(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-t.good:
	case <-time.After(time.Second):
	}
	t.verify()
}

// lacks returns what is missing of want, by a look at the system.
func (t *takeover) lacks(ctx context.Context, want *service.Snapshot) error {
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

// remove removes what it can, and keeps the places where it cannot or where
// connections go on.
func (t *takeover) remove(ctx context.Context) error {
	var left []place
	var errs []error
	for _, p := range t.places {
		what, done, err := t.clear(ctx, p)
		switch {
		case err != nil:
			p.trouble = err
			left, errs = append(left, p), append(errs, err)
			t.removed[p.String()] = cmp.Or(what, t.removed[p.String()])
		case !done:
			p.trouble = nil
			left = append(left, p)
		case cmp.Or(what, t.removed[p.String()]) != "":
			t.log.Info("Removed what an earlier service proxy left", "place", p.String(), "what", cmp.Or(what, t.removed[p.String()]))
		}
	}
	t.places = left
	err := errors.Join(errs...)
	switch {
	case err != nil:
		t.failed()
		t.complain("", nil)
	case len(left) > 0:
		t.complain("", nil)
	}
	return err
}

// clear empties a place, and reports what was there and whether that is done.
func (t *takeover) clear(ctx context.Context, p place) (what string, done bool, err error) {
	r, is := p.remains.(retiring)
	if !is {
		what, err = clear(ctx, p)
		return what, true, err
	}
	now := t.retired[p.String()]
	if now == nil {
		now = &retirement{}
		if now.what, err = p.look(ctx); err != nil || now.what == "" {
			return "", true, err
		}
	}
	first := now.began.IsZero()
	if now.stays, err = r.Retire(ctx, now.began); err != nil {
		return "", false, err
	}
	if now.stays == "" {
		delete(t.retired, p.String())
		_, err := clear(ctx, p) // or somebody else has made it again
		return now.what, true, err
	}
	if first {
		now.began = time.Now()
		t.retired[p.String()] = now
		t.log.Info("What an earlier service proxy left takes no new connections from now on; it goes when those that it has end", "place", p.String(), "stays", now.stays)
	}
	return "", false, nil
}

// clear removes what is in a place, and returns what that was.
func clear(ctx context.Context, p place) (what string, err error) {
	if what, err = p.look(ctx); err != nil || what == "" {
		return "", err
	}
	if err := p.Remove(ctx); err != nil {
		return "", err
	}
	left, err := p.look(ctx)
	if err == nil && left != "" {
		err = fmt.Errorf("%s has %s again, which was removed: somebody else makes it", p, left)
	}
	return what, err
}

// takeOver prepares b to take over from whatever was there before, and tells
// what that is. Before rounds begin nothing is removed.
func (o *observers) takeOver(ctx context.Context, x *chosen, b *backend, kick func()) error {
	if len(b.kept) == 0 {
		return nil
	}
	all, err := places(x.config)
	if err != nil {
		return err
	}
	log := o.log.WithValues("backend", b.String())
	t := &takeover{
		family: b.family, audit: b.audit, log: log, enter: o.enter(), good: make(chan struct{}, 1), anew: make(chan struct{}, 1),
		rival: func(what string) { o.rival(b.family, what) },
		told:  map[string]string{}, removed: map[string]string{}, retired: map[string]*retirement{},
		condition: func(text string) { o.health.SetCondition("leftovers-"+b.family.String(), text) },
		failed:    func() { o.metrics.CleanupFailed(metrics.Backend{Mode: b.mode, Family: b.family}) },
		done: func() {
			b.recheck.Store(true)
			kick()
		},
	}
	for _, p := range all {
		switch {
		case p.family != b.family:
		case !slices.Contains(b.kept, p.String()):
			t.places, t.all = append(t.places, p), append(t.all, p)
		default:
			adopting(ctx, log, p)
		}
	}
	t.look(ctx)
	b.takeover = t
	return nil
}

// adopting says what is in the place that rounds of this process keep in order.
func adopting(ctx context.Context, log klog.Logger, p place) {
	if what, err := p.Find(ctx); err == nil && what != "" {
		log.Info("Found what an earlier service proxy left; adopting what is wanted of it", "place", p.String(), "what", what)
	}
}
