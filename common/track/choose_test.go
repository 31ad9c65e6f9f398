// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// TestFillReusesLists checks that the lists of a Port do not depend on whether those of
// the Port before were reused.
func TestFillReusesLists(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	again := 0
	for range 2000 {
		s := drawPorts(r)
		x := indexOf(s)
		var shared chooser
		for _, p := range s.want {
			from := slices.Clone(x.of(p))
			if shared.reusable(p, from) {
				again++
			}
			var fresh chooser
			over, want := shared.fill(p, from, true), fresh.fill(p, from, true)
			if over != want || !slices.Equal(shared.cluster, fresh.cluster) || !slices.Equal(shared.local, fresh.local) ||
				!slices.Equal(shared.draining, fresh.draining) || !slices.Equal(shared.listed, fresh.listed) {
				t.Fatalf("%v: %+v, want %+v", p, shared, fresh)
			}
		}
		few := index{slices: s.slices}
		for _, p := range s.want {
			if got, want := few.of(p), x.of(p); !slices.Equal(got, want) {
				t.Fatalf("%v is in %v, want %v", p, got, want)
			}
		}
	}
	if again < 1000 {
		t.Errorf("lists were used again %d times only", again)
	}
}

// drawPorts returns a Service of many Ports. Most of them have the same number in all its
// slices.
func drawPorts(r *rand.Rand) *serviceState {
	s := &serviceState{}
	policies, protocols := []service.Policy{service.PolicyCluster, service.PolicyLocal}, []service.Protocol{service.TCP, service.UDP}
	for i := range 12 {
		s.want = append(s.want, &service.Port{
			Name:     service.PortName{Name: "web", Port: fmt.Sprint(i), Protocol: protocols[r.IntN(8)/7]},
			Internal: policies[r.IntN(8)/7],
			External: policies[r.IntN(2)],
		})
	}
	for i := range 1 + r.IntN(3) {
		k := &sliceLayout{}
		for _, p := range s.want {
			if n := r.IntN(20); n > 0 {
				k.ports = append(k.ports, targetPort{p.Name.Port, uint16(80 + 1/n), p.Name.Protocol})
			}
		}
		from := &slice{sliceLayout: k}
		for range r.IntN(6) {
			from.addrs = append(from.addrs, 10, 244, byte(i/2), byte(r.IntN(9)))
			from.endpoints = append(from.endpoints, endpoint{state: state(r.IntN(32))})
		}
		s.slices = append(s.slices, from)
	}
	return s
}
