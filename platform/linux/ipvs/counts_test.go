// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"testing"

	"kubeproxy/common/service"
)

// TestTally checks that this mode, too, reports the results of iptables-restore.
func TestTally(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{})
	p, err := b.Plan(t.Context(), service.New(1, &service.Node{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	k.tables.Refuse = func(string) error { return errors.New("refused") }
	if err := p.Apply(t.Context()); err == nil {
		t.Error("a refusal is no error")
	}
	if !b.Tally().Refused {
		t.Error("a refusal is not counted")
	}
	if b.Tally().Refused {
		t.Error("a refusal is counted twice")
	}
	k.tables.Refuse = nil
	if p, err = b.Plan(t.Context(), service.New(2, &service.Node{}, nil)); err == nil {
		err = p.Apply(t.Context())
	}
	if n := b.Tally(); err != nil || n.Refused || n.Written["nat"] == 0 || n.Rules["nat"] == 0 {
		t.Errorf("%v, %+v, want rules in table nat", err, n)
	}
}
