// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// maxDrift bounds how many foreign changes one log line names.
const maxDrift = 5

// maxLoggedDrift bounds how many foreign changes are logged in each remindInterval.
const maxLoggedDrift = 10

// remindInterval is how often a failure that lasts is logged again.
const remindInterval = time.Minute

// roundLogger logs the rounds of one backend: changes at once, repetitions in sum.
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

// logLimits logs once that rounds lack only what the mode cannot do, which persists.
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

// nodeLog logs what is known of the own Node when that changes, and once if nothing is.
type nodeLog struct {
	log  klog.Logger
	name string
	// podCIDRs is whether the podCIDRs of the Node matter.
	podCIDRs bool

	mu         sync.Mutex
	last       *service.Node
	ineligible string // why /healthz keeps load balancers away
}

// nodeTimeout is how long the Node may be unknown before a warning.
const nodeTimeout = 30 * time.Second

// nodeChanged logs the Node as t knows it now.
func (l *nodeLog) nodeChanged(t *track.Tracker) {
	now := t.Node()
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.last
	if l.last = now; old != nil && slices.Equal(old.Addrs, now.Addrs) && slices.Equal(old.Pods.Prefixes, now.Pods.Prefixes) {
		return
	}
	args := []any{"node", l.name, "nodeIPs", append([]netip.Addr{}, now.Addrs...)} // [], not null
	if l.podCIDRs {
		args = append(args, "podCIDRs", append([]netip.Prefix{}, now.Pods.Prefixes...))
	}
	if old == nil {
		l.log.Info("The Node is known", args...)
		return
	}
	l.log.Info("The Node has changed", args...)
}

// eligibilityChanged logs when /healthz starts or stops to keep load balancers away
// because of the Node. An empty reason means that it does not.
func (l *nodeLog) eligibilityChanged(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reason == l.ineligible {
		return
	}
	if l.ineligible = reason; reason == "" {
		l.log.Info("Load balancers are not told to leave this node any more", "node", l.name)
		return
	}
	l.log.Info("Load balancers are told to leave this node, by /healthz", "node", l.name, "reason", reason)
}

// warnIfUnknown warns once if the Node is not known within nodeTimeout.
func (l *nodeLog) warnIfUnknown(ctx context.Context, sources *Sources, t *track.Tracker) {
	if !reconcile.Pause(ctx, nodeTimeout) {
		return
	}
	now := t.Node()
	closed := now.NodePortsPending != [2]bool{}
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := "its addresses, zone and pod ranges"
	if closed {
		lost += "; no address answers NodePorts that did not before, as nodePortAddresses is primary"
	}
	switch {
	case l.last != nil:
	case !sources.api:
		if closed || l.podCIDRs {
			l.log.Info("Warning: no manifest has a Node of this name; going on without "+lost, "node", l.name, "after", nodeTimeout,
				"remedy", "add the Node to the manifests, set --hostname-override to its name, or set --nodeport-addresses")
		}
	case sources.nodesRead():
		l.log.Info("Warning: the API server has no Node of this name; going on without "+lost+", and no endpoint counts as local to this node unless it has the same name",
			"node", l.name, "after", nodeTimeout, "cause", "usually the host's name is not the Node's: a full instead of a short name, or one that the cloud gives",
			"remedy", "set --hostname-override to the name that kubectl get nodes shows")
	default:
		l.log.Info("Warning: the API server has not sent the Node yet; going on without "+lost, "node", l.name, "after", nodeTimeout)
	}
}
