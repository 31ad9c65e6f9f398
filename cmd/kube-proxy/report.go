// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
)

// maxDrift bounds how many foreign changes one log line names.
const maxDrift = 5

// maxDisputed bounds how many different ones are logged for each remind, while
// others go on altering rules.
const maxDisputed = 10

// remind is how often a failure that lasts is logged again.
const remind = time.Minute

// reporter logs the rounds of one backend. It speaks up when something
// changes: what goes on as before is summed up.
type reporter struct {
	log klog.Logger
	now func() time.Time

	programmed bool
	failure    string // of the latest round
	repeats    int    // of failure, not logged yet
	since      time.Time
	logged     time.Time
	settled    string          // latest failure to settle
	disputed   time.Time       // when drift was logged that goes on
	said       map[string]bool // that drift since
	drifts     int             // rounds with drift that were not logged
	limits     string          // what cannot be done, as logged last
}

func newReporter(log klog.Logger) *reporter { return &reporter{log: log, now: time.Now} }

func (r *reporter) report(res reconcile.Result) {
	r.drifted(res)
	if res.Err != nil {
		r.failed(res)
		return
	}
	r.succeeded(res)
	r.limits = ""
}

// drifted says what others had altered. Who does the same again and again is spoken
// of once in a while.
func (r *reporter) drifted(res reconcile.Result) {
	n, now := len(res.Drift), r.now()
	if n == 0 {
		return
	}
	first := strings.Join(res.Drift[:min(n, maxDrift)], "; ")
	args := []any{"changes", n, "first", first}
	if res.Suspect != "" {
		args = append(args, "by", res.Suspect)
	}
	if res.Contested() {
		if now.Sub(r.disputed) >= remind {
			r.disputed, r.said = now, map[string]bool{}
		}
		if r.said[first] || len(r.said) == maxDisputed {
			r.drifts++
			return
		}
		args = append(args, "rounds", res.Disputes, "notLogged", r.drifts)
		r.said[first], r.drifts = true, 0
	}
	r.log.Info("Others had altered our rules", args...)
}

// succeeded logs a round that did all that can be done.
func (r *reporter) succeeded(res reconcile.Result) {
	switch {
	case r.failure != "":
		r.log.Info("Programmed again", "generation", res.Generation, "took", res.Took, "failingFor", r.now().Sub(r.since).Round(time.Millisecond))
	case !r.programmed:
		r.log.Info("Programmed", "generation", res.Generation, "took", res.Took, "changed", res.Changed)
	case res.Changed:
		r.log.V(2).Info("Programmed a change", "generation", res.Generation, "took", res.Took)
	}
	r.programmed, r.failure, r.repeats = true, "", 0
}

// limited logs a round after which nothing is missing but what the mode cannot
// do. That stays so, and is said once.
func (r *reporter) limited(res reconcile.Result, text string) {
	r.succeeded(res)
	if text != r.limits {
		r.log.Error(res.Err, "Services ask for what this mode cannot do; the rest of them is in force", "generation", res.Generation, "ports", len(reconcile.Failed(res.Err)))
	}
	r.limits = text
}

func (r *reporter) failed(res reconcile.Result) {
	now, text := r.now(), res.Err.Error()
	if reconcile.Unsupported(res.Err) {
		r.limited(res, text)
		return
	}
	if r.failure == "" {
		r.since = now
	}
	if text == r.failure && now.Sub(r.logged) < remind {
		r.repeats++
		return
	}
	args := []any{"generation", res.Generation}
	if n := len(reconcile.Failed(res.Err)); n > 0 {
		args = append(args, "failedPorts", n)
	}
	if text == r.failure {
		args = append(args, "repeated", r.repeats+1, "failingFor", now.Sub(r.since).Round(time.Second))
	}
	what := "Not everything could be programmed; trying again"
	if errors.Is(res.Err, context.Canceled) {
		what = "Stopping before everything could be programmed; the next start goes on from there"
	}
	r.log.Error(res.Err, what, args...)
	r.failure, r.repeats, r.logged = text, 0, now
}

// settling logs a failure of what follows a round, once while it lasts.
func (r *reporter) settling(err error) {
	if err.Error() != r.settled {
		r.log.Error(err, "Stale connections could not all be removed")
	}
	r.settled = err.Error()
}

// progress says what a start still waits for when it takes long.
type progress struct {
	log     klog.Logger
	mu      sync.Mutex
	waiting []string
	unread  func() []string // what has not been read either
	finish  chan struct{}   // closed when nothing is left
}

// progressEvery is how long nobody should have to wait without a word.
const progressEvery = 2 * time.Second

// patiently writes text to w if what follows takes long. The function that it
// returns ends that: nothing is written any more when it returns.
func patiently(w io.Writer, text string) (end func()) {
	written := make(chan struct{})
	slow := time.AfterFunc(progressEvery, func() {
		defer close(written)
		fmt.Fprintln(w, text)
	})
	return func() {
		if !slow.Stop() {
			<-written
		}
	}
}

func newProgress(log klog.Logger, unread func() []string) *progress {
	return &progress{log: log, unread: unread, finish: make(chan struct{})}
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
		close(p.finish)
	}
}

// wait returns true when everything is done, false when ctx ended first.
func (p *progress) wait(ctx context.Context) bool {
	start := time.Now()
	for pause := progressEvery; ; pause = min(2*pause, remind) {
		select {
		case <-ctx.Done():
			return false
		case <-p.finish:
			return true
		case <-time.After(pause):
		}
		p.mu.Lock()
		left := strings.Join(append(p.unread(), p.waiting...), ", ")
		p.mu.Unlock()
		p.log.Info("Still reading and programming for the first time", "waitingFor", left, "elapsed", fmt.Sprint(time.Since(start).Round(time.Second)))
	}
}
