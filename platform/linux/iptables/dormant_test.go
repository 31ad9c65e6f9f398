// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// locked is a system whose dormant tables cannot be changed.
type locked struct{ *fake }

func (locked) Activate(string) error { return errors.New("operation not permitted") }

// TestDormantTableOfAnother checks that a dormant table that cannot be changed makes
// each sync fail, with a command that might help, while everything else is programmed.
func TestDormantTableOfAnother(t *testing.T) {
	k := newFake()
	k.DormantTables = []string{nat}
	b := NewWith(service.IPv6, Options{MasqueradeBit: 14}, locked{k})
	for range 2 {
		p, err := b.Plan(t.Context(), simple(3))
		if err != nil || p.Empty() || !strings.Contains(p.Changes().String(), "~ nat table: active") {
			t.Fatalf("plan %v, %v, want one that activates table nat", p, err)
		}
		err = p.Apply(t.Context()).Err
		if err == nil || !strings.Contains(err.Error(), "nft add table ip6 nat") {
			t.Errorf("error %v, want one with a command", err)
		}
	}
	if !slices.Contains(k.Tables[nat]["PREROUTING"], "-j KUBE-SERVICES") {
		t.Errorf("rules are missing:\n%s", k.Text())
	}
}
