// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// TestCounts counts what rounds write, and what the tables hold after each.
func TestCounts(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	held := func() map[string]int {
		n := map[string]int{}
		for table, chains := range k.Tables {
			for name, rules := range chains {
				if strings.HasPrefix(name, "KUBE-") {
					n[table] += len(rules)
				}
			}
		}
		return n
	}
	round := func(b *Backend, want *service.Snapshot) reconcile.Outcome {
		t.Helper()
		p, err := b.Plan(t.Context(), want)
		switch {
		case err != nil:
			t.Fatal(err)
		case p.Empty():
			return p.Outcome()
		}
		return p.Apply(t.Context())
	}
	check := func(after string, got reconcile.Outcome, written map[string]int) {
		t.Helper()
		if diff := cmp.Diff(&reconcile.Rules{Held: held(), Written: written}, got.Rules); diff != "" || got.Err != nil {
			t.Errorf("after %s: %v (-want +got):\n%s", after, got.Err, diff)
		}
	}
	out := round(b, simple(20))
	first := held()
	written := map[string]int{}
	for _, j := range b.jumps() {
		written[j.from.table]++
	}
	for table, n := range first {
		written[table] += n
	}
	check("the first round", out, written)
	check("one without a change", round(b, simple(20)), map[string]int{nat: 0, filter: 0})

	k.Refuse = func(string) error { return errInjected }
	if got := round(b, simple(21)); got.Err == nil || !got.Rules.Refused || got.Rules.Held != nil {
		t.Errorf("after a refusal: %v, %+v, want it refused and nothing known", got.Err, got.Rules)
	}
	k.Refuse = nil
	check("all in order again", round(b, simple(20)), map[string]int{nat: 0, filter: 0})
	check("rules are adopted", round(newBackend(service.IPv4, k), simple(20)), map[string]int{nat: 0, filter: 0})
}
