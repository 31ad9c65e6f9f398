// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"kubeproxy/common/health"
	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// comesBack runs told beside a takeover that goes on, and returns what it showed of
// rivals and when, in minutes.
func comesBack(t *testing.T, left *fakeLeftovers, told func(*takeoverTest)) []string {
	t.Helper()
	var seen []string
	runTakeovers(t, nil, &fakeAuditor{}, func(s *takeoverTest) {
		began := time.Now()
		s.allTargets = []cleanupTarget{{leftovers: left}}
		s.leaseRegained = make(chan struct{}, 1)
		s.reportForeignRules = func(what string) { seen = append(seen, fmt.Sprintf("%.0f %s", time.Since(began).Minutes(), what)) }
		s.after(0, nil)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			s.run(ctx)
			close(ended)
		}()
		told(s)
		cancel()
		<-ended
	})
	return seen
}

// What comes back after it was removed is somebody's who runs beside this process. It
// is removed again and again, ever more rarely, and shown until nobody makes it.
func TestRivalMakesRulesAgain(t *testing.T) {
	left := &fakeLeftovers{}
	got := comesBack(t, left, func(*takeoverTest) {
		advance(90 * time.Second)
		for range 48 {
			left.what = "rules"
			advance(time.Minute)
		}
		if left.removed != 6 || left.what != "rules" {
			t.Errorf("removed %d times, want 6, and %q is there", left.removed, left.what)
		}
		advance(16 * time.Minute)
		left.what = ""
		advance(17 * time.Minute)
	})
	want := []string{"1 ", "2 a place: rules", "4 a place: rules", "8 a place: rules", "16 a place: rules", "32 a place: rules", "48 a place: rules", "64 a place: rules", "80 ", "81 ", "82 "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What another process left that had the node for a while is no rival's.
func TestLeftByAnotherHolder(t *testing.T) {
	left := &fakeLeftovers{}
	got := comesBack(t, left, func(s *takeoverTest) {
		advance(time.Second)
		s.standby()
		left.what = "rules"
		advance(time.Second)
		if left.removed > 0 {
			t.Error("removed while another process had the node")
		}
		s.after(0, nil)
		advance(time.Second)
		if left.removed != 1 {
			t.Errorf("removed %d times, want once", left.removed)
		}
	})
	if len(got) > 0 {
		t.Errorf("shown as a rival's: %q", got)
	}
}

// watched is observers with a herald, and the conditions that they show.
func watched(h *eventReporter) (o *statusReporter, conditions func() map[string]string) {
	o = &statusReporter{events: h, log: klog.Background(), health: health.New(health.Options{})}
	return o, func() map[string]string { return o.health.Report().Conditions }
}

// Another service proxy is a condition at once, and an Event when it stays longer than
// in a rolling update.
func TestEventsOfAnotherProxy(t *testing.T) {
	got := recordedEvents(t, func(h *eventReporter) {
		o, conditions := watched(h)
		other := lease.State{Standby: true, Holder: lease.Identity{PID: 7, Command: "kube-proxy"}}
		o.leaseChanged(other)
		if text := conditions()[conditionOther]; !strings.Contains(text, "process 7 (kube-proxy)") {
			t.Errorf("condition %q", text)
		}
		time.Sleep(otherProxyEventDelay / 2)
		o.leaseChanged(lease.State{})
		if all := conditions(); len(all) > 0 {
			t.Errorf("conditions %q when it is gone", all)
		}
		time.Sleep(time.Hour)
		o.leaseChanged(other)
		time.Sleep(time.Hour)
		o.leaseChanged(lease.State{})
		time.Sleep(time.Hour)
		o.reportForeignRules(service.IPv4, "a place: rules")
		if text := conditions()[conditionRules+"IPv4"]; !strings.Contains(text, "makes rules beside those of this process, though they were removed: a place: rules; stop it") {
			t.Errorf("condition %q", text)
		}
		time.Sleep(time.Hour)
		o.reportForeignRules(service.IPv4, "")
		if all := conditions(); len(all) > 0 {
			t.Errorf("conditions %q when nobody makes rules", all)
		}
		time.Sleep(time.Hour)
	})
	wantEvents(t, got,
		"Warning OtherServiceProxy node-a node-a: another service proxy programs this node, as it started later: process 7 (kube-proxy)",
		"Normal OtherServiceProxyGone node-a node-a: No other service proxy runs on this node",
		"Warning OtherServiceProxy node-a node-a: another service proxy makes rules beside",
		"Normal OtherServiceProxyGone node-a node-a: No other service proxy runs on this node")
}

// Rules that somebody alters again and again are an Event that names who does.
func TestEventsOfDisputes(t *testing.T) {
	got := recordedEvents(t, func(h *eventReporter) {
		o, conditions := watched(h)
		r := reconcile.Result{Drift: []string{"missing: a rule"}, Suspect: "process 9 (nft)"}
		for r.DriftRounds = 1; !r.Contested(); r.DriftRounds++ {
			o.reportDrift(service.IPv4, r)
		}
		if all := conditions(); len(all) > 0 {
			t.Errorf("conditions %q for single repairs", all)
		}
		o.reportDrift(service.IPv4, r)
		if text := conditions()[conditionDrift+"IPv4"]; !strings.Contains(text, "process 9 (nft)") || !strings.Contains(text, "the latest: missing: a rule") {
			t.Errorf("condition %q", text)
		}
		time.Sleep(5 * time.Minute)
		o.reportDrift(service.IPv4, reconcile.Result{})
		if all := conditions(); len(all) > 0 {
			t.Errorf("conditions %q when it is over", all)
		}
		time.Sleep(5 * time.Minute)
	})
	wantEvents(t, got,
		"Warning RulesAlteredByOthers node-a node-a: The rules of this proxy are altered again and again by process 9 (nft)",
		"Normal RulesNotAlteredAnyMore node-a node-a: The rules of this proxy are not altered any more")
}

// wantEvents wants each of got to begin as one of want does, in this order.
func wantEvents(t *testing.T, got []string, want ...string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || !strings.HasPrefix(got[i], want[i]) {
			t.Fatalf("Events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
