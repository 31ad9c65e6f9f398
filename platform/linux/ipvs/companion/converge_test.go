// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/generate"
)

var errInjected = errors.New("injected")

// drawPorts draws the ports of Services. Some have an address of the node, maybe where
// another one has a NodePort.
func drawPorts(w generate.Cluster) []*service.Port {
	ports := w.Ports()
	for i, p := range ports {
		if w.DrawInt("own", 4) == 0 {
			p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[w.Family], Port: uint16(30003 - i)})
		}
	}
	return ports
}

// drawNode draws a node with one or two addresses.
func drawNode(w generate.Cluster) *service.Node {
	n := w.Node()
	if w.DrawBool("two addresses") {
		n.Addrs = append(n.Addrs, generate.OtherNodeAddr[w.Family])
	}
	return n
}

// TestChangesMatchFreshStart runs syncs with changes. After each, the node must hold
// what a new process would make, and nothing must be left to do.
func TestChangesMatchFreshStart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		n := newNode(t, w.Family)
		b := n.start(w.Family)
		drawnNode := drawNode(w)
		for i := range 6 {
			if w.DrawInt("node", 4) == 0 {
				drawnNode = drawNode(w)
			}
			want := service.New(uint64(i), drawnNode, drawPorts(w))
			if drift := apply(t, b, want).Drift(); len(drift) > 0 {
				t.Fatalf("drift that nobody made: %q", drift)
			}
			wantFresh(t, n, w.Family, want)
			generate.RequireNoChange(t, b, want)
			n.clock = n.clock.Add(time.Duration(w.DrawInt("time", 20)) * time.Second)
		}
	})
}

// wantFresh compares n with what a process makes on an empty node, and checks that such
// a process finds nothing to do on n.
func wantFresh(t *rapid.T, n *node, f service.Family, want *service.Snapshot) {
	fresh := newNode(t, f)
	apply(t, fresh.start(f), want)
	if diff := cmp.Diff(fresh.sets.Text(), n.sets.Text()); diff != "" {
		t.Fatalf("sets (-fresh +now):\n%s", diff)
	}
	if diff := cmp.Diff(fresh.tables.Text(), n.tables.Text()); diff != "" {
		t.Fatalf("chains (-fresh +now):\n%s", diff)
	}
	generate.RequireNoChange(t, n.start(f), want)
}

// TestConvergesAfterRefusals runs syncs in which anything may fail, while others change
// things and the process restarts. A clean sync must reach the desired state.
func TestConvergesAfterRefusals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		n := newNode(t, w.Family)
		b := n.start(w.Family)
		refuse := func() error {
			if w.DrawInt("refuse", 8) == 0 {
				return errInjected
			}
			return nil
		}
		var want *service.Snapshot
		for i := range 5 {
			want = service.New(uint64(i), drawNode(w), drawPorts(w))
			want.Incomplete = w.DrawBool("partial")
			n.sets.Refuse = func(_, _ string) error { return refuse() }
			n.tables.Refuse = func(string) error { return refuse() }
			if applyMayFail(t, b, want); w.DrawBool("meddle") {
				n.tamper(w)
			}
			if w.DrawBool("restart") {
				b = n.start(w.Family)
			}
		}
		n.sets.Refuse, n.tables.Refuse = nil, nil
		n.clock = n.clock.Add(resync)
		want = service.New(9, want.Node, slices.Collect(want.Ports(w.Family)))
		apply(t, b, want)
		generate.RequireNoChange(t, b, want)
		wantFresh(t, n, w.Family, want)
	})
}

// applyMayFail runs one sync that may fail.
func applyMayFail(t *rapid.T, b *Backend, want *service.Snapshot) {
	p, err := b.Plan(context.Background(), want)
	if err == nil && !p.Empty() {
		err = p.Apply(context.Background())
	}
	if err != nil && !errors.Is(err, errInjected) {
		t.Fatalf("%v\n%s", err, p)
	}
}

// tamper makes a change that another process might make.
func (n *node) tamper(w generate.Cluster) {
	names := slices.Sorted(maps.Keys(n.sets.ByName))
	h := n.sets.ByName[names[w.DrawInt("set", len(names))]]
	if h.Set == VirtualServerSet(w.Family) || h.Set == NodeIPSet(w.Family) { // those of package ipvs
		return
	}
	switch w.DrawInt("kind", 4) {
	case 0:
		clear(h.Members)
	case 1:
		for _, e := range slices.SortedFunc(maps.Keys(h.Members), ipset.Entry.Compare)[:min(1, len(h.Members))] {
			delete(h.Members, e)
		}
	case 2:
		h.Members[extraElement(h.Set)] = "mine"
	case 3: // as when a firewall restarts
		n.flush()
		if w.DrawBool("sets, too") {
			delete(n.sets.ByName, h.Name)
		}
	}
}

// flush removes all rules.
func (n *node) flush() {
	for _, chains := range n.tables.Tables {
		maps.DeleteFunc(chains, func(name string, _ []string) bool { return strings.HasPrefix(name, "KUBE-") })
		for name := range chains {
			chains[name] = nil
		}
	}
	n.tables.Dirty = true
}

// extraElement is an element that no Service has.
func extraElement(s ipset.Set) ipset.Entry {
	e := ipset.Entry{Addr: generate.OtherNodeAddr[s.Family]}
	if s.Type != ipset.HashIP {
		e.Protocol, e.Port = service.TCP, 9999
	}
	if s.Type == ipset.HashIPPortNet {
		e.Net = netip.PrefixFrom(e.Addr, e.Addr.BitLen())
	}
	return e
}

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
		if got := strings.Join(n.held(iptables.SetVirtualIPs), " "); got != x.want {
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
