// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/service"
)

func portsOf(s *service.Snapshot, f service.Family) []*service.Port {
	var all []*service.Port
	for p := range s.Ports(f) {
		all = append(all, p)
	}
	return all
}

// applyMayFail runs one sync that may fail.
func applyMayFail(t *rapid.T, b *Backend, want *service.Snapshot) {
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	if p.Empty() {
		return
	}
	if err := p.Apply(context.Background()).Err; err != nil && !errors.Is(err, errInjected) && !errors.Is(err, errExists) && !errors.Is(err, errMissing) {
		t.Fatalf("Apply: %v\n%s", err, p.Changes())
	}
}

// applyUntilDrained runs clean syncs until all draining destinations are gone.
func applyUntilDrained(t fataler, b *Backend, k *fake, want *service.Snapshot) {
	for range 2 {
		for _, s := range k.servers {
			for a, x := range s.dests {
				x.conns = 0
				s.dests[a] = x
			}
		}
		k.clock = k.clock.Add(time.Minute)
		apply(t, b, want)
	}
}
