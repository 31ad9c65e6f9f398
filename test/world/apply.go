// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Apply does one round of b that must work, and returns its plan, which may have
// been empty.
func Apply(t interface{ Fatalf(string, ...any) }, b reconcile.Backend, want *service.Snapshot) reconcile.Plan {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if p.Empty() {
		return p
	}
	if err := p.Apply(context.Background()); err != nil {
		t.Fatalf("Apply: %v\n%s", err, p)
	}
	return p
}
