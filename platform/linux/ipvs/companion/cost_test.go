// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// TestChangeCostsWhatItChanges counts the requests for a change of one Service among
// 1,000.
func TestChangeCostsWhatItChanges(t *testing.T) {
	n := newNode(t, service.IPv4)
	var ports []*service.Port
	for i := range 1000 {
		ports = append(ports, web(i))
	}
	b, s := n.start(service.IPv4), snapshot(ports...)
	apply(t, b, s)
	more := *ports[7]
	more.Cluster = append(more.Cluster[:1:1], service.Endpoint{Addr: ports[7].Cluster[0].Addr, Remote: true})
	local := *ports[7]
	local.External, local.Local = service.PolicyLocal, ports[7].Cluster
	for _, x := range []struct {
		name     string
		change   service.Change
		steps    map[string]int
		restores int
	}{
		{"an endpoint comes", service.Change{Old: ports[7], New: &more}, nil, 0},
		{"its endpoints go", service.Change{Old: &more, New: withoutEndpoints(7)}, map[string]int{"add": 2, "del": 1}, 0},
		{"they come back", service.Change{Old: withoutEndpoints(7), New: ports[7]}, map[string]int{"add": 1, "del": 2}, 0},
		{"it becomes local", service.Change{Old: ports[7], New: &local}, map[string]int{"add": 2, "del": 1}, 1},
		{"it goes", service.Change{Old: &local}, map[string]int{"del": 5}, 1},
		{"it comes", service.Change{New: ports[7]}, map[string]int{"add": 4}, 0},
	} {
		s = s.With(s.Generation+1, s.Node, []service.Change{x.change})
		steps := maps.Clone(x.steps)
		restores := n.tables.Restores
		clear(n.sets.Steps)
		apply(t, b, s)
		if n.sets.Steps["heads"] > 0 && x.steps == nil {
			t.Errorf("%s: all sets of the node were asked for", x.name)
		}
		delete(n.sets.Steps, "heads") // its cost depends on the number of sets
		if steps == nil {
			steps = map[string]int{}
		}
		if diff := cmp.Diff(steps, n.sets.Steps); diff != "" {
			t.Errorf("%s: steps (-want +got):\n%s", x.name, diff)
		}
		if got := n.tables.Restores - restores; got != x.restores {
			t.Errorf("%s: tables were written %d times, want %d", x.name, got, x.restores)
		}
	}
}

// TestSetsAreReadOnceInASyncPeriod checks that all sets are read once per sync period.
func TestSetsAreReadOnceInASyncPeriod(t *testing.T) {
	n := newNode(t, service.IPv4)
	b, want := n.start(service.IPv4), snapshot(web(1))
	apply(t, b, want)
	for range 5 {
		clear(n.sets.Steps)
		if planOf(t, b, want); n.sets.Steps["list"] > 0 {
			t.Errorf("%d sets were read", n.sets.Steps["list"])
		}
	}
	n.clock = n.clock.Add(resync)
	if planOf(t, b, want); n.sets.Steps["list"] != len(setNames) {
		t.Errorf("%d sets were read, want %d", n.sets.Steps["list"], len(setNames))
	}
}
