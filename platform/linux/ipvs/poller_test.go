// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// TestPollingFindsExternalChanges checks that foreign changes of virtual servers are
// found long before the sync period is over, and that polling stays within its limit.
func TestPollingFindsExternalChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		s := snapshot(web(0, 2, service.TCP))
		apply(t, b, s)
		delete(k.servers, first)
		if p := planOf(t, b, s); !p.Empty() {
			t.Fatalf("at once: %s", p.Changes())
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var touches atomic.Int32
		go func() { _ = b.Watch(ctx, func() { touches.Add(1) }) }()
		time.Sleep(2*pollInterval + time.Millisecond)
		kit.Need(t, touches.Load() != 0, "nobody looks")
		p := planOf(t, b, s)
		if len(p.Outcome().Drift) == 0 {
			t.Errorf("a virtual server that is gone is no drift: %s", p.Changes())
		}
		err := p.Apply(ctx).Err
		kit.Check(t, err == nil && k.servers[first] != nil, "Apply: %v; virtual servers: %v", err, k.servers)
		b.poller.polled(time.Now().Add(-time.Second)) // simulates a read of this duration
		touches.Store(0)
		time.Sleep(pollShare*time.Second - pollInterval)
		n := touches.Load()
		kit.Check(t, n == 0, "after a look that took a second, %d more within %s", n, pollShare*time.Second)
	})
}

// TestServiceDeletedDuringPoll deletes a Service in a sync that reads the kernel state.
// Its server must be gone, also where leftovers of an earlier process have to stay.
func TestServiceDeletedDuringPoll(t *testing.T) {
	for name, c := range map[string]struct {
		exclude []netip.Prefix
		partial bool
	}{
		"in an excluded prefix":          {[]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, false},
		"while something cannot be read": {nil, true},
	} {
		k := newFake(service.IPv4)
		apply(t, newBackend(service.IPv4, k, Options{}), snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP)))
		b, one := newBackend(service.IPv4, k, Options{Exclude: c.exclude}), web(0, 1, service.TCP)
		s := snapshot(one)
		s.Incomplete = c.partial
		apply(t, b, s)
		b.poller.requested.Store(true)
		_, p := applyChanges(t, b, s, service.Change{Old: one})
		_, routed := k.routes[first.Addr]
		kit.Check(t, len(p.Outcome().Drift) <= 0 && !routed && k.servers[first] == nil && len(k.servers) == 1,
			"%s: the drift is %q, the addresses are %v and the virtual servers %v", name, p.Outcome().Drift, k.routes, k.servers)
	}
}

// TestListLeavesOut checks that a server missing in a list is not taken for deleted.
func TestListLeavesOut(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	s := snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
	apply(t, b, s)
	for range 2 {
		k.omitted = []service.Address{first}
		b.poller.requested.Store(true)
		if p := planOf(t, b, s); !p.Empty() || len(p.Outcome().Drift) > 0 {
			t.Errorf("the drift is %q, and to do:\n%s", p.Outcome().Drift, p.Changes())
		}
	}
	delete(k.servers, first)
	b.poller.requested.Store(true)
	p := apply(t, b, s)
	kit.Check(t, len(p.Outcome().Drift) == 2 && k.servers[first] != nil, "the drift is %q, and there are %v", p.Outcome().Drift, k.servers)
}

// slow delays reads of single virtual servers.
type slow struct{ *fake }

func (s slow) Server(ctx context.Context, at service.Address) (*observedServer, error) {
	time.Sleep(time.Second)
	return s.fake.Server(ctx, at)
}

// TestMuchIsGoneAtOnce checks that after many servers were deleted at once, the next
// poll is not delayed: it has less to read.
func TestMuchIsGoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		s := snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
		apply(t, b, s)
		clear(k.servers)
		b.driver = slow{k}
		b.poller.requested.Store(true)
		apply(t, b, s)
		wait := time.Until(time.Unix(0, b.poller.nextPoll.Load()))
		kit.Check(t, wait <= pollInterval, "nobody looks for %s, want %s", wait, pollInterval)
	})
}

// TestOtherSourceIsNoDrift checks that the node's own connections get another source
// when the API names another node address first, and that this is not reported as drift.
func TestOtherSourceIsNoDrift(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	s := snapshot(web(0, 1, service.TCP))
	apply(t, b, s)
	p := apply(t, b, s.With(2, &service.Node{NodePorts: service.AnyAddress(), Addrs: []netip.Addr{generate.OtherNodeAddr[0]}}, nil))
	wantLines(t, p, "+ address 10.96.0.0, reached from 198.51.100.1")
	drift := p.Outcome().Drift
	kit.Check(t, len(drift) == 0, "the drift is %q", drift)
}

// TestSettingsAreCompared checks that each read of the kernel state compares settings,
// too, and that a change does not. At the start all settings count, later those of IPVS.
func TestSettingsAreCompared(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	s := snapshot(web(0, 2, service.TCP))
	if p := apply(t, b, s); len(p.Outcome().Drift) > 0 {
		t.Errorf("at the start, drift is %q", p.Outcome().Drift)
	}
	kit.Check(t, slices.Equal(k.scopes, []settingsScope{scopeStartup}) && len(k.missingSettings) == 0,
		"looked at %v, which leaves %q", k.scopes, k.missingSettings)
	k.missingSettings = []string{"net.ipv4.vs.conntrack = 1"}
	if p := planOf(t, b, s); !p.Empty() {
		t.Errorf("a round that compares nothing: %s", p.Changes())
	}
	b.poller.requested.Store(true)
	p := apply(t, b, s)
	if drift := p.Outcome().Drift; !slices.Equal(drift, []string{"altered: setting net.ipv4.vs.conntrack = 1"}) || len(k.missingSettings) > 0 {
		t.Errorf("the drift is %q, and %q is left", drift, k.missingSettings)
	}
	kit.Check(t, slices.Equal(k.scopes, []settingsScope{scopeStartup, scopeRunning}), "looked at %v", k.scopes)
}

// TestLoadingDoesNotSlowPolling checks that the time for loading IPVS does not delay
// later polls.
func TestLoadingDoesNotSlowPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		k.loadTime = time.Second
		apply(t, b, snapshot(web(0, 2, service.TCP)))
		next := time.Until(time.Unix(0, b.poller.nextPoll.Load()))
		kit.Check(t, next <= pollInterval, "the next look is in %s, want %s", next, pollInterval)
	})
}

// TestDrainingIsLogged checks that the log contains how long connections of removed
// endpoints may continue, and when some were cut off.
func TestDrainingIsLogged(t *testing.T) {
	var out bytes.Buffer
	at := func(v int) context.Context {
		return klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out), textlogger.Verbosity(v))))
	}
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	apply(t, b, snapshot(web(0, 3, service.TCP), web(1, 2, service.UDP)))
	setConns(k, 3)
	const (
		keep = `"Endpoints that left keep their connections until these end" destinations=%d atMost="1h0m0s"`
		lost = `"Endpoints that left a while ago lost the connections that they still had" connections=6 after="1h0m0s"`
	)
	for i, c := range []struct {
		left         int // endpoints of TCP
		verbosity    int
		says, silent string
	}{
		{2, 0, fmt.Sprintf(keep, 1), "lost"},
		{1, 0, "", "keep"}, // already logged
		{2, 0, "", "keep"},
		{1, 2, fmt.Sprintf(keep, 1), "lost"},
		{1, 0, lost, "keep"},
	} {
		if i == 4 {
			k.clock = k.clock.Add(DrainTimeout)
		}
		out.Reset()
		less := snapshot(web(0, c.left, service.TCP), web(1, 1, service.UDP))
		kit.Must(t, planOf(t, b, less).Apply(at(c.verbosity)).Err)
		s := out.String()
		kit.Check(t, strings.Contains(s, c.says) && !strings.Contains(s, c.silent), "%d: logged %q, want %q", i, s, c.says)
	}
}

// TestDrainingIsLoggedAfterRestart checks that a process that finds draining
// destinations logs them, and how long they may drain from now on, although it has
// nothing else to do.
func TestDrainingIsLoggedAfterRestart(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	apply(t, b, snapshot(web(0, 3, service.TCP)))
	setConns(k, 3)
	less := snapshot(web(0, 1, service.TCP))
	apply(t, b, less)
	logger, out := kit.NewLog(0)
	ctx := klog.NewContext(t.Context(), logger)
	b = newBackend(service.IPv4, k, Options{})
	view, err := b.view(ctx, less)
	kit.Must(t, err)
	b.rules = &fakeRules{held: view}
	for range 2 {
		if p, err := b.Plan(ctx, less); err != nil || !p.Empty() {
			t.Fatalf("Plan: %v, want nothing to do:\n%s", err, generate.Text(p))
		}
	}
	const want = `"Endpoints that left keep their connections until these end" destinations=2 atMost="1h0m0s"`
	s := out.String()
	kit.Check(t, strings.Contains(s, want) && strings.Count(s, "\n") == 1, "logged %q, want %q once", s, want)
}

// summary returns a line for each virtual server and address in fa.
func (fa *fake) summary() []string {
	var all []string
	for _, at := range sortedKeys(fa.servers) {
		line := nameOf(at)
		for _, a := range slices.SortedFunc(maps.Keys(fa.servers[at].dests), netip.AddrPort.Compare) {
			line += fmt.Sprintf(" %s weight %d", a, fa.servers[at].dests[a].weight)
		}
		all = append(all, line)
	}
	for _, a := range sortedAddrs(fa.routes) {
		all = append(all, "address "+a.String())
	}
	return all
}

// setConnsOf sets the number of connections of the only destination of Service i.
func (fa *fake) setConnsOf(i int, proto service.Protocol, n uint32) {
	s := fa.servers[addressAt(web(i, 0, proto).Frontends[0].Addr, 80, proto)]
	for a, x := range s.dests {
		x.conns = n
		s.dests[a] = x
	}
}

// TestDrainOwned checks that none of our virtual servers accepts new connections, that
// those with connections stay while they have some, and that none stays beyond
// DrainTimeout.
func TestDrainOwned(t *testing.T) {
	k := newFake(service.IPv4)
	o := Options{}
	apply(t, newBackend(service.IPv4, k, o), snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP), web(2, 1, service.UDP)))
	foreign := addressAt(netip.MustParseAddr("192.0.2.9"), 53, service.UDP)
	k.servers[foreign] = &fakeServer{server{scheduler: "wlc"}, map[netip.AddrPort]dest{
		netip.MustParseAddrPort("10.0.0.1:53"): {addr: netip.MustParseAddrPort("10.0.0.1:53"), weight: 7},
	}}
	const theirs = "192.0.2.9:53 udp 10.0.0.1:53 weight 7"
	k.setConnsOf(1, service.TCP, 3)
	k.setConnsOf(2, service.UDP, 1)
	for _, step := range []struct {
		before func()
		lasted time.Duration
		stays  string
		cut    int
		want   []string
	}{
		{nil, 0, "virtual servers: 2, open connections: 4", 0, []string{
			"10.96.0.1:80 tcp 10.244.1.1:8080 weight 0", "10.96.0.2:80 udp 10.244.1.1:8080 weight 0", theirs, "address 10.96.0.1", "address 10.96.0.2"}},
		{func() { k.setConnsOf(1, service.TCP, 0) }, time.Minute, "virtual servers: 1, open connections: 1", 0, []string{
			"10.96.0.2:80 udp 10.244.1.1:8080 weight 0", theirs, "address 10.96.0.2"}},
		{nil, DrainTimeout, "", 1, []string{theirs}},
		{nil, DrainTimeout, "", 0, []string{theirs}},
	} {
		if step.before != nil {
			step.before()
		}
		stays, err := drainOwned(t.Context(), k, o.ownedServers, step.lasted)
		kit.Check(t, err == nil && stays.String() == step.stays && len(stays.cut) == step.cut,
			"after %s: %q, %d cut, %v; want %q, %d", step.lasted, stays, len(stays.cut), err, step.stays, step.cut)
		kit.Same(t, fmt.Sprintf("after %s (-want +got)", step.lasted), step.want, k.summary())
	}
}

// TestDrainOwnedFails checks that nothing is deleted while new connections may arrive.
func TestDrainOwnedFails(t *testing.T) {
	k := newFake(service.IPv4)
	apply(t, newBackend(service.IPv4, k, Options{}), snapshot(web(0, 1, service.TCP)))
	before := k.summary()
	k.refuse = func(o op) error {
		if o.verb == setDest {
			return errInjected
		}
		return nil
	}
	_, err := drainOwned(t.Context(), k, Options{}.ownedServers, 0)
	kit.Check(t, err != nil, "no error")
	kit.Same(t, "(-before +after)", before, k.summary())
}

// refuseDeletes refuses to delete virtual servers.
func refuseDeletes(o op) error {
	if o.verb == delServer {
		return errInjected
	}
	return nil
}

// published is a Service with a NodePort, whose endpoint is on another node.
func published(p *service.Port) *service.Port {
	p = withRemoteEndpoint(p, "")
	p.Frontends = append(slices.Clone(p.Frontends), service.Frontend{Kind: service.NodePort, Port: 30080})
	return p
}

// wantMasqueraded checks that connections to the NodePort reach endpoints, and that the
// answers return through this node.
func wantMasqueraded(t *testing.T, k *fake, proto service.Protocol) {
	t.Helper()
	for _, from := range []route.Conn{
		{From: netip.MustParseAddr("198.51.100.7"), Interface: "eth0"},
		{From: generate.NodeAddr[service.IPv4]},
	} {
		from.Protocol, from.To = proto, netip.AddrPortFrom(generate.NodeAddr[service.IPv4], 30080)
		got := trace(k, from)
		kit.Check(t, got.Action == route.Forward && len(got.Targets) != 0,
			"from %s: %+v, want an endpoint", from.From, got)
		for _, a := range got.Targets {
			kit.Check(t, got.Masq[a], "from %s: the answer of %s does not come through this node", from.From, a)
		}
	}
}

// TestRulesStayWithServer checks that the rules stay for a virtual server that the kernel
// refuses to delete, in each further round and after a restart, and that they go with it.
func TestRulesStayWithServer(t *testing.T) {
	for name, x := range map[string]struct {
		proto service.Protocol
		next  func(old *service.Port) []*service.Port
	}{
		"the Service leaves": {service.TCP, func(*service.Port) []*service.Port { return nil }},
		"its NodePort leaves": {service.TCP, func(old *service.Port) []*service.Port {
			p := *old
			p.Frontends = old.Frontends[:1]
			return []*service.Port{&p}
		}},
		"its ClusterIP passes on": {service.TCP, func(old *service.Port) []*service.Port {
			p := published(web(1, 1, service.TCP))
			p.Frontends = old.Frontends[:1]
			return []*service.Port{p}
		}},
		"its endpoints leave": {service.UDP, func(old *service.Port) []*service.Port {
			p := *old
			p.Cluster = nil
			return []*service.Port{&p}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			k, o := newFake(service.IPv4), Options{MasqueradeBit: 14}
			b := newBackendWithRules(service.IPv4, k, o)
			old := published(web(0, 1, x.proto))
			s := snapshot(old)
			apply(t, b, s)
			wantMasqueraded(t, k, x.proto)
			k.refuse = refuseDeletes
			changes := []service.Change{{Old: old}}
			for _, p := range x.next(old) {
				if p.Name == old.Name {
					changes = nil
				}
				changes = append(changes, service.Change{Old: s.Port(service.IPv4, p.Name), New: p})
			}
			next := s.With(2, s.Node, changes)
			for round := range 4 {
				b.poller.requested.Store(round == 2) // reads the kernel
				if round == 3 && x.proto == service.TCP {
					b = newBackendWithRules(service.IPv4, k, o)
				}
				err := planOf(t, b, next).Apply(t.Context()).Err
				kit.Need(t, errors.Is(err, errInjected), "round %d: Apply = %v", round, err)
				wantMasqueraded(t, k, x.proto)
			}
			k.refuse = nil
			apply(t, b, next)
			fresh := newFake(service.IPv4)
			apply(t, newBackendWithRules(service.IPv4, fresh, o), next)
			kit.Same(t, "then (-fresh +now)", fresh.sets.Text()+fresh.tables.Text(), k.sets.Text()+k.tables.Text())
		})
	}
}

// TestOthersGoOn checks that a Service gets an endpoint while one of its virtual servers
// cannot be deleted.
func TestOthersGoOn(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14})
	old := published(web(0, 1, service.TCP))
	s := snapshot(old)
	apply(t, b, s)
	k.refuse = refuseDeletes
	next := s.With(2, s.Node, []service.Change{{Old: old, New: web(0, 3, service.TCP)}})
	applyRefused(t, b, next, "web-0", errInjected)
	n := len(k.servers[first].dests)
	kit.Check(t, n >= 3, "%d destinations", n)
	wantMasqueraded(t, k, service.TCP)
}

// TestPendingNodePorts restarts while the Node is not known. The addresses that answered
// NodePorts continue to answer until it is.
func TestPendingNodePorts(t *testing.T) {
	a := generate.NodeAddr[0]
	k := newFake(service.IPv4)
	p := web(0, 1, service.TCP)
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	ports := []*service.Port{p}
	answers := func() bool { return k.servers[addressAt(a, 30080, service.TCP)] != nil }
	pending := &service.Node{NodePortsPending: [2]bool{true, true}}
	apply(t, newBackend(service.IPv4, k, Options{}), service.New(1, pending, ports))
	kit.Need(t, !answers(), "an unknown node answers NodePorts")
	known := &service.Node{Addrs: []netip.Addr{a}, NodePorts: []netip.Prefix{netip.PrefixFrom(a, 32)}}
	apply(t, newBackend(service.IPv4, k, Options{}), service.New(1, known, ports))
	b := newBackend(service.IPv4, k, Options{})
	s := service.New(2, pending, ports)
	apply(t, b, s)
	kit.Need(t, answers(), "NodePorts are closed before the node is known")
	apply(t, b, service.New(3, &service.Node{}, ports))
	kit.Check(t, !answers(), "the node is known and has no address, and NodePorts are answered")
}
