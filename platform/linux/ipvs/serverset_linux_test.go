// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"
	"os/exec"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// TestAlteredServedSet checks that a set of virtual servers that another process swapped
// for a smaller one counts as missing, and is created again.
func TestAlteredServedSet(t *testing.T) {
	if _, err := exec.LookPath("ipset"); err != nil {
		t.Skipf("needs the command: %v", err)
	}
	netlab.InNamespace(t, func() {
		k := &kernel{family: service.IPv4}
		addr := netip.MustParseAddr("192.0.2.1")
		wantSets := func(want bool) {
			t.Helper()
			s := &state{}
			if err := k.readSets(s); err != nil || s.hasSets != want || !s.addrSet[addr] {
				t.Errorf("sets there %t with addresses %v, %v; want %t", s.hasSets, s.addrSet, err, want)
			}
		}
		do := func(v verb) {
			t.Helper()
			err := k.applySetOp(&op{verb: v, route: localRoute{addr: addr}})
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		do(addSets)
		do(addAddrToSet)
		wantSets(true)
		served := setOf(k.family, virtualServerSet)
		for _, args := range [][]string{
			{"create", "OTHER", string(served.Type), "comment", "maxelem", "9"}, {"swap", "OTHER", served.Name}, {"destroy", "OTHER"},
		} {
			if out, err := exec.Command("ipset", args...).CombinedOutput(); err != nil {
				t.Fatalf("ipset %v: %v\n%s", args, err, out)
			}
		}
		wantSets(false)
		do(addSets)
		wantSets(true)
		_ = k.sets.Close()
	})
}
