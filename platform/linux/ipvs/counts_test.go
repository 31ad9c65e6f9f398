// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// TestCounts checks that this mode, too, reports the results of iptables-restore.
func TestCounts(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{})
	round := func(generation uint64) reconcile.Outcome {
		p, err := b.Plan(t.Context(), service.New(generation, &service.Node{}, nil))
		if err != nil {
			t.Fatal(err)
		}
		return p.Apply(t.Context())
	}
	k.tables.Refuse = func(string) error { return errors.New("refused") }
	if out := round(1); out.Err == nil || !out.Rules.Refused {
		t.Errorf("after a refusal: %v, %+v", out.Err, out.Rules)
	}
	k.tables.Refuse = nil
	if out := round(2); out.Err != nil || out.Rules.Refused || out.Rules.Written["nat"] == 0 || out.Rules.Held["nat"] == 0 {
		t.Errorf("%v, %+v, want rules in table nat", out.Err, out.Rules)
	}
}
