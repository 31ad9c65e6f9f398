// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// The pauses of repairs after foreign changes, see Drift of reconcile.Loop. Repairs take
// at most a twentieth of the time.
const (
	driftPause      = 100 * time.Millisecond
	driftPauseMax   = time.Second
	driftCostFactor = 20
)

// The names of conditions about other programs that change the rules of the node.
const (
	conditionOther = "other-proxy"
	conditionDrift = "drift-" // followed by the family
	conditionRules = "other-rules-"
)

// otherProxyEventDelay is how long another service proxy may run before an Event reports
// it. A rolling update runs two for a while on purpose.
const otherProxyEventDelay = time.Minute

// otherProxyState is what is known of other programs that change the rules of the node.
type otherProxyState struct {
	mu       sync.Mutex
	text     string      // of the condition
	event    *time.Timer // pending Event
	drifting [2]bool
	rules    [2]string // of the conditions about rules
	stopped  bool
}

// newLease prepares o to share the node with other service proxies that serve the
// same Services.
func (o *statusReporter) newLease(proxyName string) {
	transport, self := leaseTransport(proxyName)
	if transport == nil {
		return
	}
	self.Mode, self.Version = o.mode, buildInfo().Version
	o.lease = lease.New(transport, self, nil)
}

// leaseEnter returns the function that admits this process to program the node, nil if it
// always may.
func (o *statusReporter) leaseEnter() func(context.Context) (func(), bool) {
	if o.lease == nil {
		return nil
	}
	return o.lease.Enter
}

// bindLease restricts the rounds of l to the time when this process holds the lease.
func (o *statusReporter) bindLease(l *reconcile.Loop, b *backend) {
	l.Enter = o.leaseEnter()
	l.Standby = func(want *service.Snapshot) { o.recordStandby(b, want) }
}

// startLease runs the lease until end is called. Call end after the last change to the
// node: another process may program from then on.
func (o *statusReporter) startLease(ctx context.Context, loops []*reconcile.Loop) (end func()) {
	if o.lease == nil {
		return func() {}
	}
	standby := false
	o.lease.Changed = func(s lease.State) {
		if ctx.Err() != nil {
			return // the process is stopping
		}
		o.leaseChanged(s)
		if s.Standby == standby {
			return // loops wait for the first state, and only Standby concerns them
		}
		standby = s.Standby
		for _, l := range loops {
			l.Kick()
		}
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		o.lease.Run(running)
	}()
	return func() {
		cancel()
		<-ended
		o.others.stop()
	}
}

// recordStandby records that another process programs the node for want. Health checks of
// Services are still answered, as this process has their ports.
func (o *statusReporter) recordStandby(b *backend, want *service.Snapshot) {
	now := time.Now()
	if b.takeover != nil {
		b.takeover.Standby()
	}
	o.metrics.ChangesSynced()
	o.latency.takeProgrammed(b.family, now, now) // the latency of the other process is unknown
	o.checks.update(b.family, want)
}

// leaseChanged records which process programs the node.
func (o *statusReporter) leaseChanged(s lease.State) {
	text, holder := otherProxyText(s), ""
	if s.Standby {
		holder = s.Holder.String()
	}
	o.health.SetStandby(holder)
	o.health.SetDetailedCondition(conditionOther, hint(text, "another service proxy runs on this node"), text)
	r := &o.others
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == r.text {
		return
	}
	switch r.text = text; text {
	case "":
		o.log.Info("No other service proxy runs on this node any more; this process programs it")
	default:
		o.log.Info("Warning: " + text)
	}
	if r.event != nil {
		r.event.Stop()
	}
	if text == "" {
		o.events.reportOtherProxy("")
	} else if !r.stopped {
		r.event = time.AfterFunc(otherProxyEventDelay, func() { o.events.reportOtherProxy(text) })
	}
}

// hint returns the text of a condition for clients without authentication.
func hint(text, public string) string {
	if text == "" {
		return ""
	}
	return public
}

// stop cancels the pending Event.
func (r *otherProxyState) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	if r.event != nil {
		r.event.Stop()
	}
}

// otherProxyText names the other service proxies on the node, empty for none.
func otherProxyText(s lease.State) string {
	switch {
	case s.Standby:
		return fmt.Sprintf("another service proxy programs this node, as it started later: %s; this process stands by and takes over when that one ends; stop one of the two, unless this is a rolling update", s.Holder)
	case s.Fault != "":
		return fmt.Sprintf("it cannot be settled which service proxy programs this node: %s; this process goes on", s.Fault)
	case len(s.Others) == 0:
		return ""
	}
	var all []string
	for _, x := range s.Others {
		all = append(all, x.String())
	}
	return fmt.Sprintf("another service proxy runs on this node and stands by, as this one started later: %s; stop one of the two, unless this is a rolling update", strings.Join(all, "; "))
}

// reportDrift records the foreign changes that a round found.
func (o *statusReporter) reportDrift(f service.Family, r reconcile.Result) {
	v := &o.others
	v.mu.Lock()
	defer v.mu.Unlock()
	name := conditionDrift + f.String()
	switch {
	case r.DriftRounds == 0:
		if v.drifting[f] {
			o.log.Info("Our rules are not altered by others any more", "family", f.String())
		}
		v.drifting[f] = false
		o.health.SetCondition(name, "")
	case r.Contested() && (len(r.Drift) > 0 || !v.drifting[f]):
		v.drifting[f] = true
		o.health.SetDetailedCondition(name, "another program alters the rules of this proxy again and again", driftText(&r))
	default:
		return
	}
	o.events.reportDrift(v.drifting, r.Suspect)
}

// reportForeignRules shows rules that another program adds again in the places of service
// proxies after their removal. An empty text means that there are none any more.
func (o *statusReporter) reportForeignRules(f service.Family, what string) {
	name := conditionRules + f.String()
	v := &o.others
	v.mu.Lock()
	defer v.mu.Unlock()
	text := ""
	if what != "" {
		source := "another service proxy"
		if others := otherProxies(); others != "" {
			source = others
		}
		text = fmt.Sprintf("%s makes rules beside those of this process, though they were removed: %s; stop it", source, what)
	}
	if (v.rules[f] == "") != (text == "") {
		o.log.Info(cmp.Or(text, "Nobody makes rules beside those of this process any more"), "family", f.String())
	}
	v.rules[f] = text
	o.health.SetDetailedCondition(name, hint(text, "another service proxy makes rules beside those of this process"), text)
	o.events.reportOtherProxy(cmp.Or(v.rules[0], v.rules[1], v.text))
}

// driftText describes repeated foreign changes to our rules, and which program makes
// them.
func driftText(r *reconcile.Result) string {
	source := "another program, which the system does not name,"
	if r.Suspect != "" {
		source = r.Suspect
	}
	if others := otherProxies(); others != "" {
		source += " (service proxies of this node: " + others + ")"
	}
	what := ""
	if len(r.Drift) > 0 {
		what = "; the latest: " + r.Drift[0]
	}
	return fmt.Sprintf("%s alters the rules of this proxy again and again; they are repaired about once a second: stop it%s", source, what)
}

// reportOtherProxy reports that another service proxy runs on the node, or none if text
// is empty.
func (h *eventReporter) reportOtherProxy(text string) {
	switch {
	case h == nil:
	case text == "":
		h.Recovered(h.self(), eventOtherProxy, "No other service proxy runs on this node")
	default:
		h.Failed(h.self(), eventOtherProxy, text)
	}
}

// reportDrift reports whether the rules of a family are changed by others repeatedly.
func (h *eventReporter) reportDrift(now [2]bool, suspect string) {
	if h == nil {
		return
	}
	if now == [2]bool{} {
		h.Recovered(h.self(), eventDrift, "The rules of this proxy are not altered any more")
		return
	}
	if suspect == "" {
		suspect = "another program"
	}
	h.Failed(h.self(), eventDrift, "The rules of this proxy are altered again and again by "+suspect)
}
