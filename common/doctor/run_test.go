// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func check(name string, seen Seen, err error) Check {
	return Check{name, func(context.Context) (Seen, error) { return seen, err }}
}

// TestRun checks that results have the order of the checks, findings that of their
// weight, and that a check which fails or hangs stops no other.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		risk, blocks := Finding{Topic: ReversePathFilter, What: "a"}, Finding{Topic: ConntrackFull, What: "b"}
		forward := func(subject, what string) Finding { return Finding{Topic: IPForward, Subject: subject, What: what} }
		hangs := make(chan struct{})
		defer close(hangs)
		r := Runner{Timeout: 30 * time.Second, Patience: 2 * time.Second, Checks: []Check{
			check("first", Seen{Findings: []Finding{risk, blocks}, Note: "all"}, nil),
			{"hanging", func(context.Context) (Seen, error) { <-hangs; return Seen{}, nil }},
			check("absent", NothingToSee("no %s", "bridge"), nil),
			check("failing", Seen{}, errors.New("read\nit: denied")),
			check("node", Seen{Findings: []Finding{forward("v6", "of the node"), forward("v4", "of the node")}}, nil),
			check("proxy", Seen{Findings: []Finding{forward("v4", "of the proxy")}}, nil),
			check("good", Seen{}, nil),
		}}
		results, found := r.Run(t.Context())
		want := []CheckResult{
			{"first", Found, "all"}, {"hanging", Failed, "no answer within 30s"}, {"absent", Skipped, "no bridge"}, {"failing", Failed, "read it: denied"},
			{"node", Found, ""}, {"proxy", Found, ""}, {"good", OK, ""},
		}
		if diff := cmp.Diff(want, results); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]Finding{forward("v4", "of the node"), forward("v6", "of the node"), blocks, risk}, found); diff != "" {
			t.Errorf("findings (-want +got):\n%s", diff)
		}
		for code, r := range map[int]Report{0: {Checks: results[6:]}, 1: {Checks: results[4:], Findings: found}, 2: {Checks: results, Findings: found}} {
			if got := r.ExitCode(); got != code {
				t.Errorf("exit code %d, want %d", got, code)
			}
		}
	})
}

// TestProgress checks that only a long run says what it waits for.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for took, want := range map[time.Duration][]string{
			time.Second:     nil,
			5 * time.Second: {"1 of 2 checks done, still looking at: slow", "1 of 2 checks done, still looking at: slow"},
		} {
			var said []string
			r := Runner{Timeout: time.Minute, Patience: 2 * time.Second, Progress: func(s string) { said = append(said, s) }, Checks: []Check{
				check("quick", Seen{}, nil),
				{"slow", func(ctx context.Context) (Seen, error) {
					select {
					case <-time.After(took):
					case <-ctx.Done():
					}
					return Seen{}, nil
				}},
			}}
			r.Run(t.Context())
			if diff := cmp.Diff(want, said); diff != "" {
				t.Errorf("%s (-want +got):\n%s", took, diff)
			}
		}
	})
}
