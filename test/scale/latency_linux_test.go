// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"net/netip"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/nftmonitor"
)

func TestDelays(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	address := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 128, 0, last}) }
	var a ProgrammingLatency
	for _, n := range []nftmonitor.Event{
		{At: at(3), Kind: nftmonitor.NewElement, Data: []byte{1, 10, 128, 0, 1, 10}},
		{At: at(4), Kind: nftmonitor.NewElement, Data: []byte{10, 10, 128, 0, 3}},
		{At: at(4), Kind: nftmonitor.DeletedElement, Data: []byte{10, 128, 0, 4}}, // left
		{At: at(5), Kind: nftmonitor.NewElement, Data: []byte{10, 128, 0, 1}},     // again
		{At: at(6), Kind: nftmonitor.Commit, Data: []byte{10, 128, 0, 4}},
	} {
		a.Observe(n)
	}
	writes := []Write{
		{at(0), "one", address(1)},
		{at(1), "two", address(2)}, // passed over
		{at(2), "two", address(3)},
		{at(2), "three", address(4)},
	}
	want := []time.Duration{2 * time.Second, 3 * time.Second, 3 * time.Second}
	kit.Same(t, "Delays, latest write first (-want +got)", want, a.Delays(writes))
	got := a.Missing(writes)
	kit.Check(t, got == 1, "Missing = %d, want 1", got)
	if got := a.LastCommit(); !got.Equal(at(6)) {
		t.Errorf("LastCommit = %s, want %s", got, at(6))
	}
}

func TestPercentilesOf(t *testing.T) {
	var values []time.Duration
	for i := 100; i >= 0; i-- {
		values = append(values, time.Duration(i)*time.Millisecond)
	}
	want := Percentiles{50 * time.Millisecond, 90 * time.Millisecond, 99 * time.Millisecond, 100 * time.Millisecond}
	kit.Equal(t, PercentilesOf(values), want, "SpreadOf")
	kit.Equal(t, PercentilesOf(nil), (Percentiles{}), "SpreadOf(nothing)")
}
