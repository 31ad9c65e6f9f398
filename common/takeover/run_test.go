// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sharedLeftovers are leftovers that a test changes while a takeover runs.
type sharedLeftovers struct {
	mu   sync.Mutex
	fake fakeLeftovers
}

func (l *sharedLeftovers) String() string { return l.fake.String() }

func (l *sharedLeftovers) Find(ctx context.Context) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fake.Find(ctx)
}

func (l *sharedLeftovers) Remove(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fake.Remove(ctx)
}

// set says what is there.
func (l *sharedLeftovers) set(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fake.what = what
}

// state returns what is there, and how often it was removed.
func (l *sharedLeftovers) state() (what string, removed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fake.what, l.fake.removed
}

// runReappearing runs do beside a takeover that goes on, and returns what reappeared and
// when, in minutes.
func runReappearing(t *testing.T, left *sharedLeftovers, do func(*takeoverTest)) []string {
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
	left := &sharedLeftovers{}
	got := runReappearing(t, left, func(*takeoverTest) {
		advance(90 * time.Second)
		for range 48 {
			left.set("rules")
			advance(time.Minute)
		}
		if what, removed := left.state(); removed != 6 || what != "rules" {
			t.Errorf("removed %d times, want 6, and %q is there", removed, what)
		}
		advance(16 * time.Minute)
		left.set("")
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
	left := &sharedLeftovers{}
	got := runReappearing(t, left, func(s *takeoverTest) {
		advance(time.Second)
		s.Standby()
		left.set("rules")
		advance(time.Second)
		if _, removed := left.state(); removed > 0 {
			t.Error("removed while another process had the node")
		}
		s.after(0, nil)
		advance(time.Second)
		if _, removed := left.state(); removed != 1 {
			t.Errorf("removed %d times, want once", removed)
		}
	})
	if len(got) > 0 {
		t.Errorf("reported as foreign: %q", got)
	}
}
