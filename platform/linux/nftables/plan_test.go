// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// wantUpToDate checks that a backend without state finds nothing to do.
func wantUpToDate(t *testing.T, k *fake, want *service.Snapshot) {
	t.Helper()
	p, err := (&Backend{family: k.family, driver: k}).Plan(context.Background(), want)
	if err != nil || !p.Empty() {
		t.Errorf("Plan = %v, still to do:\n%s", err, generate.Text(p))
	}
}

// programs reports whether ops program the named Service.
func programs(ops []op, name string) bool {
	return slices.ContainsFunc(ops, func(o op) bool {
		return o.verb == addElement && o.element.comment == "shop/"+name
	})
}

// A Port that conflicts with another one is retried after that one has moved.
func TestApplyRetriesAtTheEnd(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	moved := false
	k.refuse = func(ops []op) error {
		if programs(ops, "web-003") && !moved {
			return errInjected
		}
		moved = moved || programs(ops, "web-009")
		return nil
	}
	apply(t, b, simple(10))
	wantUpToDate(t, k, b.have.snapshot)
}

// If the kernel rejects everything, Apply does not try every Port.
func TestApplyGivesUp(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	asked := 0
	k.refuse = func(ops []op) error {
		asked++
		if ops[0].element.in != nil {
			return errInjected
		}
		return nil
	}
	err := planNow(t, b, simple(200)).Apply(context.Background()).Err
	kit.Check(t, err != nil && strings.Contains(err.Error(), "gave up after 64 refusals"),
		"Apply = %.200v, want it to give up", err)
	n := len(reconcile.PortErrors(err))
	kit.Check(t, n == maxFailures, "%d ports are named, want %d", n, maxFailures)
	kit.Check(t, asked <= 3*maxFailures, "the kernel was asked %d times", asked)
}

// A failure of a prerequisite unit ends Apply and names no Port.
func TestApplyPrepares(t *testing.T) {
	k := &fake{refuse: func([]op) error { return errInjected }}
	err := planNow(t, &Backend{driver: k}, simple(2)).Apply(context.Background()).Err
	kit.Check(t, errors.Is(err, errInjected) && strings.HasPrefix(err.Error(), "prepare table ip kube-services") && len(reconcile.PortErrors(err)) <= 0,
		"Apply = %v", err)
}

// A cancelled context ends the search for the Port at fault.
func TestApplyStops(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	apply(t, b, simple(0))
	ctx, cancel := context.WithCancel(context.Background())
	asked := 0
	k.refuse = func([]op) error {
		asked++
		cancel()
		return errInjected
	}
	err := planNow(t, b, simple(50)).Apply(ctx).Err
	kit.Check(t, errors.Is(err, errInjected) && asked == 1, "Apply = %v after %d transactions, want the first one's", err, asked)
}

func planNow(t *testing.T, b *Backend, want *service.Snapshot) reconcile.Plan {
	t.Helper()
	p, err := b.Plan(context.Background(), want)
	kit.Need(t, err == nil, "Plan: %v", err)
	return p
}

// Large changes are split, so that other users of nftables get their turn.
func TestApplyCutsLargeChanges(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	var sizes []int
	k.refuse = func(ops []op) error {
		sizes = append(sizes, len(ops))
		return nil
	}
	for _, want := range []*service.Snapshot{servicesWith(200, 100), simple(0)} {
		sizes = nil
		apply(t, b, want)
		most := slices.Max(sizes)
		kit.Check(t, most <= chunk+300 && len(sizes) >= 3 && len(sizes) <= 6, "transactions of %v operations, want some of about %d", sizes, chunk)
	}
	kit.Check(t, len(b.have.shared) == 0, "%d shared elements are remembered of nothing", len(b.have.shared))
}

// servicesWith returns n Services with ends endpoints each. Both are at most 255.
func servicesWith(n, ends int) *service.Snapshot {
	var ports []*service.Port
	for p := range simple(n).Ports(service.IPv4) {
		ports = append(ports, withEndpoints(p, 1, ends))
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

// withEndpoints returns a copy of p with the endpoints first to last.
func withEndpoints(p *service.Port, first, last int) *service.Port {
	c := *p
	c.Cluster = nil
	for i := first; i <= last; i++ {
		c.Cluster = append(c.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(generate.NthAddr("10.244.2.0", i), 8080)})
	}
	return &c
}

// TestSmallChangesAddUp applies a series of changes to one Service. Each is planned from
// the known state, and none reads the table.
func TestSmallChangesAddUp(t *testing.T) {
	type step struct{ first, last int } // endpoints; none if last is 0
	for name, steps := range map[string][]step{
		"slots out of order and back in order": {{1, 3}, {2, 3}, {2, 4}, {7, 9}, {8, 10}},
		"gone and back":                        {{1, 5}, {3, 6}, {0, 0}, {3, 6}, {2, 6}},
		"a class that grows twice":             {{1, 20}, {1, 5}, {1, 40}, {1, 20}},
		"from one to none to one":              {{1, 1}, {5, 4}, {2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{}
			b := &Backend{driver: k}
			s := simple(3)
			apply(t, b, s)
			first := s.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-001", Protocol: service.TCP})
			other := s.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-002", Protocol: service.TCP})
			old := first
			for _, x := range steps {
				next := withEndpoints(first, x.first, x.last)
				if x.last == 0 {
					next = nil
				}
				changes := []service.Change{{Old: old, New: next}, {Old: other, New: withEndpoints(other, 1, len(steps))}}
				s = s.With(s.Generation+1, s.Node, changes)
				apply(t, b, s)
				wantUpToDate(t, k, s)
				old, other = next, changes[1].New
			}
			if k.reads != 1+len(steps) { // one at the start, one for each wantUpToDate
				t.Errorf("%d times read", k.reads)
			}
		})
	}
}

// After a partly failed sync, the next one handles what was applied, also if the desired
// state is the previous one again.
func TestChangesAfterAFailure(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	apply(t, b, servicesWith(5, 2))
	want := servicesWith(5, 3)
	k.refuse = func(ops []op) error {
		if programs(ops, "web-003") {
			return errInjected
		}
		return nil
	}
	err := planNow(t, b, want).Apply(context.Background()).Err
	kit.Check(t, len(reconcile.PortErrors(err)) == 1, "Apply = %v, want a failure of one port", err)
	k.refuse = nil
	back := servicesWith(5, 2)
	apply(t, b, back)
	wantUpToDate(t, k, back)
}

// faultyDriver is a fake whose reads can fail.
type faultyDriver struct {
	*fake
	readErr, touchedErr, pruneErr error
}

func (f *faultyDriver) Read(ctx context.Context) (*table, error) {
	t, err := f.fake.Read(ctx)
	if f.readErr != nil {
		return nil, f.readErr
	}
	return t, err
}

func (f *faultyDriver) Touched(ctx context.Context) (bool, error) {
	if f.touchedErr != nil {
		return false, f.touchedErr
	}
	return f.fake.Touched(ctx)
}

func (f *faultyDriver) PruneClients(ctx context.Context, s *set, keep map[string]bool) error {
	if f.pruneErr != nil {
		return f.pruneErr
	}
	return f.fake.PruneClients(ctx, s, keep)
}

// After a failed read the next plan reads again. It repairs another process's change,
// although the driver does not report that change a second time.
func TestPlanAfterAFailedRead(t *testing.T) {
	u := &faultyDriver{fake: &fake{}}
	b := &Backend{driver: u}
	want := simple(2)
	apply(t, b, want)
	u.table.chains[dispatchChain].rules = nil
	u.fake.touched = true
	u.readErr = errInjected
	_, err := b.Plan(context.Background(), want)
	kit.Check(t, errors.Is(err, errInjected) && strings.Contains(err.Error(), "read table ip kube-services"), "Plan = %v, want it to say what it read", err)
	u.readErr = nil
	apply(t, b, want)
	kit.Check(t, len(u.table.chains[dispatchChain].rules) != 0, "the chain was not repaired")
}

func TestPlanErrorNamesTable(t *testing.T) {
	u := &faultyDriver{fake: &fake{family: service.IPv6}}
	b := &Backend{family: service.IPv6, driver: u}
	apply(t, b, simple(0))
	u.touchedErr = errInjected
	_, err := b.Plan(context.Background(), simple(1))
	kit.Check(t, errors.Is(err, errInjected) && strings.Contains(err.Error(), "table ip6 kube-services"), "Plan = %v", err)
}

func TestCleanup(t *testing.T) {
	ctx := context.Background()
	u := &faultyDriver{fake: &fake{}}
	b := &Backend{driver: u}
	err := b.Cleanup(ctx)
	kit.Check(t, err == nil && u.commits == 0, "nothing to clean up: %v, %d transactions", err, u.commits)
	apply(t, b, simple(1))
	u.refuse = func([]op) error { return errInjected }
	if err := b.Cleanup(ctx); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "delete table ip kube-services") {
		t.Errorf("Cleanup = %v", err)
	}
	u.refuse = nil
	u.readErr = errInjected
	if err := b.Cleanup(ctx); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "read table ip kube-services") {
		t.Errorf("Cleanup = %v", err)
	}
	u.readErr = nil
	err = b.Cleanup(ctx)
	kit.Check(t, err == nil && u.table == nil, "Cleanup = %v, table %v", err, u.table)
	apply(t, b, simple(1))
	kit.Check(t, u.table != nil, "nothing was programmed after a cleanup")
}

// A client that cannot be deleted is an error of its Port, and the next sync retries.
func TestPruneClientsFails(t *testing.T) {
	u := &faultyDriver{fake: &fake{}}
	b := &Backend{driver: u}
	first, want := sticky(service.IPv4, 1, 3), sticky(service.IPv4, 3)
	apply(t, b, first)
	p := first.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP})
	clients := u.table.sets[clientSet(p, service.PolicyCluster, 8081).name]
	client, gone := addr("192.0.2.7").AsSlice(), addr("10.244.1.1").AsSlice()
	clients.elements[string(client)] = element{in: clients.set, key: client, value: gone}

	u.pruneErr = errInjected
	plan, err := b.Plan(context.Background(), want)
	kit.Need(t, err == nil, "Plan: %v", err)
	failed := reconcile.PortErrors(plan.Apply(context.Background()).Err)
	kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "cart" && errors.Is(failed[0], errInjected),
		"Apply failed for %v, want cart", failed)
	u.pruneErr = nil
	apply(t, b, want)
	kit.Check(t, len(u.table.sets[clients.name].elements) == 0, "the client is still remembered")
}

// sticky returns a Port with session affinity and endpoints at two ports. ends are the
// last parts of the endpoints' addresses.
func sticky(f service.Family, ends ...int) *service.Snapshot {
	p := &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP},
		Family: f, Affinity: time.Hour,
		Frontends: []service.Frontend{{Addr: addr([]string{"10.96.0.20", "fd00:10:96::20"}[f]), Port: 80}},
	}
	for _, n := range ends {
		a := generate.NthAddr([]string{"10.244.1.0", "fd00:10:244:1::"}[f], n)
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(a, uint16(8080+n%2))})
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{p})
}

// TestIncompleteSnapshotKeepsAndChanges has an earlier process leave a Service. The first
// snapshot of the next one does not have it yet, and a later one has it with other
// endpoints.
func TestIncompleteSnapshotKeepsAndChanges(t *testing.T) {
	k := &fake{}
	first := simple(2)
	apply(t, &Backend{driver: k}, first)
	b := &Backend{driver: k}
	partial := simple(1)
	partial.Incomplete = true
	apply(t, b, partial)
	n := len(k.table.sets["services"].elements)
	kit.Need(t, n == 2, "%d Services are left, want both", n)
	changed := *first.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-001", Protocol: service.TCP})
	changed.Cluster = []service.Endpoint{{Addr: addrPort("10.244.1.9:8080")}}
	more := partial.With(2, partial.Node, []service.Change{{New: &changed}})
	more.Incomplete = true
	apply(t, b, more)
	if p, err := (&Backend{driver: k}).Plan(t.Context(), more); err != nil || !p.Empty() {
		t.Errorf("still to do: %v\n%s", err, generate.Text(p))
	}
}

// TestPartialSnapshotTakesNothingAway restarts with an incomplete snapshot. The missing
// Services stay in force until a complete snapshot arrives.
func TestPartialSnapshotTakesNothingAway(t *testing.T) {
	k := &fake{}
	apply(t, &Backend{driver: k}, simple(3))

	b := &Backend{driver: k}
	part := simple(1)
	part.Incomplete = true
	apply(t, b, part)
	got := len(k.table.sets["services"].elements)
	kit.Check(t, got == 3, "%d Services in force while two could not be read, want 3", got)
	whole := part.With(2, part.Node, []service.Change{})
	whole.Incomplete = false
	apply(t, b, whole)
	if got := len(k.table.sets["services"].elements); got != 1 {
		t.Errorf("%d Services in force once all was read, want 1", got)
	}
}

// simple returns a snapshot of n Services with two endpoints each.
func simple(n int) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		ports = append(ports, &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Protocol: service.TCP},
			Frontends: []service.Frontend{{Addr: generate.NthAddr("10.96.0.0", i), Port: 80}},
			Cluster: []service.Endpoint{
				{Addr: addrPort("10.244.1.1:8080")}, {Addr: addrPort("10.244.1.2:8080")},
			},
		})
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

// The kernel rejects every transaction that concerns one Service.
func TestOneRefusedPortDoesNotBlockOthers(t *testing.T) {
	want := simple(100)
	k := &fake{}
	b := &Backend{driver: k}
	k.refuse = func(ops []op) error {
		for _, o := range ops {
			if o.verb == addElement && o.element.comment == "shop/web-042" {
				return errInjected
			}
		}
		return nil
	}
	p, err := b.Plan(context.Background(), want)
	kit.Need(t, err == nil, "Plan: %v", err)
	err = p.Apply(context.Background()).Err
	failed := reconcile.PortErrors(err)
	kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "web-042" && errors.Is(failed[0], errInjected),
		"Apply = %v, want one failure of web-042", err)
	got := len(k.table.sets["services"].elements)
	kit.Check(t, got == 99, "%d Services programmed, want 99", got)
	kit.Check(t, k.commits <= 30, "%d transactions, want about two per halving", k.commits)
	k.refuse = nil
	apply(t, b, want)
	if got := len(k.table.sets["services"].elements); got != 100 {
		t.Errorf("%d Services programmed after the retry, want 100", got)
	}
}

// TestCostFollowsChange counts the writes of small changes.
func TestCostFollowsChange(t *testing.T) {
	first := simple(100)
	old := first.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-050", Protocol: service.TCP})
	with := func(addrs ...string) *service.Port {
		p := *old
		p.Cluster = nil
		for _, a := range addrs {
			p.Cluster = append(p.Cluster, service.Endpoint{Addr: addrPort(a), Remote: true})
		}
		return &p
	}
	a, b, c := "10.244.1.1:8080", "10.244.1.2:8080", "10.244.1.9:8080"
	tests := []struct {
		situation string
		from, to  []string
		want      string
	}{
		{"one endpoint replaced", []string{a, b}, []string{a, c}, "-endpoints +endpoints"},
		{"the first one leaves, within a class", []string{a, b, c}, []string{b, c}, "-endpoints -endpoints -services +endpoints +services"},
		{"one comes, within a class", []string{a, b, c}, []string{a, b, "10.244.1.3:8080", c}, "+endpoints"},
		{"the last one leaves", []string{a}, nil, "-endpoints -services +services"},
		{"nothing", []string{a, b}, []string{a, b}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.situation, func(t *testing.T) {
			k := &fake{}
			be := &Backend{driver: k}
			from := with(tt.from...)
			s := first.With(2, first.Node, []service.Change{{Old: old, New: from}})
			apply(t, be, s)
			reads := k.reads
			next := s.With(3, s.Node, []service.Change{{Old: from, New: with(tt.to...)}})
			p, err := be.Plan(context.Background(), next)
			kit.Need(t, err == nil, "Plan: %v", err)
			kit.Equal(t, summary(p.Changes().String()), tt.want, "plan")
			kit.Must(t, p.Apply(context.Background()).Err)
			kit.Check(t, k.reads == reads, "the table was read for a small change")
		})
	}
}

// summary returns the sign and the set of each line of a plan, sorted.
func summary(plan string) string {
	var words []string
	for _, line := range strings.Split(strings.TrimSpace(plan), "\n") {
		if sign, rest, found := strings.Cut(line, " "); found {
			set, _, _ := strings.Cut(rest, ":")
			words = append(words, sign+set)
		}
	}
	slices.SortFunc(words, func(a, b string) int {
		if a[0] != b[0] {
			return strings.Index("-+", a[:1]) - strings.Index("-+", b[:1])
		}
		return strings.Compare(a, b)
	})
	return strings.Join(words, " ")
}

// A frontend moves to a Service port of another name, and the kernel rejects the first
// transaction. In the end the table matches the desired state, whichever name sorts
// first.
func TestFrontendMovesAfterRefusal(t *testing.T) {
	for _, name := range []string{"aaa", "zzz"} {
		k := &fake{family: service.IPv4}
		b := &Backend{family: service.IPv4, options: Options{MasqueradeBit: 14}, driver: k}
		p := &service.Port{Family: service.IPv4, External: service.PolicyLocal}
		p.Name = service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP}
		p.Frontends = []service.Frontend{{Kind: service.ExternalIP, Addr: generate.NthAddr("198.51.100.0", 1), Port: 80}}
		p.Cluster = []service.Endpoint{{Addr: addrPort("10.244.1.9:8080"), Local: true}}
		p.Local = p.Cluster
		s := service.New(1, &service.Node{NodePorts: service.AnyAddress(), Name: "node-a"}, []*service.Port{p})
		apply(t, b, s)

		q := *p
		q.Name.Port = name
		next := service.New(2, s.Node, []*service.Port{&q})
		refusals := 1
		k.refuse = func([]op) error {
			if refusals--; refusals < 0 {
				return nil
			}
			return errInjected
		}
		apply(t, b, next)
		b.have = nil // the next Plan reads the table
		if left, err := b.Plan(context.Background(), next); err != nil || !left.Empty() {
			t.Errorf("name %s: %v, and this is still to do:\n%s", name, err, generate.Text(left))
		}
	}
}

// TestPendingNodePorts restarts while the node's addresses are unknown. Addresses that
// accepted NodePorts before keep doing so until then.
func TestPendingNodePorts(t *testing.T) {
	const leads = "goto " + nodePortChain
	own := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}
	pending := &service.Node{NodePortsPending: [2]bool{true, true}}
	ports := []*service.Port{{
		Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
		Frontends: []service.Frontend{{Kind: service.NodePort, Port: 30080}}, Cluster: letterEndpoints("a"),
	}}
	k := &fake{}
	dispatched := func() string {
		return (&chain{name: dispatchChain, rules: k.table.chains[dispatchChain].rules}).text(service.IPv4)
	}
	apply(t, &Backend{driver: k}, service.New(1, pending, ports))
	kit.Need(t, !strings.Contains(dispatched(), leads), "an unknown node answers NodePorts:\n%s", dispatched())
	apply(t, &Backend{driver: k}, service.New(1, own, ports))
	b := &Backend{driver: k}
	for range 2 {
		apply(t, b, service.New(2, pending, ports))
		kit.Need(t, strings.Contains(dispatched(), "ip daddr 192.0.2.1 fib daddr type local"),
			"NodePorts are closed before the node is known:\n%s", dispatched())
		k.touched = true
	}
	apply(t, b, service.New(3, &service.Node{}, ports))
	kit.Check(t, !strings.Contains(dispatched(), leads), "the node is known and has no address, and NodePorts are answered:\n%s", dispatched())
}

// Elements that Ports share are split like others: they take the most memory of all.
func TestApplyCutsSharedElements(t *testing.T) {
	k := &fake{}
	b := &Backend{driver: k}
	var sizes []int
	k.refuse = func(ops []op) error {
		sizes = append(sizes, len(ops))
		return nil
	}
	const services, ends = 100, 200
	var ports []*service.Port
	for p := range simple(services).Ports(service.IPv4) {
		c := *p
		c.Cluster = nil
		for i := range ends {
			addr := netip.AddrFrom4([4]byte{10, 244, byte(len(ports)), byte(i)})
			c.Cluster = append(c.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(addr, 8080)})
		}
		ports = append(ports, &c)
	}
	all := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	for _, want := range []*service.Snapshot{all, simple(0)} {
		sizes = nil
		apply(t, b, want)
		most := slices.Max(sizes)
		kit.Check(t, most <= chunk+sharedUnit && len(sizes) >= 5 && len(sizes) <= 7, "transactions of %v operations, want some of about %d", sizes, chunk)
		wantUpToDate(t, k, want)
	}
}

// While the kernel accepts packets outside of the TCP window, the backend removes the
// drop rule and its chain at the next sync.
func TestKernelIsLiberal(t *testing.T) {
	k := &fake{family: service.IPv4}
	b := &Backend{family: service.IPv4, options: Options{MasqueradeBit: 14, DropInvalid: true}, driver: k}
	want := simple(3)
	for i, liberal := range []bool{false, true, true, false} {
		k.liberal = liberal
		apply(t, b, want)
		drops := k.table.chains["forward"] != nil
		kit.Check(t, drops != liberal, "kernel liberal %t: packets are dropped: %t", liberal, drops)
		plan := planWith(t, k, b.options, want)
		kit.Check(t, plan == "", "round %d: a new backend finds to do:\n%s", i, plan)
	}
	kit.Check(t, k.reads == 1+4, "the table was read %d times by the same backend, want once", k.reads-4)
}

func planWith(t *testing.T, k *fake, o Options, want *service.Snapshot) string {
	t.Helper()
	p, err := (&Backend{family: k.family, options: o, driver: k}).Plan(t.Context(), want)
	kit.Must(t, err)
	return p.Changes().String()
}

// A prefix that holds only loopback addresses gets no rule, because none could match.
func TestNoRuleForLoopbackAddresses(t *testing.T) {
	node := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}}
	for _, f := range service.Families {
		want := len(dispatchRules(f, node))
		more := *node
		more.NodePorts = append(more.NodePorts, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		got := len(dispatchRules(f, &more))
		kit.Check(t, got == want, "%s: %d rules, want %d", f, got, want)
	}
}

// TestConsistent has a Service select consistently and lose an endpoint. That writes the slots that
// differ, once for all frontends. Afterwards it selects at random.
func TestConsistent(t *testing.T) {
	all := []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}, {Kind: service.NodePort, Port: 30080}, {Kind: service.LoadBalancerIP, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80}}
	with := func(ends int, c service.Consistent) *service.Snapshot {
		p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Frontends: all, Consistent: c}
		return service.New(1, &service.Node{}, []*service.Port{withEndpoints(p, 1, ends)})
	}
	verdicts := func(k *fake) string {
		return fmt.Sprint(k.table.sets[services.name].elements, k.table.sets[nodePorts.name].elements)
	}
	k := &fake{}
	b := &Backend{family: service.IPv4, driver: k}
	external := service.Consistent{Slots: service.DefaultSlots}
	apply(t, b, with(4, external))
	if v := verdicts(k); strings.Count(v, "consistent-external-") != 2 || strings.Contains(v, "consistent-cluster-") {
		t.Errorf("not for external addresses and NodePorts alone: %s", v)
	}
	table := func(ends int) []uint16 {
		for p := range with(ends, external).Ports(service.IPv4) {
			return service.Table(p.Cluster, external.Slots)
		}
		return nil
	}
	before, after := table(4), table(3)
	moved := 0
	for i := range before {
		if before[i] != after[i] {
			moved++
		}
	}
	slots := 0
	for _, c := range planNow(t, b, with(3, external)).Changes() {
		if strings.Contains(c.Text, "choices-") {
			slots++
		}
	}
	kit.Check(t, slots == 2*moved && moved <= int(external.Slots)/3,
		"%d of %d slots move, and %d elements change", moved, external.Slots, slots)
	apply(t, b, with(3, service.Consistent{Slots: external.Slots, ClusterIPs: true}))
	v := verdicts(k)
	kit.Check(t, strings.Contains(v, "consistent-cluster-"), "not for the ClusterIP: %s", v)
	apply(t, b, with(3, service.Consistent{}))
	if v := verdicts(k); strings.Contains(v, "consistent-") {
		t.Errorf("still consistent: %s", v)
	}
	wantUpToDate(t, k, with(3, service.Consistent{}))
}
