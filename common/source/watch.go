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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// run lists and watches until ctx ends. What the API server does not have is
// looked for again from time to time.
func (a *APIServer) run(ctx context.Context, f *feed) {
	for ctx.Err() == nil {
		turn, end := context.WithCancel(ctx)
		w := &watcher{feed: f, api: a, turn: turn, end: end, silence: cmp.Or(a.Silence, usualSilence)}
		w.run()
		end()
		f.settle()
		select {
		case <-ctx.Done():
		case <-time.After(absence):
		}
	}
}

// watcher lists and watches for a feed, until its turn ends, and trusts
// nobody who does not speak.
type watcher struct {
	feed    *feed
	api     *APIServer
	turn    context.Context
	end     context.CancelFunc
	silence time.Duration
}

// run lets the library list and watch. Failures are reported, each of them
// before it is tried again, and do not go to the library's own log.
func (w *watcher) run() {
	from := &cache.ListWatch{
		ListWithContextFunc:  w.list,
		WatchFuncWithContext: w.watch,
	}
	quiet := klog.NewContext(w.turn, logr.Discard())
	cache.NewReflectorWithOptions(from, w.feed.like, w.feed, cache.ReflectorOptions{Name: w.feed.kind}).RunWithContext(quiet)
}

// errSilent is why a request is given up.
var errSilent = errors.New("no answer")

func (w *watcher) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.silence, errSilent)
	defer cancel()
	l, err := w.feed.from.ListWithContextFunc(ctx, o)
	return l, w.failed(ctx, err)
}

func (w *watcher) watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx) // ends the answer, not just the request
	alarm := time.AfterFunc(w.silence, func() { cancel(errSilent) })
	in, err := w.feed.from.WatchFuncWithContext(ctx, o)
	alarm.Stop()
	if o.SendInitialEvents != nil && apierrors.IsInvalid(err) {
		cancel(nil)
		return nil, err // an old API server, so all that exists is listed
	}
	if err := w.failed(ctx, err); err != nil {
		cancel(nil)
		return nil, err
	}
	w.feed.alive()
	out := &heard{in: in, out: make(chan apiwatch.Event), stopped: ctx.Done(), stop: func() { cancel(nil) }}
	go func() {
		defer cancel(nil)
		if out.passOn(w.silence) && w.api.Silent != nil {
			w.api.Silent(w.feed.kind)
		}
	}()
	return out, nil
}

// failed reports err, and returns it with the cause of ctx's end if that is
// why. What need not be there ends the turn.
func (w *watcher) failed(ctx context.Context, err error) error {
	if err == nil || w.turn.Err() != nil || ordinary(err) {
		return err
	}
	if context.Cause(ctx) == errSilent {
		err = fmt.Errorf("%w in %s", errSilent, w.silence)
	}
	absent := w.feed.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err))
	if w.api.Report != nil {
		w.api.Report(&ReadError{Kind: w.feed.kind, Optional: absent, Err: err})
	}
	if absent {
		w.end()
	}
	return err
}

// ordinary reports that err is how a watch ends every few minutes.
func ordinary(err error) bool {
	return errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// heard is a watch that ends when it says nothing for too long.
type heard struct {
	in      apiwatch.Interface
	out     chan apiwatch.Event
	stopped <-chan struct{}
	stop    func()
}

// Stop implements apiwatch.Interface.
func (h *heard) Stop() {
	h.stop()
	h.in.Stop()
}

// ResultChan implements apiwatch.Interface.
func (h *heard) ResultChan() <-chan apiwatch.Event { return h.out }

// passOn passes on what comes until the watch ends or, which it reports, says
// nothing for too long.
func (h *heard) passOn(silence time.Duration) bool {
	defer close(h.out)
	defer h.in.Stop()
	alarm := time.NewTimer(silence)
	defer alarm.Stop()
	for {
		select {
		case e, ok := <-h.in.ResultChan():
			if !ok {
				return false
			}
			select {
			case h.out <- e:
			case <-h.stopped:
				return false
			}
			alarm.Reset(silence) // now, as whoever listens may have taken long
		case <-h.stopped:
			return false
		case <-alarm.C:
			return true
		}
	}
}
