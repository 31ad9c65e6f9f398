// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"
	"testing"
)

// TestRuleAheadIsNoticed checks for each variant that a rule ahead of ours that lets all
// packets pass is noticed, and that a rule that matches less moves nothing.
func TestRuleAheadIsNoticed(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		want := simple(3)
		for _, rule := range []string{"-j ACCEPT", "-p tcp -j RETURN", "-m comment --comment all -j ACCEPT", "-p tcp -j REDIRECT --to-ports 99"} {
			apply(t, b, want)
			poll(func() bool {
				touched(t, b)
				return !isLegacy(b) || b.driver.(*runner).monitor.(*legacyMonitor).sumValid
			})
			runCommand(t, b, "-t nat -I PREROUTING 1 "+rule)
			if !poll(func() bool { return touched(t, b) }) {
				t.Fatalf("%q is not noticed", rule)
			}
			if p := apply(t, b, want); len(p.Outcome().Drift) != 1 || !strings.Contains(p.Outcome().Drift[0], "hidden") {
				t.Errorf("%q: drift %q, want one line", rule, p.Outcome().Drift)
			}
			if p := apply(t, b, want); !p.Empty() {
				t.Errorf("%q: not settled:\n%s", rule, p.Changes())
			}
		}
		runCommand(t, b, "-t nat -I PREROUTING 1 -p tcp -i nobody0 -j ACCEPT")
		runCommand(t, b, "-t nat -I PREROUTING 1 -p icmp -j ACCEPT")
		if p := apply(t, b, want); !p.Empty() {
			t.Errorf("rules of others have something changed:\n%s", p.Changes())
		}
	})
}
