// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"

	"kubeproxy/common/service"
)

// While the kernel accepts packets outside of the TCP window, the backend removes the
// drop rule and its chain at the next sync.
func TestKernelIsLiberal(t *testing.T) {
	k := &fake{family: service.IPv4}
	b := &Backend{family: service.IPv4, options: Options{MasqueradeBit: 14, DropInvalid: true}, driver: k}
	want := simple(3)
	for i, liberal := range []bool{false, true, true, false} {
		k.liberal = liberal
		apply(t, b, want)
		if drops := k.table.chains["forward"] != nil; drops == liberal {
			t.Errorf("kernel liberal %t: packets are dropped: %t", liberal, drops)
		}
		if plan := planWith(t, k, b.options, want); plan != "" {
			t.Errorf("round %d: a new backend finds to do:\n%s", i, plan)
		}
	}
	if k.reads != 1+4 {
		t.Errorf("the table was read %d times by the same backend, want once", k.reads-4)
	}
}

func planWith(t *testing.T, k *fake, o Options, want *service.Snapshot) string {
	t.Helper()
	p, err := (&Backend{family: k.family, options: o, driver: k}).Plan(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return p.Changes().String()
}
