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
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/xtables"
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
func (n *node) Fresh() backendtest.Node  { return newNode(n.family, n.options) }

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
func (n *rulesSuiteNode) Fresh() backendtest.Node  { return newRulesSuiteNode(n.t, n.family) }

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

func (n *rulesSuiteNode) State() string                                 { return n.sets.Text() + n.tables.Text() }
func (n *rulesSuiteNode) Changes() []string                             { return append(n.sets.Changes(), n.tables.Changes()...) }
func (n *rulesSuiteNode) Judge(*rapid.T, *service.Snapshot, route.Conn) {}
func (n *rulesSuiteNode) Check(*rapid.T, *service.Snapshot)             {}

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
