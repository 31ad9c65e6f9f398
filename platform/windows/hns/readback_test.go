// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// readBack reads what HNS holds, as another process does.
func (n *suiteNode) readBack(t *rapid.T, want *service.Snapshot) (held, wanted string) {
	writes := n.hns.writes()
	have, would, err := n.Fresh().(*suiteNode).backend.ReadBack(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if d := n.hns.writes() - writes; d > 0 {
		t.Fatalf("to read made %d calls that change HNS", d)
	}
	return have.String(), would.String()
}

// TestReadBack compares what HNS holds with what it should: nothing differs on a node in
// order. What is wanted of another snapshot is what is held once that was applied.
func TestReadBack(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				n := drawSuiteNode(t, generate.Cluster{T: r, Family: f}, false)
				n.Start()
				for generation := range 3 {
					want := service.New(uint64(generation+1), n.draw.Node(), n.draw.Ports())
					n.Heal()
					if generation == 0 { // HNS chooses the address of the source VIP
						n.plan(want).Apply(r.Context())
					}
					_, before := n.readBack(r, want)
					for range 2 {
						n.plan(want).Apply(r.Context())
					}
					held, wanted := n.readBack(r, want)
					if held != wanted || held != before {
						r.Fatalf("held:\n%s\nwanted:\n%s\nwanted before:\n%s", held, wanted, before)
					}
				}
			})
		})
	}
}

// TestReadBackTampered names what another program changed and deleted.
func TestReadBackTampered(t *testing.T) {
	b, want := dsrNode(t)
	objects, _, err := b.backend.ReadBack(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	held := objects.String()
	for id, lb := range b.hns.balancers {
		switch {
		case lb.VIP == addr("10.96.0.10"):
			delete(b.hns.balancers, id)
		case lb.Port == 30080:
			lb.TargetPort = 9090
			b.hns.balancers[id] = lb
		}
	}
	b.restart()
	observed, wanted, err := b.backend.ReadBack(t.Context(), want)
	now := observed.String()
	if err != nil || wanted.String() != held {
		t.Errorf("%v; wanted:\n%s\nheld before:\n%s", err, wanted, held)
	}
	if !strings.Contains(held, "tcp 10.96.0.10:80 ") || strings.Contains(now, "tcp 10.96.0.10:80 ") || !strings.Contains(now, "30080 -> :9090") {
		t.Errorf("held:\n%s\nafter others changed it:\n%s", held, now)
	}
	observed, gone, err := b.backend.ReadBack(t.Context(), snapshot(2))
	if err != nil || !strings.Contains(observed.String(), "# of no Service") || strings.Contains(gone.String(), "loadbalancer") {
		t.Errorf("%v; without Services held:\n%s\nwanted:\n%s", err, observed, gone)
	}
}
