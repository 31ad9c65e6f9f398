// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"strings"
	"testing"
	"time"
)

// drainingLeftovers are leftovers that connections need for a while.
type drainingLeftovers struct {
	fakeLeftovers
	until time.Time
	since []time.Time // the arguments of Drain
	fail  error       // of the next call
}

func (d *drainingLeftovers) Drain(_ context.Context, since time.Time) (string, error) {
	d.since = append(d.since, since)
	if err := d.fail; err != nil {
		d.fail = nil
		return "", err
	}
	if time.Now().Before(d.until) {
		return "one connection", nil
	}
	d.what = ""
	return "", nil
}

// TestDraining checks that what connections need stays until they end, that a condition
// shows it, and that a round is requested at the start and at the end of the drain.
func TestDraining(t *testing.T) {
	for _, tt := range []struct {
		name     string
		fail     error
		duration time.Duration
		done     int
	}{{"none", nil, 0, 1}, {"for a while", nil, time.Minute, 2}, {"it fails at first", errSystemTest, time.Minute, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			n := &drainingLeftovers{fakeLeftovers: fakeLeftovers{what: "virtual servers"}, fail: tt.fail}
			runTakeovers(t, []Target{{Leftovers: n}}, &fakeAuditor{}, func(s *takeoverTest) {
				began := time.Now()
				n.until = began.Add(tt.duration)
				s.after(0, nil)
				advance(2 * time.Minute)
				if s.done != tt.done || n.what != "" || len(s.targets) > 0 {
					t.Errorf("done %d times, left %q in %d places; want %d times", s.done, n.what, len(s.targets), tt.done)
				}
				if conditions := strings.Join(s.conditions, "\n"); tt.duration > 0 != strings.Contains(conditions, "stays until its connections end: one connection") || s.conditions[len(s.conditions)-1] != "" {
					t.Errorf("conditions %q", s.conditions)
				}
				if text := s.logText.String(); strings.Count(text, "takes no new connections from now on") != tt.done-1 || strings.Count(text, "Removed what") != 1 {
					t.Errorf("log:\n%s", text)
				}
				if last := n.since[len(n.since)-1]; tt.duration > 0 && (!n.since[0].IsZero() || last.IsZero() || last.Sub(began) > 2*time.Second) {
					t.Errorf("it was reported that it began at %v", n.since)
				}
			})
		})
	}
}
