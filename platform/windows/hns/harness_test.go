// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	sim "kubeproxy/test/hns"
	"kubeproxy/test/kit"
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
	n.startOn(n.lister.driver())
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
	lb := LoadBalancer{ID: "foreign-balancer", Address: service.Address{Family: g.family, Port: 40000, Protocol: service.TCP}, TargetPort: 1, Endpoints: []string{e.ID}}
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
	wanted, vips := map[service.Address]bool{}, map[netip.Addr]bool{}
	for p := range want.Ports(g.family) {
		d := Desired(p, &site)
		for _, x := range d.LoadBalancers {
			wanted[x.Address] = true
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
		if id != "foreign-balancer" && !wanted[lb.Address] {
			g.t.Fatalf("load balancer %s is left over", lb.Address)
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

// TestPersonalitiesConverge draws a personality of HNS for each case, of those on which each call of a clean round
// succeeds. Where HNS gives back no names, an endpoint whose answer was lost is nobody's.
func TestPersonalitiesConverge(t *testing.T) {
	all := slices.DeleteFunc(sim.Personalities(), func(p sim.Personality) bool {
		return p.FailEvery+p.MeddlesEvery+p.PlugsAfter+p.GoesAfter > 0 || p.SlowDeletes > 0 || p.OneAddress || slices.Contains(p.LeftOut, "Name")
	})
	backendtest.Converge(t, backendtest.Harness{Cluster: cluster, CleanRounds: 2 + maxRepairs, New: func(c generate.Cluster) backendtest.Node {
		p := all[generator{c.T, c.Family}.drawInt("personality", len(all))]
		if v := (Version{p.Version.Major, p.Version.Minor}); c.Family == service.IPv6 && !v.Features().DualStack {
			p.Version = sim.Version{Major: 13, Minor: 3}
		}
		n := &simulatedSuiteNode{suiteNode: drawSuiteNode(t, c, false), personality: p}
		n.hns.version = Version(p.Version)
		if p.Version == (sim.Version{}) {
			n.hns.version = v13
		}
		n.begin()
		return n
	}})
}

// simulatedSuiteNode is a suiteNode with a simulated HNS. The fake has what that holds, for what the suite reads, and for
// what it changes.
type simulatedSuiteNode struct {
	*suiteNode
	personality sim.Personality
	sim         *sim.Simulator
	journal     int
}

// begin makes what others have on the node.
func (n *simulatedSuiteNode) begin() {
	n.sim = sim.New(sim.Options{Personality: n.personality, Steady: true})
	n.impose()
}

func (n *simulatedSuiteNode) Fresh() backendtest.Node {
	fresh, _ := n.suiteNode.Fresh().(*suiteNode)
	other := &simulatedSuiteNode{suiteNode: fresh, personality: n.personality}
	other.begin()
	return other
}

func (n *simulatedSuiteNode) Start() reconcile.Backend {
	n.startOn(simulated{n.sim})
	return n.backend
}

func (n *simulatedSuiteNode) Inject(c generate.Cluster) func(error) bool {
	w := generator{c.T, c.Family}
	n.sim.ClearFaults()
	faults := w.drawInt("faults", 3) > 0
	if faults {
		f := sim.Fault{
			Function: rapid.SampledFrom([]string{"HcnCreate*", "HcnDelete*", "HcnModify*", "HcnQuery*"}).Draw(w.t, "function"),
			Code:     rapid.SampledFrom([]sim.Code{sim.InvalidParameter, sim.PortNotFound, sim.GeneralFailure, sim.ServerUnavailable}).Draw(w.t, "code"),
			When:     rapid.SampledFrom([]sim.When{sim.Instead, sim.Afterwards}).Draw(w.t, "when"),
			Count:    1 + w.drawInt("count", 3),
		}
		if err := n.sim.Inject(f); err != nil {
			w.t.Fatal(err)
		}
	}
	return func(err error) bool { return faults || len(reconcile.PortErrors(err)) > 0 }
}

func (n *simulatedSuiteNode) Tamper(c generate.Cluster) {
	n.load()
	n.suiteNode.Tamper(c)
	n.impose()
}

func (n *simulatedSuiteNode) Heal() {
	n.sim.ClearFaults()
	n.load()
	n.suiteNode.Heal()
	n.impose()
}

func (n *simulatedSuiteNode) State() string {
	n.load()
	return n.suiteNode.State()
}

func (n *simulatedSuiteNode) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	n.load()
	n.suiteNode.Judge(t, want, c)
}

func (n *simulatedSuiteNode) Check(t *rapid.T, want *service.Snapshot) {
	n.load()
	n.hns.warnings = n.sim.Warnings()
	n.suiteNode.Check(t, want)
}

// Changes returns the calls since the last time that changed something.
func (n *simulatedSuiteNode) Changes() (changes []string) {
	all := n.sim.Journal()
	for _, e := range all[n.journal:] {
		changes = append(changes, e.String())
	}
	n.journal = len(all)
	return changes
}

func parsed[T any](t testing.TB, s *sim.Simulator, kind sim.Kind, parse func([]byte) (T, error)) map[string]T {
	all := map[string]T{}
	for _, d := range s.Objects(kind) {
		text, err := json.Marshal(d)
		kit.Must(t, err)
		if all[d.ID()], err = parse(text); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// load copies what HNS holds to the fake.
func (n *simulatedSuiteNode) load() {
	n.hns.endpoints = parsed(n.t, n.sim, sim.Endpoint, parseEndpoint)
	n.hns.balancers = parsed(n.t, n.sim, sim.LoadBalancer, parseBalancer)
	n.hns.networks = slices.Collect(maps.Values(parsed(n.t, n.sim, sim.Network, parseNetwork)))
}

// impose makes HNS hold what the fake has.
func (n *simulatedSuiteNode) impose() {
	network := n.hns.networks[0]
	for id, have := range parsed(n.t, n.sim, sim.Network, parseNetwork) {
		if id != network.ID {
			n.remove(sim.Network, id)
			continue
		}
		if slices.Equal(have.Routes, network.Routes) {
			continue
		}
		var errs []error
		for _, r := range have.Routes {
			errs = append(errs, n.sim.RemoveRoute(id, routeTo(r)))
		}
		for _, r := range network.Routes { // in the same order
			errs = append(errs, n.sim.AddRoute(id, routeTo(r)))
		}
		if err := errors.Join(errs...); err != nil {
			n.t.Fatal(err)
		}
	}
	if _, ok := n.sim.Object(sim.Network, network.ID); !ok {
		n.createNetwork(network)
	}
	for id, have := range parsed(n.t, n.sim, sim.Endpoint, parseEndpoint) {
		if want, ok := n.hns.endpoints[id]; !ok || !reflect.DeepEqual(have, want) {
			n.remove(sim.Endpoint, id)
		}
	}
	for id, e := range n.hns.endpoints {
		if _, ok := n.sim.Object(sim.Endpoint, id); !ok {
			d := e.document()
			d.ID = id
			n.create(sim.External, sim.Endpoint, d)
		}
	}
	for id, have := range parsed(n.t, n.sim, sim.LoadBalancer, parseBalancer) {
		if want, ok := n.hns.balancers[id]; !ok || !have.equal(&want) {
			n.remove(sim.LoadBalancer, id)
		}
	}
	for id, lb := range n.hns.balancers {
		d, by := lb.document(), sim.Caller
		if d.ID = id; id == "foreign-balancer" {
			by = sim.External
		}
		if _, ok := n.sim.Object(sim.LoadBalancer, id); !ok {
			n.create(by, sim.LoadBalancer, d)
		}
	}
}

func (n *simulatedSuiteNode) remove(kind sim.Kind, id string) {
	_ = n.sim.Delete(kind, id) // it may have gone with another object
}

func routeTo(r Route) sim.Route {
	return sim.Route{Prefix: r.Subnet, Provider: r.Provider, MAC: "00-15-5D-00-00-02"}
}

func (n *simulatedSuiteNode) createNetwork(x Network) {
	c := sim.NetworkConfig{ID: x.ID, Name: x.Name, Type: string(x.Kind), Subnets: x.Subnets}
	for _, r := range x.Routes {
		c.Routes = append(c.Routes, routeTo(r))
	}
	if _, err := n.sim.AddNetwork(c); err != nil {
		n.t.Fatal(err)
	}
}

// create makes an object, unless HNS refuses it, as it does what leads to an endpoint that has gone.
func (n *simulatedSuiteNode) create(by sim.Actor, kind sim.Kind, document any) {
	text, err := json.Marshal(document)
	if err != nil {
		n.t.Fatal(err)
	}
	q := sim.Request{Function: "HcnCreate" + string(kind), Args: [3]string{string(text)}}
	if kind == sim.Endpoint {
		q.Handle = n.sim.CallAs(by, sim.Request{Function: "HcnOpenNetwork", ID: n.hns.networks[0].ID}).Handle
	}
	n.sim.CallAs(by, q)
}

// trace follows c through what HNS holds: to a load balancer with its address, otherwise,
// on the node, to one without an address. Without either, the connection is not
// translated.
func trace(k *fake, f service.Family, c route.Conn) []netip.AddrPort {
	find := func(vip netip.Addr) *LoadBalancer {
		for _, lb := range k.balancers {
			if lb.Address == (service.Address{Addr: vip, Family: f, Port: c.To.Port(), Protocol: c.Protocol}) {
				return &lb
			}
		}
		return nil
	}
	lb := find(c.To.Addr())
	if lb == nil && c.ToNode {
		lb = find(netip.Addr{})
	}
	if lb == nil {
		return nil
	}
	var to []netip.AddrPort
	for _, id := range lb.Endpoints {
		e := k.endpoints[id]
		to = append(to, netip.AddrPortFrom(e.addrIn(f), lb.TargetPort))
	}
	slices.SortFunc(to, netip.AddrPort.Compare)
	return to
}

// expected is the result of route.Decide, as far as HNS supports it. HNS cannot reject or
// drop, has neither source ranges nor SCTP, sends all clients to the same endpoints, and
// has one target port.
func expected(v route.Verdict, o Options) []netip.AddrPort {
	if v.Port == nil || v.Frontend.Sources != nil && !o.IgnoreSourceRanges || v.Port.Name.Protocol == service.SCTP {
		return nil
	}
	groups := map[uint16][]netip.AddrPort{}
	for _, e := range v.Port.Endpoints(v.Frontend.Kind) {
		groups[e.Addr.Port()] = append(groups[e.Addr.Port()], e.Addr)
	}
	if len(groups[9090]) > len(groups[8080]) {
		return groups[9090]
	}
	return groups[8080]
}

// Judge compares the result of HNS for c with the expected one. Forwarded health checks
// are not part of Services.
func (n *suiteNode) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	got, exp := trace(n.hns, n.draw.family, c), expected(v, n.options)
	if v.Port == nil && len(got) == 1 && got[0].Addr() == rootAddr(n.draw.family) {
		return
	}
	if diff := cmp.Diff(exp, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Fatalf("%+v: %s (-decide +hns):\n%s", c, v.Reason, diff)
	}
}

func rootAddr(f service.Family) netip.Addr {
	return generator{family: f}.nth("10.244.1.250", "fd00:10:244:1::fa", 0)
}

func (tn *testNode) setFamily(f service.Family) {
	h := tn.backend.host
	tn.backend = New(h, f, tn.options, 30*time.Second)
	tn.backend.hostMAC = func(netip.Addr) (string, error) { return "00-15-5d-aa-aa-aa", nil }
}

func (tn *testNode) addRootEndpoint() {
	tn.t.Helper()
	root := Endpoint{Name: "cbr0", Network: tn.hns.networks[0].ID, Addrs: []netip.Addr{rootAddr(tn.backend.family)}}
	if _, err := tn.hns.CreateEndpoint(context.Background(), root); err != nil {
		tn.t.Fatal(err)
	}
}
