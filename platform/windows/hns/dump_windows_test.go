// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	sim "kubeproxy/test/hns"
)

// ReadState of a dump equals a listing.
func TestDump(t *testing.T) {
	s := startSimulator(t, v15, sim.MixedCase)
	b := newTestNode(t, v15, overlayN)
	b.restartOn(NewDriver())
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b")))
	writes := s.Calls().Writes("")
	text, err := Dump()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadState(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	want, err := NewDriver().List(t.Context(), All)
	if err != nil || len(want.LoadBalancers) != 1 {
		t.Fatalf("%d load balancers, %v", len(want.LoadBalancers), err)
	}
	if diff := cmp.Diff(want, got, sameAddrs); diff != "" || s.Calls().Writes("") != writes {
		t.Errorf("(-listed +dumped):\n%s", diff)
	}
	s.Stop(sim.ServerUnavailable)
	if _, err := Dump(); !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "HNS is not running: Start-Service hns starts it (0x6ba)") {
		t.Errorf("Dump while HNS is down = %v", err)
	}
}

// TestVersionErrors covers the one call whose error code the library reports only as
// text.
func TestVersionErrors(t *testing.T) {
	s := startSimulator(t, v13, sim.MixedCase)
	for code, want := range map[sim.Code]error{sim.ServerUnavailable: ErrNotRunning, sim.GeneralFailure: ErrBusy, 0x80070005: ErrRefused} {
		if err := s.Inject(sim.Fault{Function: "HNSCall", Code: code, Count: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := version(); !errors.Is(err, want) || !strings.Contains(err.Error(), "(0x") {
			t.Errorf("%v becomes %v, want %v", code, err, want)
		}
	}
	if v, err := version(); err != nil || v != v13 {
		t.Errorf("version = %v, %v", v, err)
	}
}
