// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// needed are remains that connections need for a while.
type needed struct {
	leftRules
	until time.Time
	since []time.Time // that Retire was told
	fail  error       // of the next call
}

func (n *needed) Retire(_ context.Context, since time.Time) (string, error) {
	n.since = append(n.since, since)
	if err := n.fail; err != nil {
		n.fail = nil
		return "", err
	}
	if time.Now().Before(n.until) {
		return "one connection", nil
	}
	n.what = ""
	return "", nil
}

// TestRetirement keeps what connections need until they end, shows that, and
// asks for a round both when it begins and when it is over.
func TestRetirement(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fail  error
		lasts time.Duration
		done  int
	}{{"none", nil, 0, 1}, {"for a while", nil, time.Minute, 2}, {"it fails at first", errSystemTest, time.Minute, 2}} {
		t.Run(tt.name, func(t *testing.T) {
			n := &needed{leftRules: leftRules{what: "virtual servers"}, fail: tt.fail}
			takingOverAll(t, []place{{remains: n}}, &auditor{}, func(s *story) {
				began := time.Now()
				n.until = began.Add(tt.lasts)
				s.after(0, nil)
				pass(2 * time.Minute)
				if s.done != tt.done || n.what != "" || len(s.places) > 0 {
					t.Errorf("done %d times, left %q in %d places; want %d times", s.done, n.what, len(s.places), tt.done)
				}
				if shown := strings.Join(s.shown, "\n"); tt.lasts > 0 != strings.Contains(shown, "stays for those that it has: one connection") || s.shown[len(s.shown)-1] != "" {
					t.Errorf("conditions %q", s.shown)
				}
				if text := s.errors.String(); strings.Count(text, "takes no new connections from now on") != tt.done-1 || strings.Count(text, "Removed what") != 1 {
					t.Errorf("log:\n%s", text)
				}
				if last := n.since[len(n.since)-1]; tt.lasts > 0 && (!n.since[0].IsZero() || last.IsZero() || last.Sub(began) > 2*time.Second) {
					t.Errorf("it was told that it began at %v", n.since)
				}
			})
		})
	}
}
