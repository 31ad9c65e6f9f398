// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
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
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

var errInjected = backendtest.ErrInjected

// TestSuites runs the suites for sets and chains alone. Package ipvs judges connections.
func TestSuites(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New:     func(w generate.Cluster) backendtest.Node { return newSuiteNode(w.T, w.Family) },
		Cluster: func(w generate.Cluster) backendtest.Cluster { return cluster{w} },
	})
}

// cluster is where nodes have two addresses, and Services those of nodes.
type cluster struct{ generate.Cluster }

// Ports draws ports of which some have an address of the node, maybe where another one
// has a NodePort.
func (c cluster) Ports() []*service.Port {
	ports := c.Cluster.Ports()
	for i, p := range ports {
		if c.DrawInt("own", 4) == 0 {
			p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[c.Family], Port: uint16(30003 - i)})
		}
	}
	return ports
}

// Node draws a node with one or two addresses.
func (c cluster) Node() *service.Node {
	n := c.Cluster.Node()
	if c.DrawBool("two addresses") {
		n.Addrs = append(n.Addrs, generate.OtherNodeAddr[c.Family])
	}
	return n
}

// suiteNode is a node for the suites.
type suiteNode struct {
	*node
	family service.Family
	t      *rapid.T
}

func newSuiteNode(t *rapid.T, f service.Family) *suiteNode { return &suiteNode{newNode(t, f), f, t} }

func (n *suiteNode) Start() reconcile.Backend { return n.start(n.family) }

func (n *suiteNode) Fresh() backendtest.Node { return newSuiteNode(n.t, n.family) }

func (n *suiteNode) Inject(w generate.Cluster) func(error) bool {
	refuse := func() error {
		if w.DrawInt("refuse", 8) == 0 {
			return errInjected
		}
		return nil
	}
	n.sets.Refuse = func(_, _ string) error { return refuse() }
	n.tables.Refuse = func(string) error { return refuse() }
	n.clock = n.clock.Add(time.Duration(w.DrawInt("time", 20)) * time.Second)
	return nil
}

func (n *suiteNode) Tamper(w generate.Cluster) {
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

func (n *suiteNode) Heal() {
	n.sets.Refuse, n.tables.Refuse = nil, nil
	n.clock = n.clock.Add(resync)
}

func (n *suiteNode) State() string { return n.sets.Text() + n.tables.Text() }

func (n *suiteNode) Changes() []string { return append(n.sets.Changes(), n.tables.Changes()...) }

func (n *suiteNode) Judge(*rapid.T, *service.Snapshot, route.Conn) {}

func (n *suiteNode) Check(*rapid.T, *service.Snapshot) {}
