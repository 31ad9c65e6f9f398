// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
)

// maxDrift bounds how many foreign changes one log line names.
const maxDrift = 5

// maxLoggedDrift bounds how many different foreign changes are logged in each
// remindInterval.
const maxLoggedDrift = 10

// remindInterval is how often a failure that lasts is logged again.
const remindInterval = time.Minute

// roundLogger logs the rounds of one backend. It logs changes at once and summarizes
// repetitions.
type roundLogger struct {
	log klog.Logger
	now func() time.Time

	programmed    bool
	failure       string // of the latest round
	repeats       int    // of failure, not logged yet
	since         time.Time
	logged        time.Time
	cleanupError  string          // latest failure of conntrack cleanup
	driftLogged   time.Time       // when lasting drift was logged
	loggedDrift   map[string]bool // first changes of the drift logged since
	unloggedDrift int             // rounds with drift that were not logged
	limits        string          // what the mode cannot do, as logged last
}

func newRoundLogger(log klog.Logger) *roundLogger { return &roundLogger{log: log, now: time.Now} }

// Report implements Reporter.
func (r *roundLogger) Report(x Round) { r.logRound(x.Result) }

func (r *roundLogger) logRound(res reconcile.Result) {
	r.logDrift(res)
	if res.Err != nil {
		r.logFailure(res)
		return
	}
	r.logSuccess(res)
	r.limits = ""
}

// logDrift logs foreign changes. It logs the same repeated change once in remindInterval.
func (r *roundLogger) logDrift(res reconcile.Result) {
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
		if now.Sub(r.driftLogged) >= remindInterval {
			r.driftLogged, r.loggedDrift = now, map[string]bool{}
		}
		if r.loggedDrift[first] || len(r.loggedDrift) == maxLoggedDrift {
			r.unloggedDrift++
			return
		}
		args = append(args, "rounds", res.DriftRounds, "notLogged", r.unloggedDrift)
		r.loggedDrift[first], r.unloggedDrift = true, 0
	}
	r.log.Info("Others had altered our rules", args...)
}

// logSuccess logs a round that did all that the mode can do.
func (r *roundLogger) logSuccess(res reconcile.Result) {
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

// logLimits logs a round that lacks only what the mode cannot do. That persists, so it is
// logged once.
func (r *roundLogger) logLimits(res reconcile.Result, text string) {
	r.logSuccess(res)
	if text != r.limits {
		r.log.Error(res.Err, "Services ask for what this mode cannot do; the rest of them is in force", "generation", res.Generation, "ports", len(reconcile.PortErrors(res.Err)))
	}
	r.limits = text
}

func (r *roundLogger) logFailure(res reconcile.Result) {
	now, text := r.now(), res.Err.Error()
	if reconcile.Unsupported(res.Err) {
		r.logLimits(res, text)
		return
	}
	if r.failure == "" {
		r.since = now
	}
	if text == r.failure && now.Sub(r.logged) < remindInterval {
		r.repeats++
		return
	}
	args := []any{"generation", res.Generation}
	if n := len(reconcile.PortErrors(res.Err)); n > 0 {
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

// logCleanup logs a failure of conntrack cleanup once while it lasts, and its end.
func (r *roundLogger) logCleanup(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == r.cleanupError:
	case err == nil:
		r.log.Info("Stale connections are removed again")
	default:
		r.log.Error(err, "Stale connections could not all be removed")
	}
	r.cleanupError = text
}
