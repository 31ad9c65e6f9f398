// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// errCrash is the panic of the fake when the process dies.
var errCrash = backendtest.ErrCrash

// TestSuites lists HNS while rounds wait for it.
func TestSuites(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New:     func(c generate.Cluster) backendtest.Node { return drawSuiteNode(t, c, false) },
		Cluster: cluster, Printed: printed,
	})
}

// TestSuitesDuringListings lists HNS while changes are programmed. What others did shows
// when a listing has ended that began later. The first clean round begins one, and may
// delete what that is about to read. Then the second one learns that it failed, the third
// one begins another, and the fourth one uses it.
func TestSuitesDuringListings(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New:     func(c generate.Cluster) backendtest.Node { return drawSuiteNode(t, c, true) },
		Cluster: cluster, Printed: printed, CleanRounds: 4,
	})
}

func cluster(c generate.Cluster) backendtest.Cluster { return generator{c.T, c.Family} }

// suiteNode is a node for the suites, with all possible pods and objects of another owner.
type suiteNode struct {
	*testNode
	draw   generator
	passed *atomic.Int64 // on the clock
	lister *lister       // nil if rounds wait for listings
}

func drawSuiteNode(t *testing.T, c generate.Cluster, listed bool) *suiteNode {
	w := generator{c.T, c.Family}
	b := &testNode{t: t, hns: newFake(w.version(), w.network()), store: &memoryStore{}, options: w.options()}
	n := &suiteNode{testNode: b, draw: w, passed: &atomic.Int64{}}
	if listed {
		n.lister = &lister{
			strict: w.drawBool("strict"), pause: func() { n.passed.Add(int64(20 * time.Millisecond)) },
			draw: func(most int) int { return w.drawInt("listed", most+1) },
		}
		c.T.Cleanup(n.lister.end)
	}
	n.populate()
	return n
}

// populate makes what others have on the node.
func (n *suiteNode) populate() {
	n.draw.restorePods(n.testNode)
	n.draw.addForeign(n.testNode)
}

func (n *suiteNode) Fresh() backendtest.Node {
	b := *n.testNode
	b.hns, b.store = newFake(n.hns.version, slices.Clone(n.hns.networks)...), &memoryStore{}
	fresh := &suiteNode{testNode: &b, draw: n.draw, passed: &atomic.Int64{}}
	fresh.populate()
	return fresh
}

func (n *suiteNode) Start() reconcile.Backend {
	if n.lister == nil {
		n.startOn(n.hns)
		return n.backend
	}
	n.lister.start(n.hns)
	n.startOn(n.lister)
	return n.lister.wrap(n.backend)
}

func (n *suiteNode) startOn(d Driver) {
	n.restartOn(d)
	n.setFamily(n.draw.family)
	n.backend.host.now = func() time.Time { return time.Unix(1e9, n.passed.Load()) }
}

// pass lets time pass, in which HNS lists some objects.
func (n *suiteNode) pass(d time.Duration) {
	n.passed.Add(int64(d))
	if n.lister != nil {
		n.lister.proceed(10)
	}
}

func (n *suiteNode) Heal() {
	n.hns.refuse, n.hns.after, n.hns.down = nil, nil, false
	n.draw.restorePods(n.testNode)
	switch {
	case n.lister == nil:
		n.passed.Add(int64(time.Minute)) // a later listing shows changes by other processes
	case !n.lister.finish():
		n.passed.Add(int64(time.Hour)) // a slow listing is followed by a long pause
	}
}

var sourceVIPs = regexp.MustCompile(` source-vip \S+`)

// State leaves out the addresses of source VIPs, and endpoints, for which see Check.
func (n *suiteNode) State() string {
	var all []string
	for _, lb := range n.hns.balancers {
		all = append(all, n.hns.balancerText("", &lb))
	}
	slices.Sort(all)
	return sourceVIPs.ReplaceAllString(strings.Join(all, "\n"), "")
}

func (n *suiteNode) Changes() []string {
	all := n.hns.done
	n.hns.done = nil
	for i := range all {
		all[i] = printed(all[i])
	}
	return all
}

// printed leaves out the addresses of source VIPs, which HNS chooses.
func printed(line string) string {
	if reserved := "+ endpoint " + sourceVIPName; strings.HasPrefix(line, reserved) {
		return reserved
	}
	return sourceVIPs.ReplaceAllString(line, "")
}

// addForeign adds objects of another owner: a load balancer, and its remote endpoint, which
// Services may lead to as well.
func (g generator) addForeign(b *testNode) {
	n, a := b.hns.networks[0], g.remotePod(foreignPod)
	provider := g.nth("192.0.2.10", "2001:db8::10", 0)
	if n.Kind == Overlay {
		provider = n.Routes[0].Provider
	}
	e := Endpoint{ID: "foreign-endpoint", Network: n.ID, Name: "other", Remote: true, MAC: remoteMAC(a), Provider: provider, Addrs: []netip.Addr{a}}
	b.hns.endpoints[e.ID] = e
	lb := LoadBalancer{ID: "foreign-balancer", Key: Key{Family: g.family, Port: 40000, Protocol: service.TCP}, TargetPort: 1, Endpoints: []string{e.ID}}
	b.hns.balancers[lb.ID] = lb
}

// Inject makes calls of the next sync fail, before or after their effect. Some end the
// process. The next syncs handle failures and missing pods.
func (n *suiteNode) Inject(c generate.Cluster) func(error) bool {
	w, b := generator{c.T, c.Family}, n.testNode
	b.hns.refuse, b.hns.after, b.hns.down = nil, nil, false
	codes := []uint32{0xaa, 0x57, 0x803b0007, 0x1f}
	fail := func(label string, one int) func(string) error {
		return func(op string) error {
			switch w.drawInt(label, one) {
			case 0:
				return codeError(op, rapid.SampledFrom(codes).Draw(w.t, "code"))
			case 1:
				if w.drawInt("crash", 4) == 0 {
					panic(backendtest.ErrCrash)
				}
			}
			return nil
		}
	}
	switch w.drawInt("faults", 5) {
	case 0:
		b.hns.refuse = fail("refuse", 4)
	case 1:
		b.hns.after = fail("after", 4)
	case 2:
		b.hns.down = true
	}
	n.pass(time.Duration(w.drawInt("later", 40)) * time.Second)
	faults := b.hns.down || b.hns.refuse != nil || b.hns.after != nil
	return func(err error) bool {
		return faults || len(reconcile.PortErrors(err)) > 0 || n.lister != nil && n.lister.failed()
	}
}

// Tamper changes HNS as another process or the network plugin might.
func (n *suiteNode) Tamper(c generate.Cluster) {
	w, b := generator{c.T, c.Family}, n.testNode
	lbs, eps := slices.Sorted(maps.Keys(b.hns.balancers)), slices.Sorted(maps.Keys(b.hns.endpoints))
	switch w.drawInt("tamper", 6) {
	case 0: // load balancers disappear
		for _, id := range lbs {
			if id != "foreign-balancer" && w.drawBool("vanish") {
				delete(b.hns.balancers, id)
			}
		}
	case 1: // a load balancer is altered
		id := lbs[w.drawInt("altered", len(lbs))]
		if lb := b.hns.balancers[id]; id != "foreign-balancer" {
			lb.TargetPort++
			b.hns.balancers[id] = lb
		}
	case 2: // remote endpoints and pods disappear, used or not
		for _, id := range eps {
			if id != "foreign-endpoint" && w.drawInt("vanish", 3) == 0 {
				delete(b.hns.endpoints, id)
			}
		}
	case 3: // a pod is created again
		w.replacePod(b)
	case 4: // another node has the pods of a subnet
		if net := &b.hns.networks[0]; net.Kind == Overlay {
			net.Routes = slices.Clone(net.Routes)
			net.Routes[0].Provider = rapid.SampledFrom([]netip.Addr{nodeB, addr("192.0.2.20")}).Draw(w.t, "provider")
			w.addForeign(b) // its owner follows, too
		}
	case 5: // the network plugin creates the network again, with the pods
		w.renewNetwork(b)
	}
}

func (g generator) replacePod(b *testNode) {
	a := g.localPod(g.drawInt("pod", 6))
	for id, e := range b.hns.endpoints {
		if e.HasAddr(a) && !e.Remote {
			delete(b.hns.endpoints, id)
			e.ID = b.hns.id("endpoint")
			b.hns.endpoints[e.ID] = e
			return
		}
	}
}

func (g generator) renewNetwork(b *testNode) {
	b.hns.networks[0].ID = b.hns.id("network")
	for id, e := range b.hns.endpoints {
		if e.ID == "foreign-endpoint" {
			e.Network = b.hns.networks[0].ID
			b.hns.endpoints[id] = e
			continue
		}
		delete(b.hns.endpoints, id)
	}
	g.restorePods(b)
}

// restorePods creates the missing pods, as the network plugin does.
func (g generator) restorePods(b *testNode) {
	n := b.hns.networks[0].ID
	create := func(name string, a netip.Addr) {
		if !b.hns.hasAddr(n, a, false) {
			e := Endpoint{ID: b.hns.id("endpoint"), Name: name, Network: n, Addrs: []netip.Addr{a}}
			b.hns.endpoints[e.ID] = e
		}
	}
	for i := range 6 {
		create(fmt.Sprintf("pod-%d", i), g.localPod(i))
	}
	create("cbr0", rootAddr(g.family))
}

// Check wants exactly what Services need, and the objects of the other owner.
func (n *suiteNode) Check(t *rapid.T, want *service.Snapshot) {
	generator{t, n.draw.family}.checkLeftovers(n.testNode, want)
	if _, ok := n.hns.endpoints["foreign-endpoint"]; !ok || n.hns.balancers["foreign-balancer"].ID == "" {
		t.Fatalf("an object that was not ours is gone")
	}
	if len(n.hns.warnings) > 0 {
		t.Fatalf("HNS warns: %v", n.hns.warnings)
	}
}

// checkLeftovers checks that HNS holds exactly what ports need, and the objects of other
// owners.
func (g generator) checkLeftovers(b *testNode, want *service.Snapshot) {
	l, _ := b.hns.List(context.Background(), All)
	site, _, err := b.backend.discover(l, theNode)
	if err != nil {
		g.t.Fatalf("survey: %v", err)
	}
	wanted, vips := map[Key]bool{}, map[netip.Addr]bool{}
	for p := range want.Ports(g.family) {
		d := Desired(p, &site)
		for _, x := range d.LoadBalancers {
			wanted[x.Key] = true
		}
		for _, t := range d.VIPs {
			vips[t.Addr] = true
		}
		for _, a := range d.Listed { // its pod may have connections, unless a local pod has the address
			vips[a] = vips[a] || !b.hns.hasAddr(b.hns.networks[0].ID, a, false)
		}
	}
	used := map[string]bool{}
	for id, lb := range b.hns.balancers {
		if id != "foreign-balancer" && !wanted[lb.Key] {
			g.t.Fatalf("load balancer %s is left over", lb.Key)
		}
		for _, e := range lb.Endpoints {
			used[e] = true
		}
	}
	if len(b.hns.balancers)-1 != len(wanted) {
		g.t.Fatalf("%d load balancers, want %d", len(b.hns.balancers)-1, len(wanted))
	}
	for id, e := range b.hns.endpoints {
		if e.Remote && !used[id] && !vips[e.Addrs[0]] {
			g.t.Fatalf("endpoint %s is left over", e.describe())
		}
	}
}
