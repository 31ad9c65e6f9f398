// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// TestSharedElementStays checks that an element of two ports of a Service stays while
// one of them needs it.
func TestSharedElementStays(t *testing.T) {
	n := newNode(t, service.IPv4)
	one, two := web(1), web(1)
	two.Name.Port = "admin"
	two.Frontends = []service.Frontend{{Addr: one.Frontends[0].Addr, Port: 8080}}
	b, s := n.start(service.IPv4), snapshot(one, two)
	apply(t, b, s)
	for _, x := range []struct {
		goes *service.Port
		want string
	}{{two, "10.96.0.1 203.0.0.1"}, {one, ""}} {
		s = s.With(s.Generation+1, s.Node, []service.Change{{Old: x.goes}})
		apply(t, b, s)
		if got := strings.Join(n.held(virtualIPSet), " "); got != x.want {
			t.Errorf("the addresses are %q, want %q", got, x.want)
		}
	}
}

// TestSetGoesAsItIsRead destroys a set between two requests about it.
func TestSetGoesAsItIsRead(t *testing.T) {
	n := newNode(t, service.IPv4)
	want := snapshot(web(1))
	apply(t, n.start(service.IPv4), want)
	before := n.sets.Text()
	n.sets.Refuse = func(step, set string) error {
		if step == "list" && set == "KUBE-VS-EXTERNAL" {
			n.flush()
			delete(n.sets.ByName, set)
		}
		return nil
	}
	apply(t, n.start(service.IPv4), want)
	if n.sets.Text() != before {
		t.Errorf("there is\n%s\nwant\n%s", n.sets.Text(), before)
	}
}
