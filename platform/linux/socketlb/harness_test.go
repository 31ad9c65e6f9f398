// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// TestSuites runs two of the three suites. There is no rehearsal, because a plan names the
// lists that change, and the kernel sees stores into memory. TestPlanText has the plans.
func TestSuites(t *testing.T) {
	h := backendtest.Harness{
		New:     func(w generate.Cluster) backendtest.Node { return &fakeNode{fake: &fake{family: w.Family}} },
		Cluster: func(w generate.Cluster) backendtest.Cluster { return &steadyCluster{Cluster: w} },
		ReadBack: func(_ context.Context, b reconcile.Backend, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
			return b.(*Backend).ReadBack(want)
		},
	}
	t.Run("converges", func(t *testing.T) { backendtest.Converge(t, h) })
	t.Run("judge", func(t *testing.T) { backendtest.Judge(t, h) })
}

// steadyCluster keeps its Node most of the time. With another one a round compares everything.
type steadyCluster struct {
	generate.Cluster
	node *service.Node
}

func (c *steadyCluster) Node() *service.Node {
	if c.node == nil || c.DrawInt("another node", 5) == 0 {
		c.node = c.Cluster.Node()
	}
	return c.node
}

// fakeNode is a fake kernel, for the suites.
type fakeNode struct {
	*fake
	backend  *Backend
	tampered bool // since all was healed
}

func (n *fakeNode) Start() reconcile.Backend {
	n.crashes = ""
	n.backend = New(n.family, n.fake, Options{})
	return n.backend
}

func (n *fakeNode) Fresh() backendtest.Node {
	return &fakeNode{fake: &fake{family: n.family, pods: n.pods}}
}

// Inject draws calls that fail, one in which the process dies, pods whose cgroup moves, and
// whether the next round compares everything.
func (n *fakeNode) Inject(w generate.Cluster) func(error) bool {
	n.requireNoOldLists(w.T)
	n.fails, n.crashes = map[string]bool{}, ""
	for _, call := range []string{"Adopt", "Build", "Activate", "Moved", "Follow", "Barrier", "Evict", "Remove"} {
		n.fails[call] = w.DrawInt(call+" fails", 4) == 0
		if w.DrawInt("dies in "+call, 20) == 0 {
			n.crashes = call
		}
	}
	if w.DrawInt("pods", 4) == 0 {
		n.pods = fmt.Sprintf("/kubepods-%d", w.DrawInt("cgroup", 3))
	}
	n.backend.SetResync(time.Hour * time.Duration(w.DrawInt("resync", 2)))
	return nil
}

// requireNoOldLists requires that the last round, whatever failed in it, left the lists that
// it was to write, or none, or said that it could not.
func (n *fakeNode) requireNoOldLists(t *rapid.T) {
	last := n.backend.have
	n.fails, n.crashes = nil, ""
	if last == nil || last.Incomplete || n.tampered {
		return
	}
	held, wanted, err := n.backend.ReadBack(last)
	if err != nil || held.String() != wanted.String() && held != nil {
		t.Fatalf("%v: a round left\n%s, and was to write\n%s", err, held, wanted)
	}
	if held == nil && n.backend.fault == "" {
		t.Fatal("nothing is in force, and no fault is known")
	}
}

// Tamper detaches the programs, alters the list of a frontend, or adds a frontend.
func (n *fakeNode) Tamper(w generate.Cluster) {
	if n.active == nil {
		return
	}
	n.tampered = true
	if w.DrawBool("detach") {
		n.detached = errInjected
		return
	}
	extraneous := nameOf(netip.AddrPortFrom(w.Pod(99), 1))
	if i, found := n.active.find(extraneous); i >= 0 && !found && w.DrawBool("extraneous") {
		n.active.claim(i, extraneous)
	}
	var used []int
	for i := range n.active.entries() {
		if n.active.used(n.active.at(i)) {
			used = append(used, i)
		}
	}
	if len(used) > 0 {
		n.active.setList(used[w.DrawInt("entry", len(used))], listOf(w.DrawInt("first", 64), w.DrawInt("length", 12)))
	}
}

func (n *fakeNode) Heal() {
	n.fails, n.crashes, n.tampered = nil, "", false
	n.backend.SetResync(0)
}

func (n *fakeNode) State() string {
	return fmt.Sprintf("of pods: %q, attached: %t\n%s", n.followed, n.detached == nil, n.held())
}

// held is what the tables have, without the names of Services.
func (n *fakeNode) held() string {
	held, _, err := New(n.family, n.fake, Options{}).ReadBack(service.New(0, &service.Node{}, nil))
	if err != nil {
		return err.Error()
	}
	return held.String()
}

func (n *fakeNode) Changes() []string { return nil }

// Judge compares the endpoints of a connection that the layer may take.
func (n *fakeNode) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	if c.Protocol != service.TCP || elsewhere(want.Node, c) != "" {
		return
	}
	var expected []netip.AddrPort
	v := route.Decide(want, c)
	if v.Action == route.Forward && v.Frontend.Kind == service.ClusterIP && v.Port.Affinity == 0 && !want.Node.MasqueradeAll {
		for _, e := range v.Endpoints {
			expected = append(expected, e.Addr)
		}
	}
	got := n.endpoints(c.To)
	slices.SortFunc(expected, netip.AddrPort.Compare)
	slices.SortFunc(got, netip.AddrPort.Compare)
	if !slices.Equal(got, slices.Compact(expected)) {
		t.Fatalf("%+v leads to %s, route.Decide says %s", c, got, expected)
	}
}

func (n *fakeNode) Check(t *rapid.T, _ *service.Snapshot) {
	if n.backend.fault != "" || n.followed != n.pods {
		t.Fatalf("fault %q, pods %q of %q", n.backend.fault, n.followed, n.pods)
	}
}
