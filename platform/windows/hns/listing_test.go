// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// apps are n Services, of which each has a ClusterIP and two endpoints elsewhere.
// Those in moved lead to another one.
func apps(generation uint64, n int, moved map[int]string) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		second := fmt.Sprintf("10.244.2.%d:80@b", 101+i%100)
		if to, ok := moved[i]; ok {
			second = to
		}
		if second == "" {
			continue
		}
		ports = append(ports, clusterIP(fmt.Sprintf("app-%03d", i), fmt.Sprintf("10.96.%d.%d", 1+i/200, 1+i%200), "10.244.2.1:80@b", second))
	}
	return snapshot(generation, ports...)
}

// listBench is a bench whose HNS lists beside rounds, object by object, as the real one
// does.
type listBench struct {
	*testNode
	lister
	rounds reconcile.Backend
	passed atomic.Int64 // on the clock
}

func newListBench(t *testing.T, v Version, pods ...string) *listBench {
	b := &listBench{testNode: newTestNode(t, v, bridgeN)}
	b.pods(pods...)
	b.pause = func() {}
	b.start(b.hns)
	t.Cleanup(b.end)
	b.restartOn(b.driver())
	b.rounds = b.wrap(b.backend)
	begin := b.now
	b.backend.host.now = func() time.Time { return begin.Add(time.Duration(b.passed.Load())) }
	return b
}

// apply does a round that must work, and returns what it did.
func (b *listBench) apply(want *service.Snapshot) string {
	b.t.Helper()
	b.passed.Add(int64(time.Second))
	p, err := b.rounds.Plan(b.t.Context(), want)
	kit.Need(b.t, err == nil, "Plan: %v", err)
	text := p.Changes().String()
	if p.Empty() {
		return text
	}
	if err := p.Apply(b.t.Context()).Err; err != nil {
		b.t.Fatalf("Apply: %v\n%s", err, text)
	}
	n := b.hns.warnings
	kit.Need(b.t, len(n) <= 0, "HNS warns: %v", n)
	return text
}

// resync starts a listing, calls meanwhile before each object, and returns what the
// round did that used the listing.
func (b *listBench) resync(meanwhile func(object int) *service.Snapshot) string {
	b.t.Helper()
	want := b.backend.state.snapshot
	b.passed.Add(int64(time.Minute))
	b.apply(want)
	for object := 0; b.open != nil; object++ {
		if to := meanwhile(object); to != nil {
			want = to
			b.apply(want)
		}
		b.next()
	}
	return b.apply(want)
}

// Changes are programmed while HNS is listed, whatever the listing has seen by then,
// and what it says of them does not count.
func TestChangesPassAListing(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		const n = 6
		// Objects are endpoints, and load balancers after them.
		for _, at := range []int{0, 3, 8, 11, 13} {
			t.Run(fmt.Sprintf("HNS %s, at object %d", v, at), func(t *testing.T) {
				b := newListBench(t, v)
				b.apply(apps(1, n, nil))
				changed, object := apps(2, n+1, map[int]string{0: "10.244.2.50:80@b", 1: "", 2: "10.244.2.51:80@b", 5: "10.244.2.52:80@b"}), ""
				late := b.resync(func(i int) *service.Snapshot {
					if i != at {
						return nil
					}
					object = "reached"
					return changed
				})
				kit.Check(t, object != "" && late == "" && b.begun == 2,
					"changed at an object: %q; %d listings, want 2; after it, still to do:\n%s", object, b.begun, late)
				kit.Check(t, b.backend.state != nil && b.backend.listingAge() <= 3*time.Second,
					"the listing was not used")
				b.backend.host.patience = 0
				b.passed.Add(int64(time.Minute))
				if p := b.plan(changed); !p.Empty() || len(p.Outcome().Drift) > 0 || !p.Outcome().FullSync {
					t.Errorf("a full look (%t) finds\n%s%v", p.Outcome().FullSync, p, p.Outcome().Drift)
				}
			})
		}
	}
}

// A listing that runs during changes shows earlier changes by others.
func TestDriftIsFoundDuringChanges(t *testing.T) {
	b := newListBench(t, v15)
	b.apply(apps(1, 6, nil))
	gone := ""
	for id, lb := range b.hns.balancers {
		if lb.Address.Addr == addr("10.96.1.4") {
			gone = id
			delete(b.hns.balancers, id)
		}
	}
	repair := b.resync(func(i int) *service.Snapshot {
		if i != 2 {
			return nil
		}
		return apps(2, 6, map[int]string{0: "10.244.2.50:80@b"})
	})
	kit.Check(t, len(b.hns.balancers) == 6 && repair != "",
		"%d load balancers, want 6; the round after the listing did\n%s", len(b.hns.balancers), repair)
	owner, recorded := b.backend.host.record.LoadBalancers[gone]
	kit.Check(t, !recorded, "the load balancer that is gone is still recorded for %v", owner)
}

// A pod of this node that came while HNS was listed, after its endpoints were, stays
// in its Service.
func TestNewPodPassesAListing(t *testing.T) {
	b := newListBench(t, v13, "10.244.1.11")
	b.apply(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80"))
	late := b.resync(func(i int) *service.Snapshot {
		if i != 1 {
			return nil
		}
		b.pods("10.244.1.12")
		return want
	})
	kit.Check(t, late == "", "the listing had it taken out again:\n%s", late)
}

// The round that uses a listing does not miss such a pod either.
func TestNewPodAfterAListing(t *testing.T) {
	b := newListBench(t, v13, "10.244.1.11")
	b.apply(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	b.passed.Add(int64(time.Minute))
	b.apply(b.backend.state.snapshot)
	for object := 0; b.open != nil; object++ {
		if object == 1 {
			b.pods("10.244.1.12")
		}
		b.next()
	}
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80"))
	b.hns.refuse = func(op string) error {
		if op == "list endpoints" {
			return codeError(op, 0x57)
		}
		return nil
	}
	if p, err := b.rounds.Plan(t.Context(), want); err == nil {
		t.Errorf("planned without the second look:\n%s", p.Changes())
	}
	b.hns.refuse = nil
	b.apply(want)
	kit.Same(t, "(-want +got)", []string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.1.12]"}, b.balancerTexts())
}

// A load balancer that another program makes at an address that HNS refused to ours shows
// in a listing, also if ours was tried and refused meanwhile.
func TestTakenDuringAListing(t *testing.T) {
	b := newListBench(t, v13, "10.244.1.11")
	k := service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}
	b.hns.heldPorts[k] = true
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"))
	round := func() error {
		b.passed.Add(int64(time.Second))
		p, err := b.rounds.Plan(t.Context(), want)
		kit.Must(t, err)
		return p.Apply(t.Context()).Err
	}
	for range 2 { // the second round knows that no load balancer has the port
		wantFailed(t, round(), "port is taken", "web")
		b.passed.Add(int64(minBackoff))
	}
	delete(b.hns.heldPorts, k)
	made, err := b.hns.CreateLoadBalancer(t.Context(), LoadBalancer{Address: k, TargetPort: 80, SourceVIP: nodeA, Endpoints: []string{"endpoint-000001"}})
	kit.Must(t, err)
	b.passed.Add(int64(time.Minute))
	clear(b.hns.calls)
	wantFailed(t, round(), "port is taken", "web")
	kit.Need(t, b.open != nil && b.hns.calls["create load balancer"] == 1,
		"calls %v, want a listing that goes on and an attempt", b.hns.calls)
	for b.open != nil {
		b.next()
	}
	if err := round(); err != nil || len(b.hns.balancers) != 1 || b.hns.balancers[made.ID].ID == "" {
		t.Errorf("after the listing: %v; load balancers %v, want the one that is there", err, b.hns.balancers)
	}
}

// A listing that fails because a change deleted what it was about to read is begun
// again, and changes do not wait for it, but for one after several such.
func TestChangesSpoilListings(t *testing.T) {
	b := newListBench(t, v13)
	b.strict = true
	b.apply(apps(1, 6, nil))
	moved := 50
	spoil := func(i int) *service.Snapshot {
		if i != 8 {
			return nil
		}
		moved++
		return apps(uint64(moved), 6, map[int]string{5: fmt.Sprintf("10.244.2.%d:80@b", moved)})
	}
	for n := range maxSpoiled {
		b.resync(spoil)
		if b.begun != 2+n || b.backend.listingAge() < time.Minute {
			t.Fatalf("spoilt %d times: listed %d times, the last one used is %s old", n+1, b.begun, b.backend.listingAge())
		}
	}
	b.resync(spoil)
	kit.Check(t, b.backend.listingAge() <= 2*time.Second,
		"after %d spoilt listings the last one used is %s old, want one that changes wait for", maxSpoiled, b.backend.listingAge())
	b.resync(func(int) *service.Snapshot { return nil })
	kit.Check(t, b.backend.listingAge() <= 2*time.Second, "the last listing used is %s old, want that of now", b.backend.listingAge())
}

// What is written while a listing begins comes from the model.
func TestListingBeginsDuringAWrite(t *testing.T) {
	var h *Host
	h = NewHost(intercept(nil, func(_ context.Context, r request, _ func() (any, error)) (any, error) {
		h.pending = &pendingList{wrote: map[string]bool{}} // which may see what was there before
		return r.of, nil
	}), &memoryStore{}, "node", nil)
	w := h.driver
	lb, e := LoadBalancer{ID: "1", Address: service.Address{Addr: addr("10.96.0.10"), Port: 80}}, Endpoint{ID: "2"}
	for name, write := range map[string]func() error{
		"create endpoint":      func() error { _, err := w.CreateEndpoint(t.Context(), e); return err },
		"delete endpoint":      func() error { return w.DeleteEndpoint(t.Context(), e.ID) },
		"create load balancer": func() error { _, err := w.CreateLoadBalancer(t.Context(), lb); return err },
		"update load balancer": func() error { _, err := w.UpdateLoadBalancer(t.Context(), lb); return err },
		"delete load balancer": func() error { return w.DeleteLoadBalancer(t.Context(), lb) },
	} {
		h.pending = nil
		err := write()
		noted := h.pending.wrote
		kit.Check(t, err == nil && (noted["2"] || noted["1"] && noted[lb.Address.String()]), "%s: noted %v, %v", name, noted, err)
	}
}

// Nobody's change waits for a resync, and the resync is done all the same.
func TestChangesDoNotWaitForResyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		b := newTestNode(t, v15, bridgeN)
		var mu sync.Mutex
		var takes time.Duration // a listing, during which others call
		b.restartOn(onLists(intercept(b.hns, func(_ context.Context, _ request, do func() (any, error)) (any, error) {
			mu.Lock()
			defer mu.Unlock()
			return do()
		}), func() { time.Sleep(takes) }))
		b.backend.host.now, b.backend.host.patience = time.Now, listPatience
		b.converge(apps(1, n, nil))
		takes = 10 * time.Second
		ended := make(chan struct{}, 1)
		b.backend.host.onListed(service.IPv4, func() { ended <- struct{}{} })
		time.Sleep(time.Minute)
		want := b.backend.state.snapshot
		b.plan(want) // begins to list
		for i := range 20 {
			want = apps(uint64(2+i), n, map[int]string{i: fmt.Sprintf("10.244.2.%d:80@b", 201+i)})
			begin := time.Now()
			_, err := b.round(want)
			kit.Must(t, err)
			took := time.Since(begin)
			kit.Check(t, took <= listPatience, "change %d took %s, want at most %s", i, took, listPatience)
		}
		kit.Need(t, len(ended) == 0, "the listing ended before the changes did")
		<-ended
		if late := b.plan(want); !late.Empty() || b.backend.listingAge() > 2*time.Second {
			t.Errorf("the listing is %s old; it had this done:\n%s", b.backend.listingAge(), late)
		}
	})
}

// lister has a node list HNS beside rounds. It lists a few objects whenever the process
// writes or time passes, all in the goroutine of the test, so that each run of a case is
// the same.
type lister struct {
	*fake
	pause  func() // lets the time pass that listing an object takes
	strict bool   // a listing fails if a load balancer goes away meanwhile, as with hcsshim
	// draw returns how many objects to list when the process writes or time passes, most
	// at most.
	draw func(most int) int

	calls   chan *listCall
	ended   chan struct{} // closed with the process
	round   int
	begun   int          // listings of everything
	pending *pendingList // the latest that was seen
	open    *listCall    // goes on
}

// listCall is a listing that a process waits for in a goroutine of its own.
type listCall struct {
	round     int // in which it began
	endpoints []string
	balancers []string
	listing   Listing
	err       error
	done      chan struct{}
}

type roundKey struct{}

var errEnded = errors.New("the process has ended")

// start begins with a process. Its Backend is to be used as wrap returns it.
func (l *lister) start(k *fake) {
	l.end()
	l.fake, l.calls, l.ended = k, make(chan *listCall), make(chan struct{})
}

// wrap returns b so that no round waits for a listing.
func (l *lister) wrap(b *Backend) reconcile.Backend {
	b.host.patience = 1
	return &listedBackend{b, l}
}

// end lets the listings of a process end.
func (l *lister) end() {
	if l.ended != nil {
		close(l.ended)
	}
	l.ended, l.open, l.pending = nil, nil, nil
}

// List waits for the test if no round waits for it.
func (l *lister) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	if ctx.Value(unawaited{}) == nil {
		if what == All {
			l.begun++
		}
		return l.fake.List(ctx, what)
	}
	c := &listCall{round: ctx.Value(roundKey{}).(int), done: make(chan struct{})}
	ended := ctx.Value(endedKey{}).(chan struct{})
	select {
	case l.calls <- c:
	case <-ended:
		return Listing{}, errEnded
	}
	select {
	case <-c.done:
		return c.listing, c.err
	case <-ended:
		return Listing{}, errEnded
	}
}

type endedKey struct{}

// listedBackend is a Backend whose listings go on beside its rounds.
type listedBackend struct {
	*Backend
	lister *lister
}

// Plan returns when a listing that it began has seen the first of HNS.
func (b *listedBackend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	s := b.lister
	s.round++
	ctx = context.WithValue(context.WithValue(ctx, roundKey{}, s.round), endedKey{}, s.ended)
	p, err := b.Backend.Plan(ctx, want)
	if l := b.host.pendingNow(); l != nil && l != s.pending {
		s.pending = l
		s.begin()
	}
	return p, err
}

// begin begins the listing of this round. Earlier ones do not count any more.
func (l *lister) begin() {
	for l.open = <-l.calls; l.open.round != l.round; l.open = <-l.calls {
		l.open.err = errEnded
		close(l.open.done)
	}
	l.begun++
	c := l.open
	if c.listing, c.err = l.fake.List(context.Background(), Networks); c.err != nil {
		l.close()
		return
	}
	c.endpoints, c.balancers = slices.Sorted(maps.Keys(l.endpoints)), slices.Sorted(maps.Keys(l.balancers))
}

// proceed draws how many objects are listed, up to most.
func (l *lister) proceed(most int) {
	if l.open == nil || l.draw == nil {
		return
	}
	for range l.draw(most) {
		if l.open != nil {
			l.next()
		}
	}
}

// next lists an object, or ends after the last one.
func (l *lister) next() {
	c := l.open
	l.pause()
	switch {
	case len(c.endpoints) > 0:
		if e, ok := l.endpoints[c.endpoints[0]]; ok {
			c.listing.Endpoints = append(c.listing.Endpoints, e)
		}
		c.endpoints = c.endpoints[1:]
	case len(c.balancers) > 0:
		lb, ok := l.balancers[c.balancers[0]]
		if ok {
			c.listing.LoadBalancers = append(c.listing.LoadBalancers, lb)
		} else if l.strict {
			c.err = codeError("list load balancers", 0x490)
			l.close()
			return
		}
		c.balancers = c.balancers[1:]
	default:
		l.close()
	}
}

// close has the process receive the listing.
func (l *lister) close() {
	close(l.open.done)
	<-l.pending.done
	l.open = nil
}

// failed reports whether the latest listing failed, of which a later round learns.
func (l *lister) failed() bool { return l.pending != nil && l.open == nil && l.pending.err != nil }

// finish lists the rest. It reports whether a listing went on.
func (l *lister) finish() bool {
	open := l.open != nil
	for l.open != nil {
		l.next()
	}
	return open
}

// driver lists some objects before and after each call that writes.
func (l *lister) driver() Driver {
	return onWrites(l, func(_ string, do func()) {
		l.proceed(2)
		defer l.proceed(2)
		do()
	})
}

// TestMeterReportsEachCall creates and deletes a Service. Exactly the calls that reached
// HNS are reported.
func TestMeterReportsEachCall(t *testing.T) {
	b := newTestNode(t, v15, bridgeN)
	var reported []string
	b.restartOn(Metered(b.hns, func(c Call) {
		line := c.Operation
		if c.Balancer != nil {
			line += " " + c.Balancer.Use()
		}
		if c.Err != nil {
			line += " " + c.Class() + " " + c.Cause()
		}
		reported = append(reported, line)
	}))
	for i, endpoints := range [][]string{{"10.244.2.11:80@b"}, {"10.244.2.12:80@b"}, nil} {
		b.converge(snapshot(uint64(i), clusterIP("web", "10.96.0.10", endpoints...)))
	}
	b.hns.down = true
	_, err := b.round(snapshot(3, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b")))
	kit.Check(t, errors.Is(err, ErrNotRunning), "%v while HNS is down", err)
	want := []string{
		"list", "create_endpoint", "create_load_balancer clusterip", "list",
		"create_endpoint", "change_load_balancer clusterip", "delete_endpoint", "list",
		"delete_load_balancer clusterip", "delete_endpoint", "list", "create_endpoint not_running other",
	}
	kit.Same(t, "(-want +got)", want, reported)
	for _, line := range reported {
		var operation string
		_, err := fmt.Sscan(line, &operation)
		kit.Check(t, err == nil && slices.Contains(Operations, operation), "operation %q is not in the list", operation)
	}
}

// TestMeterNamesErrors checks the class of each code, and kube-proxy's name for it.
func TestMeterNamesErrors(t *testing.T) {
	for code, want := range map[uint32][2]string{
		0x803b0001: {"not_found", "network_not_found"},
		0x80070490: {"not_found", "other"},
		0x803b0013: {"exists", "port_already_exists"},
		0x800700b7: {"exists", "other"},
		0x80004001: {"refused", "not_implemented"},
		0x803b001e: {"refused", "invalid_ip"},
		0x803b002f: {"exists", "invalid_ip"},
		0x803b0007: {"busy", "other"},
		0x6ba:      {"not_running", "other"},
		0x7e:       {"not_installed", "other"},
		0x12345:    {"refused", "other"},
	} {
		c := Call{Err: fmt.Errorf("in vain: %w", codeError("create", code))}
		kit.Equal(t, [2]string{c.Class(), c.Cause()}, want, "0x%x", code)
	}
	c := Call{Err: context.Canceled}
	if c.Class() != "other" || c.Cause() != "other" || (&Call{}).Class()+(&Call{}).Cause() != "" {
		t.Errorf("something else is %s, %s", c.Class(), c.Cause())
	}
	if d := Metered(newFake(v13), func(Call) {}); !errors.Is(d.DeleteLoadBalancer(t.Context(), LoadBalancer{ID: "none"}), ErrNotFound) {
		t.Error("an error is lost on the way")
	}
}

// TestUse checks the purpose of load balancers, including adopted ones.
func TestUse(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.options.ForwardHealthChecks, b.options.RootEndpoint = true, "cbr0"
	b.restart()
	b.pods("10.244.1.11")
	_, err := b.hns.CreateEndpoint(t.Context(), Endpoint{Name: "cbr0", Network: bridgeN.ID, Addrs: []netip.Addr{addr("10.244.1.2")}})
	kit.Must(t, err)
	web := clusterIP("web", "10.96.0.10", "10.244.1.11:80")
	web.HealthCheck = 31000
	web.Frontends = append(web.Frontends, frontend(service.NodePort, "", 30080), frontend(service.ExternalIP, "198.51.100.9", 80), frontend(service.LoadBalancerIP, "203.0.113.5", 80))
	want := []string{"clusterip", "externalip", "healthcheck", "ingressip", "nodeport"}
	for _, situation := range []string{"made", "adopted"} {
		b.converge(snapshot(1, web))
		var got []string
		for _, lb := range b.backend.state.model.balancers {
			got = append(got, lb.Use())
		}
		slices.Sort(got)
		kit.Same(t, fmt.Sprintf("%s (-want +got)", situation), want, got)
		for id, lb := range b.hns.balancers {
			lb.Kind = 0
			b.hns.balancers[id] = lb
		}
		b.restart()
	}
}

// TestMeter counts calls to HNS of both families together, and the load balancers among
// them whose failure affects Services.
func TestMeter(t *testing.T) {
	c, m := newMeter(), metrics.New(metrics.Options{})
	m.Register(c.collectors())
	m.Register(c.collectors()) // by the second family
	lb := LoadBalancer{Address: service.Address{Addr: netip.MustParseAddr("10.96.0.10")}}
	refused, gone := &Error{Op: "x", Code: 0x803b0013}, &Error{Op: "x", Code: 0x490}
	for _, x := range []Call{
		{Operation: "list", Took: time.Second},
		{Operation: "list", Err: &Error{Op: "x", Code: 0x6ba}},
		{Operation: CreateBalancer, Err: refused, Balancer: &lb},
		{Operation: ChangeBalancer, Err: gone, Balancer: &lb},
		{Operation: DeleteBalancer, Err: gone, Balancer: &lb},
		{Operation: DeleteBalancer, Err: refused, Balancer: &lb},
		{Operation: CreateBalancer, Balancer: &lb},
	} {
		c.call(x)
	}
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, _ := io.ReadAll(w.Result().Body)
	for _, want := range []string{
		`hns_call_duration_seconds_count{operation="list"} 2`,
		`hns_call_failures_total{class="not_running",operation="list"} 1`,
		`hns_call_failures_total{class="not_found",operation="delete_load_balancer"} 1`,
		`hns_call_failures_total{class="busy",operation="create_endpoint"} 0`,
		`hns_call_duration_seconds_count{operation="create_endpoint"} 0`,
		`hns_call_duration_seconds_bucket{operation="list",le="262.144"} 2`,
		`winkernel_lb_create_failures_total{error="port_already_exists",ip_family="IPv4",lb_type="clusterip"} 1`,
		`winkernel_lb_update_failures_total{error="other",ip_family="IPv4",lb_type="clusterip"} 1`,
		`winkernel_lb_delete_failures_total{error="port_already_exists",ip_family="IPv4",lb_type="clusterip"} 1`,
	} {
		kit.Check(t, strings.Contains(string(body), want+"\n"), "no %s", want)
	}
	kit.Check(t, !strings.Contains(string(body), `delete_failures_total{error="other"`),
		"what was gone already counts as a failure")
}

// A hanging HNS is reported and does not prevent a stop. Objects of unfinished calls
// count as ours, and no further call is made.
func TestHangingHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		b.pods("10.244.1.11")
		hang := make(chan struct{})
		var reported []string
		stuck := onWrites(b.hns, func(op string, do func()) {
			if do(); op == "create load balancer" { // it takes effect, but without an answer
				<-hang
			}
		})
		b.restartOn(WithTimeout(stuck, func(text string) { reported = append(reported, text) }, func() {}))
		want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"))
		p := b.plan(want)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		err := p.Apply(ctx).Err
		close(hang)
		synctest.Wait() // HNS continues although the caller returned
		kit.Check(t, errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "create load balancer tcp 10.96.0.11:80: HNS has not answered"),
			"Apply = %v", err)
		n := b.hns.calls["create load balancer"]
		kit.Check(t, n == 1, "%d load balancers asked for, want none after the one that hangs", n)
		kit.Check(t, len(reported) == 2 && strings.Contains(reported[0], "HNS has not answered for 10s (create load balancer tcp 10.96.0.11:80)") && reported[1] == "",
			"said %q, want that HNS hangs and that it is over", reported)
		b.restart()
		b.converge(snapshot(2)) // it is no longer desired, and known as ours
		if len(b.hns.balancers) != 0 {
			t.Errorf("left: %v", b.balancerTexts())
		}
	})
}

// A slow HNS is reported while a call of either family is late.
func TestSlowHNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		var reported []string
		var one sync.Mutex
		d := WithTimeout(onWrites(b.hns, func(op string, do func()) {
			time.Sleep(map[string]time.Duration{"delete endpoint": 15 * time.Second, "delete load balancer": time.Minute}[op])
			one.Lock()
			defer one.Unlock()
			do()
		}), func(text string) { reported = append(reported, text) }, func() {})
		done := make(chan error, 2)
		go func() { done <- d.DeleteEndpoint(t.Context(), "x") }()
		go func() { done <- d.DeleteLoadBalancer(t.Context(), LoadBalancer{ID: "x"}) }()
		for range 2 {
			err := <-done
			kit.Check(t, errors.Is(err, ErrNotFound), "%v", err)
		}
		_, err := d.List(t.Context(), All)
		kit.Check(t, err == nil, "%v", err)
		kit.Check(t, len(reported) == 3 && reported[2] == "" && reported[1] != "",
			"said %q, want two remarks and one end", reported)
	})
}

// Answers count as progress. So does a listing, for a while, because it consists of many
// calls that are not visible. Failures do not count.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		moved := 0
		d := WithTimeout(onLists(b.hns, stall), func(string) {}, func() { moved++ })
		err := d.DeleteEndpoint(t.Context(), "x")
		kit.Check(t, err != nil && moved == 0, "%v, moved %d times, want none", err, moved)
		_, err = d.CreateEndpoint(t.Context(), Endpoint{Network: bridgeN.ID, Addrs: []netip.Addr{addr("10.244.1.11")}})
		kit.Check(t, err == nil && moved == 1, "%v, moved %d times, want once", err, moved)
		_, err = d.List(t.Context(), All)
		kit.Check(t, err == nil && moved == 1+119+1, "%v, moved %d times, want each 10 s for 20 minutes", err, moved)
	})
}

// The remark on a slow listing says whether changes wait for it.
func TestSlowListingSaysWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestNode(t, v13, bridgeN)
		var mu sync.Mutex
		var reported []string
		b.restartOn(WithTimeout(onLists(b.hns, stall), func(text string) {
			mu.Lock()
			defer mu.Unlock()
			reported = append(reported, text)
		}, func() {}))
		b.backend.host.patience = listPatience
		begin := time.Now()
		b.backend.host.now = func() time.Time { return time.Unix(1e9, 0).Add(time.Since(begin)) }
		want := snapshot(1)
		b.plan(want) // the first round waits
		b.backend.state.listDuration = 0
		time.Sleep(time.Hour)
		b.plan(want) // begins another listing, for which it does not wait
		time.Sleep(2 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		const first, later = "(list all objects), and nothing can be programmed meanwhile; if", "(list all objects), and what others change in HNS is not seen meanwhile; changes of Services are programmed; if"
		kit.Check(t, len(reported) == 4 && strings.Contains(reported[0], first) && strings.Contains(reported[2], later) && reported[1]+reported[3] == "",
			"said %q, want a remark on each listing, and its end", reported)
	})
}

func stall() { time.Sleep(time.Hour) }
