// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/xtables"
)

var errInjected = backendtest.ErrInjected

func TestSuites(t *testing.T) { runSuites(t, 0, Options{}) }

// The suites pass if iptables-restore gets new chains in pieces, and with lists of two
// endpoints that have branches.
func TestSuitesInPieces(t *testing.T) { runSuites(t, 7, Options{ListSize: 1}) }

func runSuites(t *testing.T, piece int, o Options) {
	backendtest.Run(t, backendtest.Harness{
		New:     func(w generate.Cluster) backendtest.Node { return newNode(w.Family, piece, o) },
		Cluster: func(w generate.Cluster) backendtest.Cluster { return generate.WithoutServiceCIDRs{Cluster: w} },
		ReadBack: func(ctx context.Context, b reconcile.Backend, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
			return b.(*Backend).ReadBack(ctx, want)
		},
	})
}

// foreignChains are chains of other components.
var foreignChains = map[id][]string{
	{nat, "CNI-HOSTPORT"}:        {"-p tcp -m tcp --dport 8443 -j DNAT --to-destination 10.244.1.7:443"},
	{nat, "KUBE-MARK-DROP"}:      {"-j MARK --set-xmark 0x8000/0x8000"},
	{filter, "KUBE-FIREWALL"}:    {"-m mark --mark 0x8000/0x8000 -j DROP"},
	{nat, "KUBE-KUBELET-CANARY"}: nil,
}

func (f *fake) addForeignChains() {
	for i, rules := range foreignChains {
		f.Tables[i.table][i.name] = slices.Clone(rules)
	}
	f.Tables[nat]["PREROUTING"] = []string{"-j CNI-HOSTPORT"}
}

func wantForeignChains(t fataler, k *fake) {
	for i, rules := range foreignChains {
		got, found := k.Tables[i.table][i.name]
		if !found || !slices.Equal(got, rules) {
			t.Fatalf("chain %s of somebody else is now %q", i.name, got)
		}
	}
	if !slices.Contains(k.Tables[nat]["PREROUTING"], "-j CNI-HOSTPORT") {
		t.Fatalf("a rule of somebody else is gone")
	}
}

// node is a fake system with chains of others, for the suites.
type node struct {
	*fake
	family  service.Family
	options Options
}

func newNode(f service.Family, piece int, o Options) *node {
	k := newFake()
	k.Piece = piece
	k.addForeignChains()
	o.MasqueradeBit, o.DropInvalid = 14, true
	return &node{k, f, o}
}

func (n *node) Start() reconcile.Backend { return NewWith(n.family, n.options, n.fake) }
func (n *node) Fresh() backendtest.Node  { return newNode(n.family, n.Piece, n.options) }
func (n *node) Heal()                    { n.Refuse = nil }

// Inject has texts refused for their content, or because another process holds the lock.
func (n *node) Inject(w generate.Cluster) func(error) bool {
	n.Refuse = func(string) error {
		switch w.DrawInt("refuse", 4) {
		case 0:
			return errInjected
		case 1:
			return ErrBusy
		}
		return nil
	}
	return func(err error) bool { return errors.Is(err, ErrBusy) }
}

func (n *node) Tamper(w generate.Cluster) {
	n.Dirty = true
	table := tables[w.DrawInt("table", 2)]
	var ours []string
	for _, name := range slices.Sorted(maps.Keys(n.Tables[table])) {
		if (*Role)(nil).owns(id{table, name}) {
			ours = append(ours, name)
		}
	}
	if len(ours) == 0 {
		return
	}
	name := ours[w.DrawInt("chain", len(ours))]
	switch w.DrawInt("kind", 4) {
	case 0: // as when a firewall restarts
		for x := range n.Tables[table] {
			n.Tables[table][x] = slices.Clone(foreignChains[id{table, x}])
		}
		if table == nat {
			n.Tables[nat]["PREROUTING"] = []string{"-j CNI-HOSTPORT"}
		}
	case 1:
		n.Tables[table][name] = nil
	case 2:
		n.Tables[table][name] = append(n.Tables[table][name], "-j ACCEPT")
	case 3:
		n.Tables[nat]["KUBE-SVC-STRAY"] = []string{"-j RETURN"}
	}
}

func (n *node) State() string { return n.Text() }

func (n *node) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	// One rule for all endpoints detects hairpin connections and does not check where the
	// endpoint is. A remote endpoint whose connection comes this way needs it, too.
	expected := backendtest.Expect(v, func(e service.Endpoint) bool { return e.Addr.Addr() == c.From })
	if diff := backendtest.Diff(expected, n.Trace(c, generate.IsNodeLocal)); diff != "" {
		t.Fatalf("%+v: %s (-decide +iptables):\n%s\n%s", c, v.Reason, diff, n.Text())
	}
}

func (n *node) Check(t *rapid.T, _ *service.Snapshot) {
	if missing := parse(n.Text(), nil).missingJumps(layout{family: n.family}.jumps()); len(missing) > 0 {
		t.Fatalf("missing: %v", missing)
	}
	wantForeignChains(t, n.fake)
}

func newBackend(f service.Family, k *fake) *Backend {
	return NewWith(f, Options{MasqueradeBit: 14, DropInvalid: true}, k)
}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync that must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) *plan {
	return generate.Apply(t, b, want).(*plan)
}

// fake is a system that is as strict as a real one.
type fake struct{ *xtables.System }

func newFake() *fake { return &fake{xtables.New(nil)} }

// TestCounts counts what rounds write, and what the tables hold after each.
func TestCounts(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	held := func() map[string]int {
		n := map[string]int{}
		for table, chains := range k.Tables {
			for name, rules := range chains {
				if strings.HasPrefix(name, "KUBE-") {
					n[table] += len(rules)
				}
			}
		}
		return n
	}
	round := func(b *Backend, want *service.Snapshot) reconcile.Outcome {
		t.Helper()
		p, err := b.Plan(t.Context(), want)
		switch {
		case err != nil:
			t.Fatal(err)
		case p.Empty():
			return p.Outcome()
		}
		return p.Apply(t.Context())
	}
	check := func(after string, got reconcile.Outcome, written map[string]int) {
		t.Helper()
		diff := cmp.Diff(&reconcile.Rules{Held: held(), Written: written}, got.Rules)
		kit.Check(t, diff == "" && got.Err == nil, "after %s: %v (-want +got):\n%s", after, got.Err, diff)
	}
	out := round(b, simple(20))
	first := held()
	written := map[string]int{}
	for _, j := range b.jumps() {
		written[j.from.table]++
	}
	for table, n := range first {
		written[table] += n
	}
	check("the first round", out, written)
	check("one without a change", round(b, simple(20)), map[string]int{nat: 0, filter: 0})

	k.Refuse = func(string) error { return errInjected }
	if got := round(b, simple(21)); got.Err == nil || !got.Rules.Refused || got.Rules.Held != nil {
		t.Errorf("after a refusal: %v, %+v, want it refused and nothing known", got.Err, got.Rules)
	}
	k.Refuse = nil
	check("all in order again", round(b, simple(20)), map[string]int{nat: 0, filter: 0})
	check("rules are adopted", round(newBackend(service.IPv4, k), simple(20)), map[string]int{nat: 0, filter: 0})
}

// counting is a kernel whose rules have counters.
type counting struct {
	*fake
	texts map[string]string
	err   error
	asked int
	takes time.Duration
}

// List implements lister.
func (c *counting) List(_ context.Context, table, chain string) (string, error) {
	c.asked++
	time.Sleep(c.takes)
	return c.texts[table+" "+chain], c.err
}

// TestPackets reads counters as iptables prints them, and rarely if that takes long.
func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{fake: newFake(), texts: map[string]string{
			"filter KUBE-FORWARD": "-N KUBE-FORWARD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -c 12 3456 -j DROP\n" +
				"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -c 9 9 -j ACCEPT\n",
			"nat KUBE-POSTROUTING": "-N KUBE-POSTROUTING\n-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -c 5 5 -j RETURN\n" +
				"-A KUBE-POSTROUTING -m conntrack --ctorigdst 127.0.0.0/8 -c 7 420\n",
		}}
		b := NewWith(service.IPv4, Options{}, c)
		got, err := b.Packets(t.Context())
		kit.Check(t, err == nil && got == (Packets{Invalid: 12, Loopback: 7}), "Packets = %+v, %v", got, err)
		c.err = errors.New("busy")
		b.counts.next = time.Time{}
		if got, err := b.Packets(t.Context()); !errors.Is(err, c.err) || got.Invalid != 12 {
			t.Errorf("without an answer: %+v, %v, want what it was, and why", got, err)
		}
		c.err, c.takes = nil, 20*time.Millisecond
		b.counts.next = time.Time{}
		_, _ = b.Packets(t.Context())
		asked := c.asked
		_, err = b.Packets(t.Context())
		kit.Check(t, err == nil && c.asked == asked, "asked again at once: %v", err)
		time.Sleep(2 * countShare * c.takes) // two chains are listed
		_, err = b.Packets(t.Context())
		kit.Check(t, err == nil && c.asked != asked, "not asked again when it is time: %v", err)
		_, err = newBackend(service.IPv4, newFake()).Packets(t.Context())
		kit.Check(t, errors.Is(err, errors.ErrUnsupported), "a kernel that does not count: %v", err)
	})
}

// TestCounters adds up the rules of both policies of a port, as iptables-save -c prints
// them, and leaves out those of others.
func TestCounters(t *testing.T) {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP}}
	want := service.New(1, &service.Node{}, []*service.Port{p})
	cluster, local := portChainName(clusterPrefix, p), portChainName(localPrefix, p)
	text := strings.NewReplacer("CLUSTER", cluster, "LOCAL", local).Replace(`*nat
:CLUSTER - [0:0]
[40:2400] -A PREROUTING -j KUBE-SERVICES
[3:180] -A CLUSTER -d 10.96.0.1/32 -j KUBE-MARK-CLUSTER
[7:420] -A CLUSTER -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.244.0.1:8080
[5:300] -A CLUSTER -p tcp -j DNAT --to-destination 10.244.0.2:8080 --random
[2:120] -A LOCAL -p tcp -j DNAT --to-destination 10.244.0.1:8080
[9:540] -A CNI-DN-1 -p tcp -j DNAT --to-destination 10.244.0.9:80
[x:y] -A CLUSTER -p tcp -j DNAT --to-destination 10.244.0.3:8080
COMMIT
`)
	c := &Counters{family: service.IPv4, list: func(context.Context) (string, error) { return text, nil }}
	samples, err := c.Read(t.Context(), want)
	got := map[string]uint64{}
	for _, s := range samples {
		kit.Check(t, s.Name == p.Name, "%v has another name", s)
		got[s.Endpoint.String()] = s.Connections
	}
	diff := cmp.Diff(map[string]uint64{"10.244.0.1:8080": 9, "10.244.0.2:8080": 5}, got)
	kit.Check(t, diff == "" && err == nil, "%v (-want +got):\n%s", err, diff)
	c.list = func(context.Context) (string, error) { return "", errors.New("refused") }
	if _, err := c.Read(t.Context(), want); err == nil || !strings.Contains(err.Error(), "iptables what its rules have counted: refused") {
		t.Errorf("%v, want the error of the command", err)
	}
	_, to, _ := parseTranslation("[1:60] -A X -j DNAT --to-destination [fd00::1]:80\n")
	kit.Check(t, to == netip.MustParseAddrPort("[fd00::1]:80"), "an address of IPv6 is %s", to)
	k := c.Kinds()
	kit.Check(t, k == (traffic.Kinds{}), "%+v are counted, too", k)
}

// TestLoopbackIsClosedAgain lets NodePorts answer on loopback addresses. Then a backend
// without that option runs, or a cleanup.
func TestLoopbackIsClosedAgain(t *testing.T) {
	for end, undo := range map[string]func(*testing.T, *fake){
		"another choice": func(t *testing.T, k *fake) { program(t, NewWith(service.IPv4, Options{MasqueradeBit: 14}, k)) },
		"a relay": func(t *testing.T, k *fake) {
			o := Options{MasqueradeBit: 14, LocalhostNodePorts: true}
			o.Relay[service.IPv4] = netip.MustParseAddr("169.254.107.112")
			program(t, NewWith(service.IPv4, o, k))
		},
		"a cleanup": func(t *testing.T, k *fake) {
			err := NewWith(service.IPv4, Options{}, k).Cleanup(context.Background())
			kit.Check(t, err == nil, "Cleanup: %v", err)
		},
	} {
		for _, others := range []bool{false, true} { // whether route_localnet was set before
			k := newFake()
			k.RouteLocalnet = others
			program(t, local(k))
			_, marked := k.Tables[filter][localnetMark.name]
			kit.Check(t, k.RouteLocalnet && marked != others, "%s, others %t: open %t, marked %t", end, others, k.RouteLocalnet, marked)
			program(t, local(k)) // as another process
			undo(t, k)
			if _, marked := k.Tables[filter][localnetMark.name]; k.RouteLocalnet != others || marked {
				t.Errorf("%s, others %t: then open %t, marked %t", end, others, k.RouteLocalnet, marked)
			}
		}
	}
}

func local(k *fake) *Backend {
	return NewWith(service.IPv4, Options{MasqueradeBit: 14, LocalhostNodePorts: true}, k)
}

func program(t *testing.T, b *Backend) {
	t.Helper()
	p, err := b.Plan(context.Background(), simple(3))
	if err == nil {
		err = p.Apply(context.Background()).Err
	}
	kit.Check(t, err == nil, "program: %v", err)
	if p, err := b.Plan(context.Background(), simple(3)); err != nil || !p.Empty() {
		t.Errorf("once more: %v, still to do:\n%s", err, generate.Text(p))
	}
}

// TestLoopbackMarkComesAgain removes everything that is ours.
func TestLoopbackMarkComesAgain(t *testing.T) {
	k := newFake()
	b := local(k)
	program(t, b)
	k.Tables = newFake().Tables
	k.Dirty = true
	program(t, b)
	_, marked := k.Tables[filter][localnetMark.name]
	kit.Check(t, marked, "nobody knows any more who opened loopback addresses")
}

// TestLoopbackDespiteRefusal enables route_localnet although a Service is refused.
func TestLoopbackDespiteRefusal(t *testing.T) {
	k := newFake()
	k.Refuse = func(text string) error {
		if strings.Contains(text, "shop/web-001") {
			return errInjected
		}
		return nil
	}
	b := local(k)
	p, err := b.Plan(context.Background(), simple(3))
	kit.Must(t, err)
	err = p.Apply(context.Background()).Err
	failed := reconcile.PortErrors(err)
	kit.Check(t, len(failed) == 1 && k.RouteLocalnet, "Apply = %v, open %t; want one failure, and open", err, k.RouteLocalnet)
}

// TestLoopbackThatStaysClosed has a node that cannot route loopback addresses.
// Everything else is in force, no rule leads a local client astray, and the backend
// reports what is missing until the node allows it.
func TestLoopbackThatStaysClosed(t *testing.T) {
	k := newFake()
	k.LocalnetErr = errInjected
	b, want := local(k), simple(3)
	check := func(open bool) {
		t.Helper()
		p := apply(t, b, want)
		rules := k.Text()
		closed := strings.Contains(rules, "-d 127.0.0.0/8 -j RETURN")
		kit.Check(t, closed != open && strings.Contains(rules, "! -s 127.0.0.0/8") == open, "open %t, and the rules are\n%s", open, rules)
		_, marked := k.Tables[filter][localnetMark.name]
		kit.Check(t, k.RouteLocalnet == open && marked == open, "open %t, marked %t; want %t", k.RouteLocalnet, marked, open)
		lack := p.Outcome().Degraded
		kit.Check(t, strings.Contains(lack, errInjected.Error()) != open && (lack == "") == open, "open %t: lacks %q", open, lack)
	}
	check(false)
	k.LocalnetErr = nil
	check(true)
}

// TestLoopbackMarkIsNoDrift checks that the next process finds the mark, keeps or
// removes it, and reports no drift when it reads the tables again for another reason.
func TestLoopbackMarkIsNoDrift(t *testing.T) {
	for name, next := range map[string]bool{"kept": true, "removed": false} {
		k := newFake()
		program(t, local(k))
		b := NewWith(service.IPv4, Options{MasqueradeBit: 14, LocalhostNodePorts: next}, k)
		program(t, b)
		k.Dirty = true
		if p, err := b.Plan(t.Context(), simple(3)); err != nil || len(p.Outcome().Drift) > 0 || !p.Empty() {
			t.Errorf("%s: %v, drift %q, to do:\n%s", name, err, p.Outcome().Drift, p.Changes())
		}
	}
}

// TestKernelIsLiberal checks that nothing is dropped if the kernel accepts packets
// outside of the TCP window, from the next sync on, and that the sync writes only the
// chain in question.
func TestKernelIsLiberal(t *testing.T) {
	k := newFake()
	b := NewWith(service.IPv4, Options{MasqueradeBit: 14, DropInvalid: true}, k)
	for _, k.TCPBeLiberal = range []bool{false, true, true, false} {
		program(t, b)
		drops := slices.Contains(k.Tables[filter][forwardChain], invalidRule)
		kit.Check(t, drops != k.TCPBeLiberal, "kernel liberal %t: packets are dropped: %t", k.TCPBeLiberal, drops)
		fresh, err := NewWith(service.IPv4, b.options, k).Plan(t.Context(), simple(3))
		kit.Check(t, err == nil && fresh.Empty(), "a new backend finds to do: %v\n%s", err, fresh)
	}
	kit.Check(t, k.Restores == 3, "%d restores, want one for the start and one for each turn", k.Restores)
}

// locked is a system whose dormant tables cannot be changed.
type locked struct{ *fake }

func (locked) Activate(string) error { return errors.New("operation not permitted") }

// TestDormantTableOfAnother checks that a dormant table that cannot be changed makes
// each sync fail, with a command that might help, while everything else is programmed.
func TestDormantTableOfAnother(t *testing.T) {
	k := newFake()
	k.DormantTables = []string{nat}
	b := NewWith(service.IPv6, Options{MasqueradeBit: 14}, locked{k})
	for range 2 {
		p, err := b.Plan(t.Context(), simple(3))
		kit.Need(t, err == nil && !p.Empty() && strings.Contains(p.Changes().String(), "~ nat table: active"),
			"plan %v, %v, want one that activates table nat", p, err)
		err = p.Apply(t.Context()).Err
		kit.Check(t, err != nil && strings.Contains(err.Error(), "nft add table ip6 nat"),
			"error %v, want one with a command", err)
	}
	if !slices.Contains(k.Tables[nat]["PREROUTING"], "-j KUBE-SERVICES") {
		t.Errorf("rules are missing:\n%s", k.Text())
	}
}
