// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package generate

import (
	"context"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// fatalT is a test, including those of rapid.
type fatalT interface{ Fatalf(string, ...any) }

// Plan returns a plan of b, which must succeed.
func Plan(t fatalT, b reconcile.Backend, want *service.Snapshot) reconcile.Plan {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	return p
}

// Text prints p, which is nil if there is none.
func Text(p reconcile.Plan) string {
	if p == nil {
		return ""
	}
	return p.Changes().String()
}

// Apply runs one round of b that must succeed, and returns its plan, which may have been
// empty.
func Apply(t fatalT, b reconcile.Backend, want *service.Snapshot) reconcile.Plan {
	p := Plan(t, b, want)
	if p.Empty() {
		return p
	}
	if err := p.Apply(context.Background()).Err; err != nil {
		t.Fatalf("Apply: %v\n%s", err, p.Changes())
	}
	return p
}

// RequireNoChange requires that b, which has no state yet, finds nothing to do.
func RequireNoChange(t fatalT, b reconcile.Backend, want *service.Snapshot) {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan of a new backend: %v", err)
	}
	if !p.Empty() {
		t.Fatalf("a new backend would change what is there:\n%s", p.Changes())
	}
}
