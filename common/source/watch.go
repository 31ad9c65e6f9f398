// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// run lists and watches until ctx ends. If the API server lacks the kind or forbids it,
// run retries from time to time. The first pauses are short, because an API server that
// has just started refuses everything until it has loaded its authorization rules.
func (a *APIServer) run(ctx context.Context, f *feed) {
	pause := minAbsentPause
	for ctx.Err() == nil {
		start := time.Now()
		f.pace.forget(f.kind)
		watchCtx, end := context.WithCancel(ctx)
		w := &watcher{feed: f, api: a, ctx: watchCtx, cancel: end, timeout: cmp.Or(a.WatchTimeout, defaultWatchTimeout)}
		w.run()
		end()
		f.markListed()
		if time.Since(start) > maxAbsentPause { // it was available in between
			pause = minAbsentPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, maxAbsentPause)
	}
}

// watcher lists and watches for a feed, for one turn. It gives up silent connections.
type watcher struct {
	feed    *feed
	api     *APIServer
	ctx     context.Context
	cancel  context.CancelFunc
	timeout time.Duration
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

// minWatchTime is how long a watch must last to count as granted, unless it sends a
// complete event before.
const minWatchTime = time.Second

func (w *watcher) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	w.feed.pace.wait(ctx, w.feed.kind)
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, ErrNoAnswer)
	defer cancel()
	l, err := w.feed.from.list(ctx, o)
	if err == nil {
		err = w.feed.check(l)
	}
	if err != nil {
		w.feed.pace.failed(w.feed.kind)
	}
	return l, w.report(ctx, err)
}

func (w *watcher) watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	w.feed.pace.wait(ctx, w.feed.kind)
	ctx, cancel := context.WithCancelCause(ctx) // cancels the response too, not just the request
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
	if o.SendInitialEvents == nil { // otherwise the existing objects are still to come
		out.granted = w.feed.contactReporter()
	}
	go func() {
		defer cancel(nil)
		switch err := out.forward(w.timeout); {
		case err == ErrNoAnswer && w.api.WatchTimedOut != nil:
			w.api.WatchTimedOut(w.feed.kind)
		case err == ErrCutOff:
			_ = w.report(ctx, err) // the library sees the event itself
		}
	}()
	return out, nil
}

// report reports err. It returns err with the cause of ctx's end, if that is the reason.
// If the API server lacks an optional kind, report ends the turn.
func (w *watcher) report(ctx context.Context, err error) error {
	if err == nil || w.ctx.Err() != nil || isNormalEnd(err) {
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
		w.cancel()
	}
	return err
}

// isNormalEnd reports whether err is how a watch ends every few minutes.
func isNormalEnd(err error) bool {
	return errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// timeoutWatch is a watch that ends after too long a silence.
type timeoutWatch struct {
	in      apiwatch.Interface
	out     chan apiwatch.Event
	stopped <-chan struct{}
	stop    func()
	// granted, if set, is called when the watch counts as granted.
	granted func()
}

// Stop implements apiwatch.Interface.
func (h *timeoutWatch) Stop() {
	h.stop()
	h.in.Stop()
}

// ResultChan implements apiwatch.Interface.
func (h *timeoutWatch) ResultChan() <-chan apiwatch.Event { return h.out }

// forward passes on events until the watch ends. It returns ErrNoAnswer after too long a
// silence. It returns ErrCutOff if the watch ended before it counted as granted: a proxy
// on the way may cut it off, perhaps every time.
func (h *timeoutWatch) forward(silence time.Duration) error {
	defer close(h.out)
	defer h.in.Stop()
	alarm, good := time.NewTimer(silence), time.NewTimer(minWatchTime)
	defer alarm.Stop()
	defer good.Stop()
	relied := false
	for {
		select {
		case e, ok := <-h.in.ResultChan():
			if !ok && !relied {
				return ErrCutOff
			}
			if !ok {
				return nil
			}
			select {
			case h.out <- e:
			case <-h.stopped:
				return nil
			}
			relied = relied || isComplete(e, h.granted == nil)
			alarm.Reset(silence) // only now, because the receiver may have taken long
		case <-good.C:
			if h.granted != nil {
				h.granted()
				relied = true
			}
		case <-h.stopped:
			return nil
		case <-alarm.C:
			return ErrNoAnswer
		}
	}
}

// isComplete reports whether the answer is complete with e: after any event, or, if
// first, after all existing objects.
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
