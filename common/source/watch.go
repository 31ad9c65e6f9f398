// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// run lists and watches until ctx ends. If the API server lacks the kind or forbids it,
// run retries from time to time. The first pauses are short, because an API server that
// has just started refuses everything until it has loaded its authorization rules.
func (a *APIServer) run(ctx context.Context, f *feed) {
	timeout := cmp.Or(a.WatchTimeout, defaultWatchTimeout)
	pause := minAbsentPause
	relist := relistPauses()
	for ctx.Err() == nil {
		start := time.Now()
		f.pace.forget(f.kind)
		now := f.history.begin(ctx, f.kind)
		a.connect(f) // after the beginning, so that Use ends a turn with the old client
		w := &watcher{feed: f, api: a, turn: now, timeout: timeout}
		w.run()
		why, took := context.Cause(now.ctx), time.Since(start)
		now.end(nil)
		if why == errRestored || why == errReplaced || why == ErrNoAnswer {
			if took > timeout {
				relist = relistPauses()
			}
			sleep(ctx, relist.Step(), nil)
			continue
		}
		f.markListed()
		if took > maxAbsentPause { // it was available in between
			pause = minAbsentPause
		}
		sleep(ctx, pause, nil)
		pause = min(2*pause, maxAbsentPause)
	}
}

func relistPauses() *wait.Backoff {
	return &wait.Backoff{Duration: minRelistPause, Cap: maxRelistPause, Factor: 2, Jitter: 1, Steps: math.MaxInt}
}

// watcher lists and watches for a feed, for one turn. It gives up silent connections.
type watcher struct {
	feed *feed
	api  *APIServer
	turn
	timeout time.Duration
	// doubted means that the latest watch ended before its time, as when the API server
	// ends, so the next one need not continue the same history.
	doubted atomic.Bool
}

// run lets the library list and watch. It reports each failure before the next attempt,
// and keeps failures out of the library's own log.
func (w *watcher) run() {
	from := &cache.ListWatch{
		ListWithContextFunc:  w.list,
		WatchFuncWithContext: w.watch,
	}
	quiet := klog.NewContext(w.ctx, logr.Discard())
	cache.NewReflectorWithOptions(from, w.feed.prototype, w.feed, cache.ReflectorOptions{
		Name: w.feed.kind, Clock: stoppableClock{ended: w.ctx.Done()}, Backoff: &floor,
	}).RunWithContext(quiet)
}

// ErrNoAnswer and ErrCutOff are why a request was given up or failed. The library hides the
// reasons of many failures to connect, such as a server without TLS, behind such an end.
var (
	ErrNoAnswer = errors.New("no answer")
	ErrCutOff   = errors.New("no answer in time, or one that broke off at its beginning")
)

// minWatchTime is how long a watch must last to be granted, without a complete event.
const minWatchTime = time.Second

func (w *watcher) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	w.feed.pace.wait(ctx, w.feed.kind)
	if w.feed.complete && isAny(o.ResourceVersion) && o.Continue == "" {
		// The library accepts any version at the start of a turn, also an old one of an API
		// server that lags behind. Without limit, API servers answer this from their caches.
		o.ResourceVersion, o.ResourceVersionMatch, o.Limit = "", "", 0
	}
	l, version, err := w.ask(ctx, o)
	if err != nil || o.Continue != "" {
		return l, err
	}
	how := inOrder
	if o.ResourceVersion == "" {
		how = anew
	}
	w.doubted.Store(false)
	w.feed.history.see(w.feed.kind, version, how)
	return l, context.Cause(w.ctx)
}

// isAny reports that a request with this version accepts an answer of any version.
func isAny(version string) bool { return version == "" || version == "0" }

// ask lists once. It returns the list and its version.
func (w *watcher) ask(ctx context.Context, o metav1.ListOptions) (l runtime.Object, version string, err error) {
	ctx, cancel := context.WithTimeoutCause(WithRetryAfter(ctx), w.timeout, ErrNoAnswer)
	defer cancel()
	l, err = w.feed.from.list(ctx, o)
	if err == nil {
		err = w.feed.check(l)
	}
	if err != nil {
		w.feed.pace.failed(w.feed.kind)
		return l, "", w.report(ctx, err)
	}
	m, err := meta.ListAccessor(l)
	if err != nil {
		return l, "", err
	}
	return l, m.GetResourceVersion(), nil
}

// probe asks for the version that the API server has reached. It would grant a watch from
// a later one, and send nothing until it reaches that.
func (w *watcher) probe(ctx context.Context) error {
	_, version, err := w.ask(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	w.doubted.Store(false)
	w.feed.history.see(w.feed.kind, version, probed)
	return context.Cause(w.ctx)
}

func (w *watcher) watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w.feed.pace.wait(ctx, w.feed.kind)
	start := time.Now()
	if w.doubted.Load() && o.SendInitialEvents == nil && !isAny(o.ResourceVersion) {
		if err := w.probe(ctx); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancelCause(WithRetryAfter(ctx)) // cancels the response too, not just the request
	alarm := time.AfterFunc(w.timeout, func() { cancel(ErrNoAnswer) })
	in, err := w.feed.from.watch(ctx, o)
	alarm.Stop()
	if o.SendInitialEvents != nil && apierrors.IsInvalid(err) {
		cancel(nil)
		return nil, err // an old API server; the library lists instead
	}
	if err := w.report(ctx, err); err != nil {
		cancel(nil)
		return nil, err
	}
	out := &timeoutWatch{in: in, out: make(chan apiwatch.Event), stopped: ctx.Done(), stop: func() { cancel(nil) }}
	out.seen = w.seer(o)
	if o.SendInitialEvents == nil { // otherwise the existing objects are still to come
		out.granted = w.feed.contactReporter()
	}
	go func() {
		defer close(out.out)
		defer cancel(nil)
		switch err := out.forward(w.timeout); {
		case err == ErrNoAnswer:
			if w.api.WatchTimedOut != nil {
				w.api.WatchTimedOut(w.feed.kind)
			}
			w.end(ErrNoAnswer)
		case err == ErrCutOff:
			_ = w.report(ctx, err) // the library sees the event itself
		}
		if o.TimeoutSeconds == nil || time.Since(start) < time.Duration(*o.TimeoutSeconds)*time.Second {
			w.doubted.Store(true)
		}
	}()
	return out, nil
}

// seer returns what looks at each event of a watch before it is delivered. Existing
// objects come first in some watches, in no order. A bookmark ends them.
func (w *watcher) seer(o metav1.ListOptions) func(apiwatch.Event) {
	ordered := o.SendInitialEvents == nil && !isAny(o.ResourceVersion)
	return func(e apiwatch.Event) {
		if e.Type == apiwatch.Error {
			w.feed.pace.bar(w.feed.kind, RetryAfter(w.ctx, apierrors.FromObject(e.Object)))
			return
		}
		how := inOrder
		if !ordered && o.ResourceVersion == "" {
			how = anew
		}
		ordered = ordered || e.Type == apiwatch.Bookmark
		if m, err := meta.Accessor(e.Object); err == nil && ordered {
			w.feed.history.see(w.feed.kind, m.GetResourceVersion(), how)
		}
	}
}

// report reports err. It returns err with the cause of ctx's end, if that is the reason.
// If the API server lacks an optional kind, report ends the turn.
func (w *watcher) report(ctx context.Context, err error) error {
	if err == nil || w.ctx.Err() != nil {
		return err
	}
	w.feed.pace.bar(w.feed.kind, RetryAfter(ctx, err))
	if isNormalEnd(err) {
		return err
	}
	w.feed.pace.failed(w.feed.kind)
	if context.Cause(ctx) == ErrNoAnswer {
		err = fmt.Errorf("%w in %s", ErrNoAnswer, w.timeout)
	}
	absent := w.feed.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err))
	if w.api.Report != nil {
		w.api.Report(&ReadError{Kind: w.feed.kind, Optional: absent, Err: err})
	}
	if absent {
		w.end(nil)
	}
	return err
}

// isNormalEnd reports whether err is how a watch ends every few minutes.
func isNormalEnd(err error) bool {
	return errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// timeoutWatch is a watch that ends after too long a silence. It implements apiwatch.Interface.
type timeoutWatch struct {
	in      apiwatch.Interface
	out     chan apiwatch.Event
	stopped <-chan struct{}
	stop    func()
	// granted, if set, is called when the watch counts as granted, seen before each event.
	granted func()
	seen    func(apiwatch.Event)
}

func (t *timeoutWatch) Stop() {
	t.stop()
	t.in.Stop()
}

func (t *timeoutWatch) ResultChan() <-chan apiwatch.Event { return t.out }

// forward passes on events until the watch ends. It returns ErrNoAnswer after too long a
// silence. It returns ErrCutOff if the watch ended before it counted as granted: a proxy
// on the way may cut it off, perhaps every time.
func (t *timeoutWatch) forward(silence time.Duration) error {
	defer t.in.Stop()
	alarm, good := time.NewTimer(silence), time.NewTimer(minWatchTime)
	defer alarm.Stop()
	defer good.Stop()
	relied := false
	for {
		select {
		case e, ok := <-t.in.ResultChan():
			if !ok && !relied {
				return ErrCutOff
			}
			if !ok {
				return nil
			}
			t.seen(e)
			select {
			case t.out <- e:
			case <-t.stopped:
				return nil
			}
			relied = relied || isComplete(e, t.granted == nil)
			alarm.Reset(silence) // only now, because the receiver may have taken long
		case <-good.C:
			if t.granted != nil {
				t.granted()
				relied = true
			}
		case <-t.stopped:
			return nil
		case <-alarm.C:
			return ErrNoAnswer
		}
	}
}

// isComplete reports whether the answer is complete with e, at first all existing objects.
func isComplete(e apiwatch.Event, first bool) bool {
	switch {
	case e.Type == apiwatch.Error:
		return isNormalEnd(apierrors.FromObject(e.Object))
	case !first:
		return true
	}
	m, err := meta.Accessor(e.Object)
	return e.Type == apiwatch.Bookmark && err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

// history remembers the newest resource version of each kind, to notice that etcd was restored from
// a backup. What happened since is void then, for all kinds, and a watch from a version that is not
// reached again yet is granted and says nothing (kubernetes/kubernetes#107457), so all are listed
// again. Kinds are not compared: each may have an etcd of its own.
type history struct {
	restored func(kind, before, now string) // may be nil

	mu     sync.Mutex
	newest map[string]string // by kind
	turns  map[string]turn   // the present ones, by kind
}

// turn is one turn of a watcher. A kind is listed without a version at the start of each.
type turn struct {
	ctx context.Context
	end context.CancelCauseFunc
}

// These end turns: the API server went back in time, or there is another one.
var (
	errRestored = errors.New("the resource version went backwards")
	errReplaced = errors.New("another connection is in use")
)

func newHistory(restored func(kind, before, now string)) *history {
	return &history{restored: restored, newest: map[string]string{}, turns: map[string]turn{}}
}

// begin returns a new turn of a kind.
func (h *history) begin(ctx context.Context, kind string) turn {
	ctx, end := context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turns[kind] = turn{ctx, end}
	return h.turns[kind]
}

// forget ends the turns of all kinds: versions of another connection have no order with these.
func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.newest)
	for _, t := range h.turns {
		t.end(errReplaced)
	}
}

// sight is where a version was seen.
type sight uint8

const (
	inOrder sight = iota // an event, a bookmark, or an answer that may be no older than the version before
	anew                 // an answer to a list without a version
	probed               // an answer of which nothing is delivered
)

// see compares a version with the newest one. If it is older, see ends the turns of all
// kinds, except for one that was listed anew: that one is up to date.
func (h *history) see(kind, version string, how sight) {
	if before, is := h.backwards(kind, version, how); is && h.restored != nil {
		h.restored(kind, before, version)
	}
}

func (h *history) backwards(kind, version string, how sight) (before string, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.turns[kind].ctx.Err() != nil { // the rest of a turn that is over
		return "", false
	}
	before = h.newest[kind]
	order, err := resourceversion.CompareResourceVersion(version, before)
	if before != "" && err != nil { // they have no order
		return "", false
	}
	if is = before != "" && order < 0; is {
		clear(h.newest)
		for k, t := range h.turns {
			if k != kind || how != anew {
				t.end(errRestored)
			}
		}
	}
	if how == anew || how == inOrder && !is {
		h.newest[kind] = version
	}
	return before, is
}

// stoppableClock is a clock for one turn. After some failures the library pauses without a look at
// its context: client-go tools/cache/reflector.go.
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
