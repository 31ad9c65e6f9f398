// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

func TestSuites(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(w generate.Cluster) backendtest.Node {
			o := Options{Scheduler: rapid.SampledFrom([]string{"", "mh", "wlc"}).Draw(w.T, "scheduler"), MasqueradeBit: 14}
			return newNode(w.Family, o)
		},
		Cluster:     func(w generate.Cluster) backendtest.Cluster { return clusterWithNodeAddrs{w} },
		CleanRounds: 2, // what drains goes in the second one
		ReadBack: func(ctx context.Context, b reconcile.Backend, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
			return b.(*Backend).ReadBack(ctx, want)
		},
	})
}

// clusterWithNodeAddrs gives some ports an address of the node, maybe where another one
// has a NodePort.
type clusterWithNodeAddrs struct{ generate.Cluster }

func (w clusterWithNodeAddrs) Ports() []*service.Port {
	return withNodeAddrs(w.Cluster, w.Cluster.Ports())
}

// withNodeAddrs gives some of ports an address of the node, maybe where another one has
// a NodePort.
func withNodeAddrs(w generate.Cluster, ports []*service.Port) []*service.Port {
	for i, p := range ports {
		if w.DrawInt("own", 8) == 0 {
			p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[w.Family], Port: uint16(30003 - i)})
		}
	}
	return ports
}

// foreignServers are two foreign virtual servers, one on an address that no Service has,
// and one where Services have NodePorts.
func foreignServers(f service.Family) []service.Address {
	return []service.Address{
		addressAt(generate.NthAddr([]string{"192.0.2.200", "2001:db8::200"}[f], 0), 443, service.TCP),
		addressAt(generate.NodeAddr[f], 443, service.TCP),
	}
}

func (fa *fake) addForeignServers(f service.Family) {
	for _, at := range foreignServers(f) {
		a := netip.AddrPortFrom(at.Addr, 8443)
		fa.servers[at] = &fakeServer{server{scheduler: "wlc", flags: flagHashed}, map[netip.AddrPort]dest{a: {addr: a, weight: 7}}}
	}
}

func wantForeignServers(t fataler, k *fake, f service.Family) {
	for _, at := range foreignServers(f) {
		s := k.servers[at]
		if s == nil || s.scheduler != "wlc" || len(s.dests) != 1 || s.dests[netip.AddrPortFrom(at.Addr, 8443)].weight != 7 {
			t.Fatalf("the virtual server of somebody else at %s is now %+v", at, s)
		}
	}
}

// node is a fake kernel with virtual servers of others, for the suites.
type node struct {
	*fake
	options Options
}

func newNode(f service.Family, o Options) *node {
	k := newFake(f)
	k.addForeignServers(f)
	return &node{k, o}
}

func (n *node) Start() reconcile.Backend { return newBackendWithRules(n.family, n.fake, n.options) }

func (n *node) Fresh() backendtest.Node { return newNode(n.family, n.options) }

func (n *node) Inject(w generate.Cluster) func(error) bool {
	n.refuse = refuse(w)
	n.sets.Refuse, n.tables.Refuse = refuseSetsAndTables(w)
	n.clock = n.clock.Add(time.Duration(w.DrawInt("time", 40)) * time.Second)
	return func(err error) bool { return errors.Is(err, errExists) || errors.Is(err, errMissing) }
}

// refuse draws which ops are refused.
func refuse(w generate.Cluster) func(op) error {
	return func(op) error {
		if w.DrawInt("refuse", 8) == 0 {
			return errInjected
		}
		return nil
	}
}

// refuseSetsAndTables draws which set elements and tables are refused.
func refuseSetsAndTables(w generate.Cluster) (sets func(step, set string) error, tables func(string) error) {
	some := refuse(w)
	sets = func(step, _ string) error {
		if step == "list" || step == "heads" {
			return nil
		}
		return some(op{})
	}
	return sets, func(string) error { return some(op{}) }
}

// Tamper also adds connections.
func (n *node) Tamper(w generate.Cluster) {
	for _, at := range sortedKeys(n.servers) {
		s := n.servers[at]
		if !s.owned() {
			continue
		}
		switch w.DrawInt("server", 6) {
		case 0:
			delete(n.servers, at)
		case 1:
			s.server = server{scheduler: "lc", flags: flagOwned | flagHashed}
		case 2:
			clear(s.dests)
		case 3:
			a := netip.AddrPortFrom(w.Pod(99), 1)
			s.dests[a] = dest{addr: a, weight: 5, conns: uint32(w.DrawInt("conns", 3))}
		case 4:
			for a, x := range s.dests {
				x.weight, x.conns = 0, 1
				s.dests[a] = x
			}
		}
	}
	switch w.DrawInt("routes", 4) {
	case 0:
		n.device = false
		clear(n.routes)
	case 1:
		clear(n.routes)
	}
}

// Heal ends the connections to draining destinations, too.
func (n *node) Heal() {
	n.refuse, n.sets.Refuse, n.tables.Refuse = nil, nil, nil
	for _, s := range n.servers {
		for a, x := range s.dests {
			x.conns = 0
			s.dests[a] = x
		}
	}
	n.clock = n.clock.Add(time.Minute)
}

func (n *node) State() string {
	var b strings.Builder
	for _, at := range sortedKeys(n.servers) {
		s := n.servers[at]
		fmt.Fprintf(&b, "%s %+v\n", at, s.server)
		for _, a := range slices.SortedFunc(maps.Keys(s.dests), netip.AddrPort.Compare) {
			d := s.dests[a]
			d.conns = 0
			fmt.Fprintf(&b, "\t%s %+v\n", a, d)
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(n.routes), netip.Addr.Compare) {
		fmt.Fprintf(&b, "%+v\n", n.routes[a])
	}
	return b.String() + n.sets.Text() + n.tables.Text()
}

// Changes leaves out the elements of sets that plans print as changes of their own.
func (n *node) Changes() []string {
	all := append(n.done, n.tables.Changes()...)
	for _, line := range n.sets.Changes() {
		if !strings.HasSuffix(line, "ipset "+setOf(n.family, virtualServerSet).Name) && !strings.HasSuffix(line, "ipset "+setOf(n.family, nodeIPSet).Name) {
			all = append(all, line)
		}
	}
	n.done = nil
	return all
}

func (n *node) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	k := n.fake
	if _, ours := k.routes[c.From]; ours {
		return // no remote client has such a source: the kernel drops the packets
	}
	v := route.Decide(want, c)
	// One rule for all endpoints detects hairpin connections and does not check where the
	// endpoint is. The node itself needs none.
	wantOut := backendtest.Expect(v, func(e service.Endpoint) bool {
		return e.Addr.Addr() == c.From && !generate.IsNodeLocal(c.From)
	})
	if v.Action == route.Pass && c.From == c.To.Addr() && !generate.IsNodeLocal(c.From) {
		wantOut.Masq = map[netip.AddrPort]bool{} // such packets do not exist
	}
	if _, ours := k.routes[c.To.Addr()]; ours && v.Action == route.Pass {
		// The node has the address for Services only. Otherwise a port that no Service
		// has would reach a process that listens on all addresses.
		wantOut.Action = route.Reject
	}
	if diff := backendtest.Diff(wantOut, trace(k, c)); diff != "" {
		t.Fatalf("%+v: %s (-decide +ipvs):\n%s\n%s\n%s\n%v", c, v.Reason, diff, k.sets.Text(), k.tables.Text(), k.servers)
	}
}

func (n *node) Check(t *rapid.T, _ *service.Snapshot) { wantForeignServers(t, n.fake, n.family) }
