// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
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
	if v.Action == route.Forward && v.Frontend.Kind == service.ClusterIP && v.Port.Affinity == 0 && !v.Port.SelectsConsistently(service.ClusterIP) && !want.Node.MasqueradeAll {
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

// fake is a Driver without a kernel. Programs are calls of connect.
type fake struct {
	family service.Family
	// programs is held by each program, and by Barrier until they have ended.
	programs sync.RWMutex

	built, active *Memory
	detached      error
	// fails are the calls that fail, and crashes the one in which the process dies.
	fails    map[string]bool
	crashes  string
	barriers int
	// pods is the cgroup of all pods, and followed the one whose pods are taken.
	pods, followed string
	// strays counts programs of an earlier process, and unknown names those of somebody.
	strays  int
	unknown string
	taken   Taken
	unseen  error    // what Repeats lacks
	seeds   []uint64 // of the next tables
}

var errInjected = backendtest.ErrInjected

func (f *fake) fail(call string) error {
	if f.crashes == call {
		panic(backendtest.ErrCrash)
	}
	if f.fails[call] {
		return errInjected
	}
	return nil
}

func (f *fake) Adopt() (*Memory, error) { return f.active, f.fail("Adopt") }

func (f *fake) Build(frontends, slots int) (*Memory, error) {
	w := words[f.family]
	var seed uint64
	if len(f.seeds) > 0 {
		seed, f.seeds = f.seeds[0], f.seeds[1:]
	}
	f.built = &Memory{family: f.family, seed: seed, frontends: make([]uint64, frontends*(w+1)), slots: make([]uint64, slots*w)}
	return f.built, f.fail("Build")
}

func (f *fake) Activate() error {
	if err := f.fail("Activate"); err != nil {
		return err
	}
	f.programs.Lock()
	defer f.programs.Unlock()
	f.active, f.built, f.detached, f.followed = f.built, nil, nil, f.pods
	return nil
}

func (f *fake) Attached() error { return f.detached }

func (f *fake) Moved() (string, error) {
	if f.pods == f.followed {
		return "", f.fail("Moved")
	}
	return "the cgroup of all pods is " + f.pods, f.fail("Moved")
}

func (f *fake) Follow() error {
	f.followed = f.pods
	return f.fail("Follow")
}

func (f *fake) Barrier() error {
	f.programs.Lock()
	defer f.programs.Unlock()
	f.barriers++
	return f.fail("Barrier")
}

func (f *fake) Inspect() (*State, error) {
	if f.active == nil {
		return nil, f.fail("Inspect")
	}
	s := &State{Memory: f.active, Pods: f.followed != "", Others: f.unknown}
	if f.detached != nil {
		s.Fault = f.detached.Error()
	}
	return s, f.fail("Inspect")
}

func (f *fake) Others() (Others, error) {
	if f.strays > 0 {
		return Others{Strays: f.strays, Text: "strays"}, f.fail("Others")
	}
	return Others{Text: f.unknown}, f.fail("Others")
}

func (f *fake) Evict() error {
	if err := f.fail("Evict"); err != nil {
		return err
	}
	f.strays = 0
	return nil
}

func (f *fake) Installed() (bool, error) { return f.active != nil, f.fail("Installed") }

func (f *fake) Remove() error {
	if err := f.fail("Remove"); err != nil {
		return err
	}
	f.active = nil
	return nil
}

func (f *fake) Release()              {}
func (f *fake) Taken() (Taken, error) { return f.taken, f.fail("Taken") }

func (f *fake) Repeats(ctx context.Context, _ func(repeat), _ func()) error {
	if f.unseen == nil {
		<-ctx.Done()
	}
	return f.unseen
}

// connect does what the programs do, and returns the endpoint with number choice.
func (f *fake) connect(to netip.AddrPort, choice int) (netip.AddrPort, bool) {
	f.programs.RLock()
	defer f.programs.RUnlock()
	m := f.active
	if m == nil {
		return to, false
	}
	i, found := m.find(nameOf(to))
	if !found {
		return to, false
	}
	l := m.list(i)
	if l.len() == 0 {
		return to, false
	}
	runtime.Gosched() // a program can be interrupted here
	return m.slot(l.first() + choice%l.len()), true
}

// endpoints returns where connections to an address lead, in the order of the list.
func (f *fake) endpoints(to netip.AddrPort) []netip.AddrPort {
	var all []netip.AddrPort
	for i := 0; ; i++ {
		e, ok := f.connect(to, i)
		if !ok || slices.Contains(all, e) {
			return all
		}
		all = append(all, e)
	}
}

// randomCluster is a random cluster that changes.
type randomCluster struct {
	*rand.Rand
	family   service.Family
	ports    map[service.PortName]*service.Port
	snapshot *service.Snapshot
}

func newRandomCluster(seed uint64, f service.Family) *randomCluster {
	w := &randomCluster{Rand: rand.New(rand.NewPCG(seed, 1)), family: f, ports: map[service.PortName]*service.Port{}}
	w.snapshot = service.New(1, &service.Node{Name: "a"}, nil)
	return w
}

func (r *randomCluster) addr(net, n int) netip.Addr {
	if r.family == service.IPv4 {
		return netip.AddrFrom4([4]byte{10, byte(net), byte(n >> 8), byte(n)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 2: byte(net), 14: byte(n >> 8), 15: byte(n)})
}

// step changes some ports.
func (r *randomCluster) step() {
	var changes []service.Change
	for range 1 + r.IntN(4) {
		n := r.IntN(40)
		name := service.PortName{Namespace: "shop", Name: fmt.Sprintf("s%02d", n), Protocol: service.TCP}
		old := r.ports[name]
		if slices.ContainsFunc(changes, func(c service.Change) bool { return c.Name() == name }) {
			continue
		}
		next := r.port(name, n)
		switch {
		case old == nil && next == nil:
			continue
		case next == nil:
			delete(r.ports, name)
		default:
			r.ports[name] = next
		}
		changes = append(changes, service.Change{Old: old, New: next})
	}
	node := r.snapshot.Node
	if r.IntN(20) == 0 {
		node = &service.Node{Name: "a", MasqueradeAll: !node.MasqueradeAll}
	}
	r.snapshot = r.snapshot.With(r.snapshot.Generation+1, node, changes)
}

func (r *randomCluster) port(name service.PortName, n int) *service.Port {
	if r.IntN(4) == 0 {
		return nil
	}
	p := &service.Port{Name: name, Family: r.family}
	// Addresses move between Services: n and n+100 take turns with the parity of a draw.
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ClusterIP, Addr: r.addr(96, n), Port: uint16(80 + r.IntN(2))})
	if r.IntN(3) == 0 {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: r.addr(97, n), Port: 80})
	}
	for i := range r.IntN(12) {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(r.addr(1, n*16+i), 8080)})
	}
	switch r.IntN(6) {
	case 0:
		p.Affinity = time.Hour
	case 1:
		p.Internal = service.PolicyLocal
		if len(p.Cluster) > 2 {
			p.Local = p.Cluster[:2]
		}
	}
	return p
}

func (r *randomCluster) judge(t *testing.T, k *fake) {
	t.Helper()
	for n := range 40 {
		for port := range uint16(2) {
			to := netip.AddrPortFrom(r.addr(96, n), 80+port)
			if want, got := r.expected(to), k.endpoints(to); !slices.Equal(got, want) {
				t.Errorf("%s leads to %s, judge %s", to, got, want)
			}
		}
		if e, ok := k.connect(netip.AddrPortFrom(r.addr(97, n), 80), 0); ok {
			t.Errorf("an external address leads to %s", e)
		}
	}
}

// expected returns where the judge forwards connections that the layer may take.
func (r *randomCluster) expected(to netip.AddrPort) (want []netip.AddrPort) {
	v := route.Decide(r.snapshot, route.Conn{Protocol: service.TCP, From: r.addr(1, 9999), To: to})
	if v.Action != route.Forward || v.Port.Affinity != 0 || r.snapshot.Node.MasqueradeAll {
		return nil
	}
	for _, e := range v.Endpoints {
		want = append(want, e.Addr)
	}
	return want
}
