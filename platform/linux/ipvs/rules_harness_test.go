// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
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
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
)

// TestRulesSuites runs the suites for sets and chains alone. TestSuites judges connections.
func TestRulesSuites(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New:     func(w generate.Cluster) backendtest.Node { return newRulesSuiteNode(w.T, w.Family) },
		Cluster: func(w generate.Cluster) backendtest.Cluster { return rulesCluster{w} },
	})
}

// cluster is where nodes have two addresses, and Services those of nodes.
type rulesCluster struct{ generate.Cluster }

// Ports draws ports of which some have an address of the node, maybe where another one
// has a NodePort.
func (c rulesCluster) Ports() []*service.Port {
	ports := c.Cluster.Ports()
	for i, p := range ports {
		if c.DrawInt("own", 4) == 0 {
			p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[c.Family], Port: uint16(30003 - i)})
		}
	}
	return ports
}

// Node draws a node with one or two addresses.
func (c rulesCluster) Node() *service.Node {
	n := c.Cluster.Node()
	if c.DrawBool("two addresses") {
		n.Addrs = append(n.Addrs, generate.OtherNodeAddr[c.Family])
	}
	return n
}

// rulesSuiteNode is a node for the suites.
type rulesSuiteNode struct {
	*rulesNode
	family service.Family
	t      *rapid.T
}

func newRulesSuiteNode(t *rapid.T, f service.Family) *rulesSuiteNode {
	return &rulesSuiteNode{newRulesNode(t, f), f, t}
}

func (n *rulesSuiteNode) Start() reconcile.Backend { return n.start(n.family) }

func (n *rulesSuiteNode) Fresh() backendtest.Node { return newRulesSuiteNode(n.t, n.family) }

func (n *rulesSuiteNode) Inject(w generate.Cluster) func(error) bool {
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

func (n *rulesSuiteNode) Tamper(w generate.Cluster) {
	names := slices.Sorted(maps.Keys(n.sets.ByName))
	h := n.sets.ByName[names[w.DrawInt("set", len(names))]]
	if h.Set == setOf(w.Family, virtualServerSet) || h.Set == setOf(w.Family, nodeIPSet) { // those of the Driver
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
func (n *rulesNode) flush() {
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

func (n *rulesSuiteNode) Heal() {
	n.sets.Refuse, n.tables.Refuse = nil, nil
	n.clock = n.clock.Add(resync)
}

func (n *rulesSuiteNode) State() string { return n.sets.Text() + n.tables.Text() }

func (n *rulesSuiteNode) Changes() []string { return append(n.sets.Changes(), n.tables.Changes()...) }

func (n *rulesSuiteNode) Judge(*rapid.T, *service.Snapshot, route.Conn) {}

func (n *rulesSuiteNode) Check(*rapid.T, *service.Snapshot) {}

// rulesNode is a simulated node with the set of virtual servers, which the Driver
// maintains.
type rulesNode struct {
	sets   *xtables.Sets
	tables *xtables.System
	clock  time.Time
}

const resync = 30 * time.Second

func newRulesNode(t fataler, f service.Family) *rulesNode {
	sets := xtables.NewSets()
	if err := errors.Join(sets.Create(setOf(f, virtualServerSet)), sets.Create(setOf(f, nodeIPSet))); err != nil {
		t.Fatalf("%v", err)
	}
	clear(sets.Steps)
	return &rulesNode{sets, xtables.New(sets), time.Unix(1e9, 0)}
}

// start returns the rules of a process that starts on n.
func (n *rulesNode) start(f service.Family) *rules {
	chains := iptables.NewWith(f, Options{MasqueradeBit: 14}.chains(f), n.tables)
	b := newRules(f, chains, n.sets, func() time.Time { return n.clock })
	b.SetResync(resync)
	return b
}

func applyRules(t fataler, b *rules, want *service.Snapshot) *rulesPlan {
	return generate.Apply(t, b, want).(*rulesPlan)
}

// held returns the elements of one of our sets, as text.
func (n *rulesNode) held(set string) []string {
	h := n.sets.ByName[setName(service.IPv4, set)]
	if h == nil {
		return nil
	}
	all := []string{}
	members, _ := n.sets.Members(h.Set)
	for _, m := range members {
		all = append(all, h.Text(m.Entry))
	}
	return all
}

// web is a Service with an external address that is masqueraded.
func shopWeb(i int) *service.Port {
	return &service.Port{
		Name: service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%d", i), Protocol: service.TCP},
		Frontends: []service.Frontend{
			{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80},
			{Kind: service.ExternalIP, Addr: netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}), Port: 80},
		},
		Cluster: []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}},
	}
}

// withoutEndpoints is a Service without endpoints.
func withoutEndpoints(i int) *service.Port {
	p := shopWeb(i)
	p.Cluster = nil
	return p
}
