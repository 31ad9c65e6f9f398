// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// comment returns the comment of the only element of a set.
func (n *node) comment(t *testing.T, set string) string {
	t.Helper()
	h := n.sets.ByName[setName(service.IPv4, set)]
	if len(h.Members) != 1 {
		t.Fatalf("%s has the elements %v, want one", set, h.Members)
	}
	for _, comment := range h.Members {
		return comment
	}
	return ""
}

// TestCommentFollowsAddress checks that the comments of elements name a Service that
// needs them: after an address has passed to another Service, after one of two Services
// that share it has left, and after a restart. The element stays meanwhile.
func TestCommentFollowsAddress(t *testing.T) {
	first, second, sharing := web(1), web(2), web(3)
	second.Frontends = slices.Clone(first.Frontends)
	sharing.Frontends = slices.Clone(first.Frontends)
	sharing.Frontends[0].Port, sharing.Frontends[1].Port = 8080, 8080
	moves := snapshot(second)
	for name, x := range map[string]struct {
		from, next *service.Snapshot
		set, want  string
	}{
		"passes on":           {snapshot(first), moves, externalSet, "shop/web-2"},
		"passes on, all":      {snapshot(first), moves, clusterIPSet, "shop/web-2"},
		"shared, first left":  {snapshot(first, sharing), snapshot(sharing), clusterIPSet, "shop/web-3"},
		"shared, second left": {snapshot(first, sharing), snapshot(first), clusterIPSet, "shop/web-1"},
	} {
		for _, restart := range []bool{false, true} {
			n := newNode(t, service.IPv4)
			b := n.start(service.IPv4)
			apply(t, b, x.from)
			if restart {
				b = n.start(service.IPv4)
			}
			n.sets.Refuse = func(step, set string) error {
				if step == "del" && set == setName(service.IPv4, x.set) {
					t.Errorf("%s, restart %t: an element of %s was deleted", name, restart, set)
				}
				return nil
			}
			if drift := apply(t, b, x.next).Outcome().Drift; len(drift) > 0 {
				t.Errorf("%s, restart %t: drift that nobody made: %q", name, restart, drift)
			}
			if got := n.comment(t, x.set); got != x.want {
				t.Errorf("%s, restart %t: the comment is %q, want %q", name, restart, got, x.want)
			}
			if p := planOf(t, b, x.next); !p.Empty() {
				t.Errorf("%s, restart %t: still to do:\n%s", name, restart, p.Changes())
			}
		}
	}
}

// TestForeignCommentIsDrift checks that a comment that another process changed is
// reported and set again.
func TestForeignCommentIsDrift(t *testing.T) {
	n := newNode(t, service.IPv4)
	b, s := n.start(service.IPv4), snapshot(web(1))
	apply(t, b, s)
	external := n.sets.ByName[setName(service.IPv4, externalSet)].Members
	for e := range external {
		external[e] = "mine"
	}
	n.clock = n.clock.Add(resync)
	if drift := apply(t, b, s).Outcome().Drift; len(drift) != 1 || drift[0] != "altered: element 203.0.0.1,tcp:80 of ipset KUBE-VS-EXTERNAL" {
		t.Errorf("the drift is %q", drift)
	}
	if got := n.comment(t, externalSet); got != "shop/web-1" {
		t.Errorf("the comment is %q", got)
	}
}
