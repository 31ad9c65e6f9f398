// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// TestTally counts what syncs write, and what the tables hold after each.
func TestTally(t *testing.T) {
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
	check := func(after string, want Tally) {
		t.Helper()
		if want.Rules == nil {
			want.Rules = held()
		}
		if diff := cmp.Diff(want, b.Tally()); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", after, diff)
		}
	}
	apply(t, b, simple(20))
	first := held()
	written := map[string]int{}
	for _, j := range b.jumps() {
		written[j.from.table]++
	}
	for table, n := range first {
		written[table] += n
	}
	check("the first round", Tally{Written: written})
	apply(t, b, simple(20))
	check("one without a change", Tally{Written: map[string]int{nat: 0, filter: 0}})

	k.Refuse = func(string) error { return errInjected }
	p, err := b.Plan(context.Background(), simple(21))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(context.Background()); err == nil {
		t.Error("a refusal is no error")
	}
	if got := b.Tally(); !got.Refused || got.Rules != nil {
		t.Errorf("after a refusal: %+v, want it refused and nothing known", got)
	}
	k.Refuse = nil
	apply(t, b, simple(20))
	check("all in order again", Tally{Written: map[string]int{nat: 0, filter: 0}})
	other := newBackend(service.IPv4, k)
	apply(t, other, simple(20))
	if diff := cmp.Diff(first, other.Tally().Rules); diff != "" {
		t.Errorf("what is adopted (-want +got):\n%s", diff)
	}
}
