// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// runReappearing runs do beside a takeover that goes on, and returns what reappeared and
// when, in minutes.
func runReappearing(t *testing.T, left *fakeLeftovers, do func(*takeoverTest)) []string {
	t.Helper()
	var seen []string
	runTakeovers(t, []Target{{Leftovers: left}}, &fakeAuditor{}, func(s *takeoverTest) {
		s.after(0, nil)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			s.Run(ctx)
			close(ended)
		}()
		do(s)
		cancel()
		<-ended
		seen = s.foreign
	})
	return seen
}

// TestRulesReappear has another program add rules again and again. They are removed at
// growing intervals, and reported until nobody adds them.
func TestRulesReappear(t *testing.T) {
	left := &fakeLeftovers{}
	got := runReappearing(t, left, func(*takeoverTest) {
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

// TestLeftByAnotherHolder checks that rules of a process that had the node for a while
// are not reported as foreign.
func TestLeftByAnotherHolder(t *testing.T) {
	left := &fakeLeftovers{}
	got := runReappearing(t, left, func(s *takeoverTest) {
		advance(time.Second)
		s.Standby()
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
		t.Errorf("reported as foreign: %q", got)
	}
}
