// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// TestKernelIsLiberal checks that nothing is dropped if the kernel accepts packets
// outside of the TCP window, from the next sync on, and that the sync writes only the
// chain in question.
func TestKernelIsLiberal(t *testing.T) {
	k := newFake()
	b := NewWith(service.IPv4, Options{MasqueradeBit: 14, DropInvalid: true}, k)
	for _, k.TCPBeLiberal = range []bool{false, true, true, false} {
		program(t, b)
		if drops := slices.Contains(k.Tables[filter][forwardChain], invalidRule); drops == k.TCPBeLiberal {
			t.Errorf("kernel liberal %t: packets are dropped: %t", k.TCPBeLiberal, drops)
		}
		fresh, err := NewWith(service.IPv4, b.options, k).Plan(t.Context(), simple(3))
		if err != nil || !fresh.Empty() {
			t.Errorf("a new backend finds to do: %v\n%s", err, fresh)
		}
	}
	if k.Restores != 3 {
		t.Errorf("%d restores, want one for the start and one for each turn", k.Restores)
	}
}
