// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawTable draws endpoints of which a table has room for, and their table.
func drawTable(t *rapid.T, most int) (list []Endpoint, slots uint16) {
	slots = uint16(rapid.SampledFrom([]int{MinSlots, DefaultSlots, 4093}).Draw(t, "slots"))
	n := rapid.IntRange(1, min(most, int(slots)/SlotShare)).Draw(t, "endpoints")
	for _, i := range rapid.SliceOfNDistinct(rapid.Uint32(), n, n, rapid.ID[uint32]).Draw(t, "addresses") {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		if i%2 == 1 {
			a = netip.AddrFrom16([16]byte{0xfd, 15: byte(i)})
		}
		list = append(list, Endpoint{Addr: netip.AddrPortFrom(a, uint16(i>>16)|1)})
	}
	slices.SortFunc(list, func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(list, func(a, b Endpoint) bool { return a.Addr == b.Addr }), slots
}

// TestTable has each endpoint get slots, and none too many.
func TestTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, slots := drawTable(t, 100)
		n := len(list)
		load := make([]int, n)
		for _, i := range Table(list, slots) {
			load[i]++
		}
		share := float64(slots) / float64(n)
		least, most := slices.Min(load), float64(slices.Max(load))
		if least == 0 || most > share+1+min(float64(slots)/100, share/4) || len(Table(list, slots)) != int(slots) {
			t.Fatalf("%d endpoints have %d to %.0f of %d slots", n, least, most, slots)
		}
	})
	if got := Table(nil, DefaultSlots); got != nil {
		t.Errorf("no endpoint: %v", got)
	}
}

// TestTableMovesLittle has each of the endpoints leave. On average over these, a hundredth more than
// its own slots change at most, and in one case 4 %, or 2 % of 4093.
func TestTableMovesLittle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list, slots := drawTable(t, 20)
		n := len(list)
		before := Table(list, slots)
		sum, worst := 0, 0
		for gone := range list {
			moved := 0
			for s, i := range Table(slices.Delete(slices.Clone(list), gone, gone+1), slots) {
				if int(i) >= gone {
					i++
				}
				if i != before[s] {
					moved++
				}
			}
			sum, worst = sum+moved, max(worst, moved)
		}
		mean := float64(sum) / float64(n*int(slots))
		one := float64(worst) / float64(slots)
		most := map[uint16][2]float64{MinSlots: {0.07, 0.12}, DefaultSlots: {0.02, 0.045}, 4093: {0.01, 0.02}}[slots]
		if fair := 1 / float64(n); n > 1 && (mean > fair+most[0] || one > fair+most[1]) {
			t.Fatalf("%d slots: one of %d leaves, and %.4f of the slots change, in one case %.4f", slots, n, mean, one)
		}
	})
}

// TestTableIsFixed pins a table: nodes of all versions have to agree.
func TestTableIsFixed(t *testing.T) {
	var list []Endpoint
	for _, a := range []string{"10.244.1.11:8080", "10.244.1.12:8080", "[fd00:10:244::1]:8080"} {
		list = append(list, Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	if got := fmt.Sprint(Table(list, MinSlots)[:20]); got != "[0 2 2 0 1 2 1 2 2 2 1 2 2 1 1 0 1 1 1 0]" {
		t.Errorf("the table begins with %s", got)
	}
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{3, 100} {
		var list []Endpoint
		for i := range n {
			list = append(list, Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, byte(i)}), 8080)})
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				Table(list, DefaultSlots)
			}
		})
	}
}
