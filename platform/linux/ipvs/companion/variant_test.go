// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"context"
	"errors"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// variant contains chains of ours, and refuses to remove them several times.
type variant struct{ chains, refusals, asked int }

func (v *variant) Find(context.Context) (string, error) {
	v.asked++
	if v.chains == 0 {
		return "", nil
	}
	return "chains", nil
}

func (v *variant) Remove(context.Context) error {
	if v.refusals > 0 {
		v.refusals--
		return errors.New("it is busy")
	}
	v.chains = 0
	return nil
}

// TestOtherVariant starts with chains in the other variant of iptables. They are removed
// when those of this variant are in force, and not searched for after that.
func TestOtherVariant(t *testing.T) {
	n := newNode(t, service.IPv4)
	want := snapshot(web(1))
	apply(t, n.start(service.IPv4), want) // everything else is present
	b, v := n.start(service.IPv4), &variant{chains: 3, refusals: 1}
	b.otherVariant = v
	p := planOf(t, b, want)
	if p.Empty() || !strings.Contains(p.Changes().String(), "- chains, of the other variant") {
		t.Fatalf("the plan is empty: %t\n%s", p.Empty(), p.Changes())
	}
	if err := p.Apply(t.Context()).Err; err == nil || v.chains == 0 {
		t.Errorf("Apply says %v though chains were not removed", err)
	}
	apply(t, b, want)
	if asked := v.asked; v.chains != 0 || !planOf(t, b, want).Empty() || v.asked != asked {
		t.Errorf("%d chains are left, and they were looked for %d times, then %d", v.chains, asked, v.asked)
	}
}
