// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// round does a round and returns the text of its plan.
func round(t *testing.T, b *Backend, s *service.Snapshot) (string, reconcile.Outcome) {
	t.Helper()
	p, err := b.Plan(context.Background(), s)
	kit.Must(t, err)
	if p.Empty() {
		return "", p.Outcome()
	}
	return p.Changes().String(), p.Apply(context.Background())
}

// snapshot returns one of TCP ports: pairs of a ClusterIP with port, and its endpoints.
func snapshot(ports ...[]string) *service.Snapshot {
	var all []*service.Port
	for i, p := range ports {
		at := netip.MustParseAddrPort(p[0])
		x := &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Protocol: service.TCP},
			Family:    service.FamilyOf(at.Addr()),
			Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: at.Addr(), Port: at.Port()}},
		}
		for _, e := range p[1:] {
			x.Cluster = append(x.Cluster, service.Endpoint{Addr: netip.MustParseAddrPort(e)})
		}
		all = append(all, x)
	}
	return service.New(1, nodeA, all)
}

var nodeA = &service.Node{Name: "node-a"}

// TestTakesWhatTheRulesWouldForward compares the tables with the judge after each of many
// changes, in growing tables and after restarts.
func TestTakesWhatTheRulesWouldForward(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			w, k := newRandomCluster(7, f), &fake{family: f}
			b := New(f, k, Options{})
			for i := range 1000 {
				w.step()
				if w.IntN(50) == 0 { // a new process
					b = New(f, k, Options{})
				}
				plan, o := round(t, b, w.snapshot)
				kit.Need(t, o.Err == nil && o.Degraded == "" && o.Drift == nil, "round %d: %+v\n%s", i, o, plan)
				w.judge(t, k)
				kit.Need(t, !t.Failed(), "round %d", i)
			}
			kit.Check(t, k.barriers != 0, "no slot was used twice")
		})
	}
}

// TestProgramsSeeWholeLists lets programs read the tables while they change. Each endpoint
// names its Service, so one of another Service shows.
func TestProgramsSeeWholeLists(t *testing.T) {
	const services = 8
	k := &fake{family: service.IPv4}
	b := New(service.IPv4, k, Options{})
	end := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() { k.readAll(t, services, end) })
	}
	r := rand.New(rand.NewPCG(1, 1))
	sizes := make([]int, services)
	for generation := range uint64(1000) {
		sizes[r.IntN(services)] = r.IntN(90)
		_, o := round(t, b, numbered(generation, sizes))
		kit.Need(t, o.Degraded == "", "%v", o.Degraded)
	}
	close(end)
	readers.Wait()
	kit.Check(t, k.barriers >= 10, "%d barriers: slots were hardly used twice", k.barriers)
}

// numbered returns a Snapshot of services with these numbers of endpoints.
func numbered(generation uint64, sizes []int) *service.Snapshot {
	var ports []*service.Port
	for i, n := range sizes {
		p := &service.Port{
			Name:      service.PortName{Name: fmt.Sprint(i), Protocol: service.TCP},
			Frontends: []service.Frontend{{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), Port: 80}},
		}
		for e := range n {
			p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), byte(e)}), 80)})
		}
		ports = append(ports, p)
	}
	return service.New(generation, &service.Node{}, ports)
}

// readAll connects to all services until end is closed.
func (f *fake) readAll(t *testing.T, services int, end chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-end:
			return
		default:
		}
		to := netip.AddrFrom4([4]byte{10, 96, 0, byte(i % services)})
		e, ok := f.connect(netip.AddrPortFrom(to, 80), i)
		if a := e.Addr().As4(); ok && (a[1] != 1 || a[2] != byte(i%services)) {
			t.Errorf("%s led to %s", to, e)
			return
		}
	}
}

// TestFailures has each call of the driver fail once. The layer leaves, says why, and is
// back after a resync.
func TestFailures(t *testing.T) {
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80", "10.1.0.2:80"})
	next := snapshot([]string{"10.96.0.10:80", "10.1.0.2:80", "10.1.0.3:80"})
	for _, call := range []string{"Adopt", "Build", "Activate"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &fake{family: service.IPv4, fails: map[string]bool{call: true, "Build": true}}
				b := New(service.IPv4, k, Options{})
				_, o := round(t, b, s)
				kit.Need(t, o.Err == nil && strings.Contains(o.Degraded, "IPv4 is off"), "%+v, want it degraded", o)
				kit.Need(t, k.active == nil, "tables are in force after a failure")
				k.fails = nil
				if plan, o := round(t, b, next); plan != "" || o.Degraded == "" {
					t.Errorf("before a resync: plan %q, %+v", plan, o)
				}
				time.Sleep(time.Minute)
				if _, o := round(t, b, next); o.Degraded != "" || len(k.endpoints(netip.MustParseAddrPort("10.96.0.10:80"))) != 2 {
					t.Errorf("%+v, want the layer back", o)
				}
			})
		})
	}
}

// TestStuckLayerIsAnError covers a layer that can neither be changed nor removed: its
// stale lists concern traffic.
func TestStuckLayerIsAnError(t *testing.T) {
	k := &fake{family: service.IPv4, fails: map[string]bool{"Build": true, "Remove": true}}
	b := New(service.IPv4, k, Options{})
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"})
	_, o := round(t, b, s)
	kit.Need(t, o.Err != nil, "no error")
	k.fails = nil
	if _, o := round(t, b, s); o.Err != nil || o.Degraded != "" || k.active == nil {
		t.Errorf("retry: %+v", o)
	}
}

// TestDrift has others alter the tables and detach the programs.
func TestDrift(t *testing.T) {
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"}, []string{"10.96.0.11:80", "10.1.0.2:80"})
	to := netip.MustParseAddrPort("10.96.0.10:80")
	for name, c := range map[string]struct {
		alter func(k *fake)
		want  string
	}{
		"list emptied":    {func(k *fake) { k.entry(to, 0) }, "altered: take connections to 10.96.0.10:80, shop/web-000: 10.1.0.1:80"},
		"list of another": {func(k *fake) { k.entry(to, listOf(1, 1)) }, "altered: take connections to 10.96.0.10:80, shop/web-000: 10.1.0.1:80"},
		"list outside":    {func(k *fake) { k.entry(to, listOf(1<<30, 9)) }, "altered: take connections to 10.96.0.10:80, shop/web-000: 10.1.0.1:80"},
		"detached":        {func(k *fake) { k.detached = errInjected }, "injected"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{family: service.IPv4}
			b := New(service.IPv4, k, Options{})
			round(t, b, s)
			c.alter(k)
			_, o := round(t, b, s)
			kit.Same(t, "drift (-want +got)", []string{c.want}, o.Drift)
			got := k.endpoints(to)
			kit.Check(t, len(got) == 1 && got[0].String() == "10.1.0.1:80", "after the repair: %v", got)
			if plan, o := round(t, b, s); plan != "" || o.Drift != nil {
				t.Errorf("then plan %q, drift %q", plan, o.Drift)
			}
		})
	}
}

func (f *fake) entry(to netip.AddrPort, l list) {
	i, _ := f.active.find(nameOf(to))
	f.active.setList(i, l)
}

// TestPodsAppear has the kubelet make its cgroups after the layer is in force, and remake
// them. The next comparison takes the pods. If that fails, the layer leaves.
func TestPodsAppear(t *testing.T) {
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"})
	k := &fake{family: service.IPv4}
	b := New(service.IPv4, k, Options{})
	round(t, b, s)
	for _, pods := range []string{"/kubepods", "/node/kubepods"} {
		k.pods = pods
		plan, o := round(t, b, s)
		kit.Check(t, plan == "+ take connections of other pods: the cgroup of all pods is "+pods+"\n" && o.Err == nil && o.Degraded == "" && o.Drift == nil && k.followed == pods,
			"plan %q, %+v, followed %q", plan, o, k.followed)
		if plan, _ := round(t, b, s); plan != "" {
			t.Errorf("then plan %q", plan)
		}
	}
	for _, call := range []string{"Moved", "Follow"} {
		k.pods, k.fails = "/"+call, map[string]bool{call: true, "Build": true}
		_, o := round(t, b, s)
		kit.Check(t, o.Degraded != "" && k.active == nil, "%s fails: %+v, want it degraded", call, o)
		k.fails = nil
		if _, o := round(t, b, s); o.Degraded != "" || k.followed != k.pods {
			t.Errorf("after %s failed: %+v", call, o)
		}
	}
}

// TestIncompleteSnapshotKeepsFrontends covers objects that cannot be read after a restart.
func TestIncompleteSnapshotKeepsFrontends(t *testing.T) {
	k := &fake{family: service.IPv4}
	both := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"}, []string{"10.96.0.11:80", "10.1.0.2:80"})
	round(t, New(service.IPv4, k, Options{}), both)
	one := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"})
	one.Incomplete = true
	b := New(service.IPv4, k, Options{})
	round(t, b, one)
	to := netip.MustParseAddrPort("10.96.0.11:80")
	kit.Check(t, len(k.endpoints(to)) == 1, "a frontend left with an incomplete snapshot")
	round(t, b, snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"}))
	kit.Check(t, len(k.endpoints(to)) == 0, "a frontend stayed with a complete snapshot")
}

// TestOff removes what an earlier process left.
func TestOff(t *testing.T) {
	k := &fake{family: service.IPv4}
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"})
	round(t, New(service.IPv4, k, Options{}), s)
	b := New(service.IPv4, k, Options{Off: true})
	plan, o := round(t, b, s)
	kit.Check(t, plan == "- remove socket acceleration of IPv4\n" && o.Err == nil && k.active == nil,
		"plan %q, %+v", plan, o)
	if plan, _ := round(t, b, s); plan != "" {
		t.Errorf("then plan %q", plan)
	}
}

// TestPlanText shows what a plan prints.
func TestPlanText(t *testing.T) {
	k := &fake{family: service.IPv4}
	b := New(service.IPv4, k, Options{})
	got := ""
	for _, s := range []*service.Snapshot{
		snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"}, []string{"10.96.0.11:80", "10.1.0.2:80"}),
		snapshot([]string{"10.96.0.10:80", "10.1.0.1:80", "10.1.0.3:80"}),
	} {
		plan, _ := round(t, b, s)
		got += plan
	}
	want := `+ make tables of socket acceleration of IPv4: no tables are in force
+ take connections to 10.96.0.10:80, shop/web-000: 10.1.0.1:80 10.1.0.3:80
- take no connection to 10.96.0.11:80
`
	kit.Same(t, "(-want +got)", want, got)
}

// TestNamesFit fills tables as full as they get with names as clusters have them.
func TestNamesFit(t *testing.T) {
	for _, f := range service.Families {
		w := newRandomCluster(1, f)
		const n = 30000
		m, _ := (&fake{family: f}).Build(entriesFor(n), 8)
		m.frontends = m.frontends[:len(m.frontends)/2] // fuller than tables get
		for i := range n {
			x := nameOf(netip.AddrPortFrom(w.addr(96+i>>16, i), uint16(80+i%3)))
			at, found := m.find(x)
			if at < 0 || found {
				t.Fatalf("%s: name %d of %d in %d entries: entry %d, found %t", f, i, n, m.entries(), at, found)
			}
			m.claim(at, x)
		}
	}
}

// TestListsStayUntilABarrier reads every list again that a program may have found since
// the last barrier.
func TestListsStayUntilABarrier(t *testing.T) {
	k := &fake{family: service.IPv4}
	b := New(service.IPv4, k, Options{})
	r := rand.New(rand.NewPCG(2, 2))
	sizes := make([]int, 8)
	found := map[list][]netip.AddrPort{}
	var active *Memory
	barriers := 0
	for generation := range uint64(2000) {
		sizes[r.IntN(len(sizes))] = r.IntN(90) * r.IntN(2)
		if r.IntN(10) == 0 { // a new process knows nothing of what programs may have found
			b = New(service.IPv4, k, Options{})
		}
		round(t, b, numbered(generation, sizes))
		if k.active != active || k.barriers != barriers {
			active, barriers = k.active, k.barriers
			clear(found)
		}
		for l, want := range found {
			got := active.contents(l)
			kit.Need(t, slices.Equal(got, want), "round %d: a list of %s holds %s without a barrier", generation, want, got)
		}
		for i := range active.entries() {
			if l := active.list(i); l != 0 {
				found[l] = active.contents(l)
			}
		}
	}
	kit.Check(t, barriers >= 10, "%d barriers: slots were hardly used twice", barriers)
}

func (m *Memory) contents(l list) (all []netip.AddrPort) {
	for i := range l.len() {
		all = append(all, m.slot(l.first()+i))
	}
	return all
}

// TestFloodedBuckets has a Service whose ports fill both buckets of another one's address.
// Tables with another seed have a place for it. What has none is said.
func TestFloodedBuckets(t *testing.T) {
	for _, f := range service.Families {
		at, flood := "10.96.0.10:80", "10.96.0.66:%d"
		if f == service.IPv6 {
			at, flood = "[fd00:10:96::10]:80", "[fd00:10:96::66]:%d"
		}
		endpoint := "10.244.1.11:80"
		if f == service.IPv6 {
			endpoint = "[fd00::11]:80"
		}
		m := &Memory{family: f, seed: 7}
		buckets := func(a string) [2]uint32 {
			h := m.hash(nameOf(netip.MustParseAddrPort(a)))
			all := []uint32{uint32(h) & (minEntries - 1) &^ (bucket - 1), uint32(h>>32) & (minEntries - 1) &^ (bucket - 1)}
			slices.Sort(all)
			return [2]uint32(all)
		}
		var ports [][]string
		for p := 1; p < 1<<16 && len(ports) < 2*bucket; p++ {
			if a := fmt.Sprintf(flood, p); buckets(a) == buckets(at) {
				ports = append(ports, []string{a, endpoint})
			}
		}
		s := snapshot(append(ports, []string{at, endpoint})...)
		for name, c := range map[string]struct {
			seeds []uint64
			want  string
		}{
			"another seed":     {[]uint64{7, 8}, ""},
			"unlucky thrice":   {[]uint64{7, 7, 7}, "has no place for 1 addresses"},
			"unlucky, resynch": {[]uint64{7, 7, 7, 8}, "has no place for 1 addresses"},
		} {
			k := &fake{family: f, seeds: c.seeds}
			b := New(f, k, Options{})
			_, o := round(t, b, s)
			kit.Check(t, o.Err == nil && strings.Contains(o.Degraded, c.want) && (c.want != "" || o.Degraded == ""),
				"%s, %s: %+v", f, name, o)
			kit.Check(t, c.want != "" || len(k.endpoints(netip.MustParseAddrPort(at))) == 1,
				"%s, %s: the address has no place", f, name)
			_, o = round(t, b, s)
			kit.Check(t, o.Degraded == "" && len(k.endpoints(netip.MustParseAddrPort(at))) == 1, "%s, %s: after a resync: %q", f, name, o.Degraded)
		}
	}
}

// TestOthers has programs attached beside those of the layer.
func TestOthers(t *testing.T) {
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"})
	k := &fake{family: service.IPv4, strays: 4}
	b := New(service.IPv4, k, Options{})
	_, o := round(t, b, s)
	kit.Check(t, o.Degraded == "" && k.strays == 0, "a first round leaves %d programs: %+v", k.strays, o)
	k.strays = 2
	if plan, o := round(t, b, s); !strings.HasPrefix(plan, "- detach programs") || o.Degraded != "" || k.strays != 0 {
		t.Errorf("%q leaves %d programs: %+v", plan, k.strays, o)
	}
	k.unknown = "program 7"
	for range 2 {
		plan, o := round(t, b, s)
		kit.Check(t, plan == "" && strings.HasSuffix(o.Degraded, "may not be what decides: program 7"), "plan %q, %q", plan, o.Degraded)
	}
	k.strays, k.unknown, k.fails = 2, "", map[string]bool{"Evict": true}
	if _, o := round(t, b, s); o.Degraded == "" || k.active != nil {
		t.Errorf("programs that cannot be detached: %+v", o)
	}
	k.fails = map[string]bool{"Others": true}
	if _, o := round(t, b, s); !strings.Contains(o.Degraded, "may not be what decides") {
		t.Errorf("nobody knows: %q", o.Degraded)
	}
}

// TestMissedPods has clients connect whose connections the rules see.
func TestMissedPods(t *testing.T) {
	pods := service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for name, c := range map[string]struct {
		from, to string
		taken    Taken // in each round
		pods     service.LocalPods
		options  Options
		want     bool
	}{
		"all of pods":           {"10.1.0.9", "10.96.0.10:80", Taken{}, pods, Options{}, true},
		"but those of the node": {"10.1.0.9", "10.96.0.10:80", Taken{Node: 1}, pods, Options{}, true},
		"some are taken":        {"10.1.0.9", "10.96.0.10:80", Taken{Pods: 1}, pods, Options{}, false},
		"of the node":           {"192.0.2.1", "10.96.0.10:80", Taken{}, pods, Options{}, false},
		"to another address":    {"10.1.0.9", "10.96.0.10:81", Taken{}, pods, Options{}, false},
		"pods are not known":    {"10.1.0.9", "10.96.0.10:80", Taken{}, service.LocalPods{}, Options{}, false},
		"pods by interface":     {"10.1.0.9", "10.96.0.10:80", Taken{}, service.LocalPods{InterfacePrefix: "veth"}, Options{}, false},
		"pods keep the rules":   {"10.1.0.9", "10.96.0.10:80", Taken{}, pods, Options{NodeOnly: true}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := &fake{family: service.IPv4}
			port := uint16(1000)
			o := c.options
			o.Connections = func(_ context.Context, _ service.Family, each func(from, to netip.AddrPort)) error {
				each(netip.MustParseAddrPort("10.1.0.8:7"), netip.MustParseAddrPort("10.96.0.10:80")) // an old one
				for range fewMissed {
					port++
					each(netip.AddrPortFrom(netip.MustParseAddr(c.from), port), netip.MustParseAddrPort(c.to))
				}
				return nil
			}
			b := New(service.IPv4, k, o)
			all := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80"})
			node := *nodeA
			node.Pods = c.pods
			s := service.New(1, &node, allPorts(all))
			var said string
			for range 4 {
				_, out := round(t, b, s)
				said = out.Degraded
				k.taken.Node += c.taken.Node
				k.taken.Pods += c.taken.Pods
				time.Sleep(time.Second)
			}
			got := strings.Contains(said, "takes no connection of pods: the rules saw 3 new connections of pods, as from 10.1.0.9:")
			kit.Check(t, got == c.want && (c.want || said == ""), "%s: %q", name, said)
			k.taken.Pods += 2
			_, out := round(t, b, s)
			kit.Check(t, out.Degraded == "", "%s, then taken: %q", name, out.Degraded)
			o.Connections = func(context.Context, service.Family, func(from, to netip.AddrPort)) error {
				return fmt.Errorf("no conntrack")
			}
			b.missed.list = o.Connections
			if _, out := round(t, b, s); out.Degraded != "" {
				t.Errorf("%s, table not read: %q", name, out.Degraded)
			}
		})
	}
}

func allPorts(s *service.Snapshot) (all []*service.Port) {
	for p := range s.Ports(service.IPv4) {
		all = append(all, p)
	}
	return all
}

// TestReadBack compares what the tables hold with what they should hold, as text.
func TestReadBack(t *testing.T) {
	to := netip.MustParseAddrPort("10.96.0.10:80")
	const whole = `# socket acceleration, IPv4
# connect tcp 10.96.0.10:80, shop/web-000
#   10.1.0.1:80
#   10.1.0.2:80
`
	for name, c := range map[string]struct {
		alter        func(k *fake)
		off          bool
		held, wanted string
	}{
		"as it should be": {held: whole, wanted: whole},
		"nothing there":   {alter: func(k *fake) { k.active = nil }, wanted: whole},
		"switched off":    {off: true, held: whole},
		"list shortened":  {alter: func(k *fake) { k.entry(to, listOf(0, 1)) }, held: strings.Replace(whole, "#   10.1.0.1:80\n", "", 1), wanted: whole},
		"list emptied":    {alter: func(k *fake) { k.entry(to, 0) }, held: "# socket acceleration, IPv4\n", wanted: whole},
		"list outside":    {alter: func(k *fake) { k.entry(to, listOf(1<<30, 1)) }, held: "# socket acceleration, IPv4\n# connect tcp 10.96.0.10:80, shop/web-000\n#   its list is damaged\n", wanted: whole},
		"detached":        {alter: func(k *fake) { k.detached = errInjected }, held: strings.Replace(whole, "IPv4\n", "IPv4\n# not in force: injected\n", 1), wanted: whole},
		"list of none": {
			alter:  func(k *fake) { k.foreign(netip.MustParseAddrPort("10.96.0.9:80"), listOf(0, 1)) },
			held:   strings.Replace(whole, "IPv4\n", "IPv4\n# connect tcp 10.96.0.9:80, of no Service\n#   10.1.0.2:80\n", 1),
			wanted: whole,
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{family: service.IPv4}
			want := snapshot([]string{to.String(), "10.1.0.2:80", "10.1.0.1:80"}, []string{"10.96.0.11:80"})
			round(t, New(service.IPv4, k, Options{}), want)
			if c.alter != nil {
				c.alter(k)
			}
			held, wanted, err := New(service.IPv4, k, Options{Off: c.off}).ReadBack(want)
			diff := gocmp.Diff([2]string{c.held, c.wanted}, [2]string{held.String(), wanted.String()})
			kit.Check(t, err == nil && diff == "", "%v (-want +got):\n%s", err, diff)
		})
	}
}

// TestUnseenError says whether programs are there, or why nothing is known.
func TestUnseenError(t *testing.T) {
	for likely, want := range map[bool]string{
		true:  "programs are attached where socket acceleration of IPv6 attaches its own",
		false: "may not look for programs of socket acceleration (injected)",
	} {
		err := (&UnseenError{Family: service.IPv6, Likely: likely, Err: errInjected})
		kit.Check(t, strings.Contains(err.Error(), want), "%v, want %q", err, want)
	}
}

// TestTrace asks what happens to connections of all sorts, with sound and altered tables.
func TestTrace(t *testing.T) {
	to := netip.MustParseAddrPort("10.96.0.10:80")
	all := "gives the socket one of 10.1.0.1:80, 10.1.0.2:80; a socket that the program bound"
	const nodes = "a socket of the node gets the address that the route to the endpoint has"
	for name, c := range map[string]struct {
		to       string
		protocol service.Protocol
		iface    string
		from     string
		alter    func(k *fake)
		says     string
		fault    string
		note     string
	}{
		"of the node":     {says: all, note: nodes},
		"of an endpoint":  {iface: "pod", from: "10.1.0.1", says: all, note: "the server sees 10.1.0.1"},
		"of a pod":        {iface: "pod", from: "10.1.0.9", says: all},
		"pods not found":  {iface: "pod", from: "10.1.0.9", alter: func(k *fake) { k.followed = "" }, says: "the cgroup of all pods was not found"},
		"from outside":    {iface: "eth0", from: "192.0.2.1", says: "it is on another machine"},
		"UDP":             {protocol: service.UDP, says: "UDP sockets would keep an endpoint that left"},
		"no Service":      {to: "10.96.0.99:80", says: "no Service has 10.96.0.99:80"},
		"external":        {to: "192.0.2.7:80", says: "only ClusterIPs are accelerated"},
		"no endpoints":    {to: "10.96.0.11:80", says: "without endpoints the rules refuse it"},
		"affinity":        {to: "10.96.0.12:80", says: "the rules know the clients of sessionAffinity"},
		"detached":        {alter: func(k *fake) { k.detached = errInjected }, says: "rules: injected", fault: "socket acceleration is not in force: injected"},
		"others":          {alter: func(k *fake) { k.unknown = "program 7" }, says: "10.1.0.2:80, unless another program has changed its address: program 7", fault: "may not be what decides: program 7", note: nodes},
		"nothing there":   {alter: func(k *fake) { k.active = nil }, says: "no program is attached", fault: "socket acceleration is not in force: no program is attached"},
		"list emptied":    {alter: func(k *fake) { k.entry(to, 0) }, says: "no table has 10.96.0.10:80", fault: "never gives 10.1.0.1:80"},
		"list shortened":  {alter: func(k *fake) { k.entry(to, listOf(0, 1)) }, says: "gives the socket one of 10.1.0.1:80;", fault: "never gives 10.1.0.2:80", note: nodes},
		"list of another": {to: "10.96.0.12:80", alter: func(k *fake) { k.foreign(netip.MustParseAddrPort("10.96.0.12:80"), listOf(0, 1)) }, says: "gives the socket one of 10.1.0.1:80;", fault: "also gives 10.1.0.1:80", note: nodes},
		"list outside":    {alter: func(k *fake) { k.entry(to, listOf(1<<30, 1)) }, says: "no table has", fault: "the list of 10.96.0.10:80 is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{family: service.IPv4, pods: "/kubepods"}
			want := tracedSnapshot()
			round(t, New(service.IPv4, k, Options{}), want)
			if c.alter != nil {
				c.alter(k)
			}
			conn := route.Conn{From: netip.MustParseAddr("192.0.2.10"), To: to, Protocol: cmp.Or(c.protocol, service.TCP), Interface: c.iface}
			if c.from != "" {
				conn.From = netip.MustParseAddr(c.from)
			}
			if c.to != "" {
				conn.To = netip.MustParseAddrPort(c.to)
			}
			w := &explain.Walk{Hops: []explain.Hop{{Object: "a rule"}}}
			kit.Must(t, New(service.IPv4, k, Options{}).Trace(want, conn, w))
			kit.Check(t, len(w.Hops) == 2 && w.Hops[0].Object == "connect(2)" && strings.Contains(w.Hops[0].Does, c.says), "hops %+v, want %q", w.Hops, c.says)
			got := strings.Join(w.Notes, "; ")
			kit.Check(t, strings.Contains(got, c.note) && (c.note == "") == (got == ""), "notes %q, want %q", got, c.note)
			if got := strings.Join(w.Faults, "; "); !strings.Contains(got, c.fault) || (c.fault == "") != (got == "") {
				t.Errorf("faults %q, want %q", got, c.fault)
			}
		})
	}
}

// tracedSnapshot has 10.96.0.10:80 with two endpoints and an external IP, 10.96.0.11:80
// without endpoints, and 10.96.0.12:80 with session affinity.
func tracedSnapshot() *service.Snapshot {
	node := &service.Node{Name: "node-a", Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}
	s := snapshot([]string{"10.96.0.10:80", "10.1.0.1:80", "10.1.0.2:80"}, []string{"10.96.0.11:80"}, []string{"10.96.0.12:80", "10.1.0.3:80"})
	all := slices.Collect(s.Ports(service.IPv4))
	all[0].Frontends = append(all[0].Frontends, service.Frontend{Kind: service.ExternalIP, Addr: netip.MustParseAddr("192.0.2.7"), Port: 80})
	all[2].Affinity = 10
	return service.New(1, node, all)
}

// foreign puts a list where the layer has none.
func (f *fake) foreign(to netip.AddrPort, l list) {
	n := nameOf(to)
	i, _ := f.active.find(n)
	f.active.claim(i, n)
	f.active.setList(i, l)
}
