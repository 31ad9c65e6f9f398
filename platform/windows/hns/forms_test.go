// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	sim "kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// normalized returns a Driver of an HNS that gives load balancers back as change has them, where it is silent not when it
// makes them.
func normalized(d Driver, change func(*LoadBalancer), silent bool) Driver {
	return altered(d, func(r request, answer any) any {
		switch got := answer.(type) {
		case Listing:
			for i := range got.LoadBalancers {
				change(&got.LoadBalancers[i])
			}
		case LoadBalancer:
			if r.operation == ChangeBalancer || !silent {
				change(&got)
			}
			return got
		}
		return answer
	})
}

// TestOtherForms has an HNS that gives load balancers back in another form. What it says when it makes them costs nothing. What
// only listings show is repaired twice, and then left alone and reported.
func TestOtherForms(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*LoadBalancer)
		text   string
	}{
		"drops a flag":           {func(lb *LoadBalancer) { lb.Flags &^= VIPExternalIP }, "Flags of its port local-routed, not local-routed external"},
		"fills in a source VIP":  {func(lb *LoadBalancer) { lb.SourceVIP = addr("192.0.2.77") }, "SourceVIP 192.0.2.77, not 192.0.2.10"},
		"no source VIP with DSR": {func(lb *LoadBalancer) { lb.SourceVIP = pick(lb.DSR, netip.Addr{}, lb.SourceVIP) }, "SourceVIP none, not 192.0.2.10"},
		"has a flag of its own":  {func(lb *LoadBalancer) { lb.Unsupported = true }, "other properties true, not false"},
		"as it was asked for":    {func(*LoadBalancer) {}, ""},
	} {
		for _, silent := range []bool{false, true} {
			t.Run(name+pick(silent, ", silently", ""), func(t *testing.T) {
				b := newTestNode(t, Version{15, 5}, bridgeN)
				b.options.DSR = true
				b.restartOn(normalized(b.hns, tt.change, silent))
				b.pods("10.244.1.11", "10.244.1.12")
				b.testOtherForm(t, silent && tt.text != "", tt.text)
			})
		}
	}
}

// testOtherForm follows resyncs, which repair something in vain or not, and a change of endpoints.
func (tn *testNode) testOtherForm(t *testing.T, repaired bool, report string) {
	want := snapshot(1, allKinds("10.244.1.11:80", "10.244.2.11:80@b"))
	tn.rounds(t, want, 1)
	for resync := 1; resync <= 5; resync++ {
		tn.now = tn.now.Add(31 * time.Second)
		_, err := tn.round(want)
		n, repairs := tn.hns.writes(), repaired && resync <= maxRepairs
		kit.Check(t, (n > 0) == repairs, "resync %d: %d writes, want some: %v", resync, n, repairs)
		if left := repaired && resync > maxRepairs; (err != nil) != left || left && !strings.Contains(err.Error(), report+", also after it was made again") {
			t.Errorf("resync %d: %v, want %q: %v", resync, err, report, left)
		}
	}
	want = snapshot(2, allKinds("10.244.1.11:80", "10.244.1.12:80", "10.244.2.11:80@b"))
	_, _ = tn.round(want) // the report goes on
	for _, lb := range tn.hns.balancers {
		kit.Check(t, len(lb.Endpoints) == 3,
			"%s has %d endpoints after a change, want 3", lb.Address, len(lb.Endpoints))
	}
	want = snapshot(3, allKinds("10.244.1.11:80", "10.244.2.11:80@b"))
	if _, _ = tn.round(want); tn.hns.calls["create load balancer"] > 0 {
		t.Error("a second change of endpoints makes load balancers again")
	}
	tn.now = tn.now.Add(31 * time.Second)
	_, _ = tn.round(want)
	n := tn.hns.writes()
	kit.Check(t, n == 0, "%d writes after the change of endpoints", n)
}

// TestOtherFormIsForgotten asks for the form that HNS gave back for another one, also after HNS lost the load balancer, and
// then for none.
func TestOtherFormIsForgotten(t *testing.T) {
	for _, lost := range []bool{false, true} {
		b, sticky, plain := affinityNode(t, false)
		for i, p := range []*service.Port{sticky, plain, sticky} {
			if b.now = b.now.Add(31 * time.Second); lost {
				clear(b.hns.balancers)
			}
			want := snapshot(uint64(i), p)
			b.rounds(t, want, 1)
			b.now = b.now.Add(31 * time.Second)
			b.rounds(t, want, 1)
			n := b.hns.writes()
			kit.Check(t, n == 0, "lost %v, step %d: %d writes of a resync", lost, i, n)
		}
		b.rounds(t, snapshot(9), 1)
		forms := b.backend.host.record.Forms
		kit.Check(t, len(forms) == 0, "the forms of no load balancer: %v", forms)
	}
}

// TestReportOfAnotherForm asks for another form than that which was repaired in vain.
func TestReportOfAnotherForm(t *testing.T) {
	b, sticky, plain := affinityNode(t, true)
	var err error
	for range maxRepairs + 2 {
		_, err = b.round(snapshot(1, sticky))
		b.now = b.now.Add(31 * time.Second)
	}
	kit.Check(t, err != nil, "a form that was repaired in vain is not reported")
	b.rounds(t, snapshot(2, plain), 1)
}

// affinityNode returns a node whose HNS has no session affinity, though it says so, and a Service with and without it.
func affinityNode(t *testing.T, silent bool) (b *testNode, sticky, plain *service.Port) {
	b = newTestNode(t, v13, bridgeN)
	b.restartOn(normalized(b.hns, func(lb *LoadBalancer) { lb.Distribution = DistributionNone }, silent))
	b.pods("10.244.1.11")
	sticky, plain = clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("web", "10.96.0.10", "10.244.1.11:80")
	sticky.Affinity = time.Hour
	return b, sticky, plain
}

// tampering are programs that change objects of the proxy.
var tampering = map[string]func(*fake){
	"load balancers": func(k *fake) {
		for id, lb := range k.balancers {
			lb.Flags ^= VIPExternalIP
			k.balancers[id] = lb
		}
	},
	"endpoints": func(k *fake) {
		for id, e := range k.endpoints {
			if e.Remote {
				e.MAC = "AA-BB-CC-00-00-01"
				k.endpoints[id] = e
			}
		}
	},
}

// TestRepairsThatHelp has another program change objects again and again, where HNS keeps the form that it is asked for. Each
// time they are made again, and nothing is reported, as for changes of endpoints.
func TestRepairsThatHelp(t *testing.T) {
	for name, tamper := range tampering {
		b := newTestNode(t, v13, bridgeN)
		b.pods("10.244.1.11")
		var want *service.Snapshot
		for i := range 2 * maxRepairs {
			want = snapshot(uint64(i), clusterIP("web", "10.96.0.10", "10.244.1.11:80", fmt.Sprintf("10.244.2.%d:80@b", 11+i)))
			b.rounds(t, want, 1)
		}
		for resync := range 4 * maxRepairs { // every second one finds a change
			repairs := resync%2 == 0
			if repairs {
				tamper(b.hns)
			}
			b.now = b.now.Add(31 * time.Second)
			b.rounds(t, want, 1)
			n := b.hns.writes()
			kit.Check(t, (n > 0) == repairs, "%s, resync %d: %d writes, want some: %v", name, resync, n, repairs)
		}
	}
}

// otherMACs returns a Driver of an HNS that gives remote endpoints a MAC of its own. Where it is silent, only listings say so.
func otherMACs(d Driver, silent bool) Driver {
	return altered(d, func(_ request, answer any) any {
		switch got := answer.(type) {
		case Listing:
			for i := range got.Endpoints {
				if got.Endpoints[i].Remote {
					got.Endpoints[i].MAC = "AA-BB-CC-00-00-01"
				}
			}
		case Endpoint:
			if got.Remote && !silent {
				got.MAC = "AA-BB-CC-00-00-01"
			}
			return got
		}
		return answer
	})
}

// TestOtherMACs keeps remote endpoints to which HNS gives other MACs.
func TestOtherMACs(t *testing.T) {
	for _, silent := range []bool{false, true} {
		b := newTestNode(t, v13, bridgeN)
		b.restartOn(otherMACs(b.hns, silent))
		want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"))
		b.rounds(t, want, 1)
		for resync := 1; resync <= 5; resync++ {
			b.now = b.now.Add(31 * time.Second)
			_, err := b.round(want)
			n, repairs := b.hns.writes(), silent && resync <= maxRepairs
			kit.Check(t, (n > 0) == repairs, "silent %v, resync %d: %d writes, want some: %v", silent, resync, n, repairs)
			const report = "remote endpoint of 10.244.2.11 with MacAddress AA-BB-CC-00-00-01, not 02-11-0a-f4-02-0b, also after it was made again 2 times"
			if left := silent && resync > maxRepairs; (err != nil) != left || left && !strings.Contains(err.Error(), report) {
				t.Errorf("silent %v, resync %d: %v, want the report: %v", silent, resync, err, left)
			}
		}
	}
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}

// rounds does rounds that must succeed.
func (tn *testNode) rounds(t *testing.T, want *service.Snapshot, n int) {
	t.Helper()
	for range n {
		_, err := tn.round(want)
		kit.Must(t, err)
	}
}

// simulated calls a simulated HNS as hcsshim does, within the process.
type simulated struct{ *sim.Simulator }

func (s simulated) call(op string, q sim.Request, document any) (sim.Reply, error) {
	q.Args[0] = "{}"
	if document != nil {
		text, err := json.Marshal(document)
		if err != nil {
			return sim.Reply{}, err
		}
		q.Args[0] = string(text)
	}
	r := s.CallAs(sim.Caller, q)
	if r.Code != sim.OK {
		return r, &Error{Op: op, Code: uint32(r.Code)}
	}
	return r, nil
}

// with opens an object, or creates it with a document, does the rest with its handle, and closes it.
func (s simulated) with(op string, q sim.Request, document any, do func(handle uint64) error) error {
	r, err := s.call(op, q, document)
	if err != nil {
		return err
	}
	kind := strings.TrimPrefix(strings.TrimPrefix(q.Function, "HcnOpen"), "HcnCreate")
	defer s.CallAs(sim.Caller, sim.Request{Function: "HcnClose" + kind, Handle: r.Handle})
	return do(r.Handle)
}

func open(kind, id string) sim.Request { return sim.Request{Function: "HcnOpen" + kind, ID: id} }

func read[T any](d simulated, op, kind string, handle uint64, parse func([]byte) (T, error)) (T, error) {
	r, err := d.call(op, sim.Request{Function: "HcnQuery" + kind + "Properties", Handle: handle}, nil)
	if err != nil {
		var none T
		return none, err
	}
	return parse([]byte(r.Output))
}

// listed begins again if an object disappears meanwhile, as the driver for Windows does.
func listed[T any](d simulated, kind string, parse func([]byte) (T, error)) (all []T, err error) {
	op := "list " + kind
	for range 4 {
		all = nil
		var r sim.Reply
		if r, err = d.call(op, sim.Request{Function: "HcnEnumerate" + kind + "s"}, nil); err != nil {
			return nil, err
		}
		var ids []string
		if err = json.Unmarshal([]byte(r.Output), &ids); err != nil {
			return nil, err
		}
		for _, id := range ids {
			err = errors.Join(err, d.with(op, open(kind, id), nil, func(handle uint64) error {
				x, err := read(d, op, kind, handle, parse)
				all = append(all, x)
				return err
			}))
		}
		if !errors.Is(err, ErrNotFound) {
			break
		}
	}
	return all, err
}

func (s simulated) List(_ context.Context, what ObjectKinds) (l Listing, err error) {
	v := s.Version()
	l.Version = Version{v.Major, v.Minor}
	if what&Networks != 0 {
		l.Networks, err = listed(s, "Network", parseNetwork)
	}
	if what&Endpoints != 0 && err == nil {
		l.Endpoints, err = listed(s, "Endpoint", parseEndpoint)
	}
	if what&LoadBalancers != 0 && err == nil {
		l.LoadBalancers, err = listed(s, "LoadBalancer", parseBalancer)
	}
	return l, err
}

func (s simulated) CreateEndpoint(_ context.Context, e Endpoint) (made Endpoint, err error) {
	op := "create endpoint " + e.Name
	err = s.with(op, open("Network", e.Network), nil, func(network uint64) error {
		return s.with(op, sim.Request{Function: "HcnCreateEndpoint", Handle: network}, e.document(), func(handle uint64) error {
			made, err = read(s, op, "Endpoint", handle, parseEndpoint)
			return err
		})
	})
	return made, err
}

func (s simulated) HasEndpoint(_ context.Context, id string) (bool, error) {
	err := s.with("find endpoint", open("Endpoint", id), nil, func(uint64) error { return nil })
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (s simulated) DeleteEndpoint(_ context.Context, id string) error {
	_, err := s.call("delete endpoint "+id, sim.Request{Function: "HcnDeleteEndpoint", ID: id}, nil)
	return err
}

func (s simulated) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (made LoadBalancer, err error) {
	op := "create load balancer " + lb.Address.String()
	err = s.with(op, sim.Request{Function: "HcnCreateLoadBalancer"}, lb.document(), func(handle uint64) error {
		made, err = read(s, op, "LoadBalancer", handle, parseBalancer)
		return err
	})
	return made, err
}

func (s simulated) UpdateLoadBalancer(_ context.Context, lb LoadBalancer) (now LoadBalancer, err error) {
	op := "change load balancer " + lb.Address.String()
	err = s.with(op, open("LoadBalancer", lb.ID), nil, func(handle uint64) error {
		if _, err := s.call(op, sim.Request{Function: "HcnModifyLoadBalancer", Handle: handle}, lb.document()); err != nil {
			return err
		}
		now, err = read(s, op, "LoadBalancer", handle, parseBalancer)
		return err
	})
	return now, err
}

func (s simulated) PortsLeft(context.Context, service.Address) (bool, error) { return true, nil }

func (s simulated) DeleteLoadBalancer(_ context.Context, lb LoadBalancer) error {
	_, err := s.call("delete load balancer "+lb.Address.String(), sim.Request{Function: "HcnDeleteLoadBalancer", ID: lb.ID}, nil)
	return err
}

// simulatedNode is a node with an HNS of one personality.
type simulatedNode struct {
	*testNode
	sim     *sim.Simulator
	network sim.NetworkConfig
}

func newSimulatedNode(t *testing.T, p sim.Personality, n Network) *simulatedNode {
	b := &simulatedNode{testNode: newTestNode(t, v13, n), sim: sim.New(sim.Options{Personality: p})}
	b.network = sim.NetworkConfig{Name: "net0", Type: string(n.Kind), Subnets: n.Subnets}
	for _, r := range n.Routes {
		b.network.Routes = append(b.network.Routes, routeTo(r))
	}
	b.makeNetwork()
	b.options.DSR = true
	b.restartOn(simulated{b.sim})
	return b
}

func (s *simulatedNode) makeNetwork() {
	if _, err := s.sim.AddNetwork(s.network); err != nil {
		s.t.Fatal(err)
	}
	s.pods("10.244.1.11", "10.244.1.12", "10.244.1.13")
}

func (s *simulatedNode) pods(addrs ...string) {
	s.t.Helper()
	for _, a := range addrs {
		_, err := s.sim.AddPod("net0", "pod-"+a, addr(a))
		kit.Need(s.t, err == nil, "the network plugin cannot make pod %s: %v", a, err)
	}
}

func (s *simulatedNode) deletePod(a string) {
	for _, e := range s.sim.Objects(sim.Endpoint) {
		if e.Name() == "pod-"+a {
			if err := s.sim.Delete(sim.Endpoint, e.ID()); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// round is that of a sync period, in which writes calls changed something.
func (s *simulatedNode) round(want *service.Snapshot) (writes int, err error) {
	before := s.sim.Calls()
	s.now = s.now.Add(31 * time.Second)
	p, err := s.backend.Plan(s.t.Context(), want)
	if err == nil && !p.Empty() {
		err = p.Apply(s.t.Context()).Err
	}
	return s.sim.Calls().Sub(before).Writes(""), err
}

// mostRounds is how many sync periods a goal may take.
const mostRounds = 8

// reach reaches want, after which resyncs must write nothing.
func (s *simulatedNode) reach(when string, want *service.Snapshot) {
	s.t.Helper()
	var log []string
	for range mostRounds {
		writes, err := s.round(want)
		log = append(log, fmt.Sprintf("%d writes, %v", writes, err))
		if writes > 0 || err != nil && !reconcile.Unsupported(err) {
			continue
		}
		diff := cmp.Diff(s.wanted(want), s.served())
		kit.Check(s.t, diff == "", "%s (-want +got):\n%s", when, diff)
		for resync := 1; resync <= 3; resync++ {
			writes, err := s.round(want)
			kit.Check(s.t, writes <= 0, "%s: resync %d after the goal writes %d times, %v", when, resync, writes, err)
		}
		return
	}
	s.t.Fatalf("%s: not reached: %s", when, strings.Join(log, "\n"))
}

// wanted is the endpoints by address and port, and served those that HNS leads to.
func (s *simulatedNode) wanted(want *service.Snapshot) map[string]string {
	all := map[string]string{}
	for p := range want.Ports(service.IPv4) {
		for _, f := range p.Frontends {
			var to []string
			for _, e := range p.Endpoints(f.Kind) {
				to = append(to, e.Addr.Addr().String())
			}
			k := service.Address{Addr: f.Addr, Port: f.Port, Protocol: p.Name.Protocol}
			if len(to) > 0 {
				all[k.String()] = strings.Join(to, " ")
			}
		}
	}
	return all
}

func (s *simulatedNode) served() map[string]string {
	at, all := map[string]netip.Addr{}, map[string]string{}
	for _, e := range s.sim.Objects(sim.Endpoint) {
		at[e.ID()] = e.IPs()[0]
	}
	for _, d := range s.sim.Objects(sim.LoadBalancer) {
		text, _ := json.Marshal(d)
		lb, err := parseBalancer(text)
		if err != nil {
			s.t.Fatal(err)
		}
		var to []netip.Addr
		for _, id := range d.Endpoints() {
			to = append(to, at[id])
		}
		slices.SortFunc(to, netip.Addr.Compare)
		all[lb.Address.String()] = strings.Trim(fmt.Sprint(to), "[]")
	}
	return all
}

// TestPersonalities lives one life on each personality of HNS. Each change takes effect, and after it resyncs write
// nothing, also in a new process.
func TestPersonalities(t *testing.T) {
	for _, p := range sim.Personalities() {
		for _, n := range []Network{bridgeN, overlayN} {
			t.Run(p.Name+", "+string(n.Kind), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { newSimulatedNode(t, p, n).live() })
			})
		}
	}
}

func (s *simulatedNode) live() {
	sticky := func(endpoints ...string) *service.Port {
		p := clusterIP("cart", "10.96.0.11", endpoints...)
		p.Affinity, p.External = time.Hour, service.PolicyLocal
		return p
	}
	first := snapshot(1, allKinds("10.244.1.11:80", "10.244.2.11:80@b", "10.244.2.12:80@b"), sticky("10.244.1.12:80"))
	s.reach("the start", first)
	for i := 2; i < 10; i++ { // the network plugin's IPAM, which does not ask HNS
		s.pods(fmt.Sprintf("10.244.1.%d", i))
	}
	second := snapshot(2, allKinds("10.244.1.12:80", "10.244.1.13:80", "10.244.2.12:80@b"), sticky("10.244.1.12:80", "10.244.2.13:80@b"))
	s.reach("other endpoints", second)
	s.restartOn(simulated{s.sim})
	writes, err := s.round(second)
	kit.Check(s.t, writes <= 0, "a new process writes %d times, %v", writes, err)
	s.reach("a new process", second)
	s.deletePod("10.244.1.12")
	s.pods("10.244.1.12")
	s.reach("a pod made again", second)
	s.sim.Restart(sim.Everything)
	s.reach("HNS starts again", second)
	s.sim.Restart(sim.Pods)
	s.reach("HNS has lost everything but pods", second)
	for _, o := range s.sim.Objects(sim.Network) {
		if err := s.sim.Delete(sim.Network, o.ID()); err != nil {
			s.t.Fatal(err)
		}
	}
	s.makeNetwork()
	s.reach("the network is made again", second)
	s.reach("no Services", snapshot(3))
	s.reach("Services again", snapshot(4, allKinds("10.244.1.11:80", "10.244.2.11:80@b")))
	for range mostRounds {
		if s.backend.Cleanup(s.t.Context()) == nil {
			break
		}
	}
	if n := len(s.sim.Objects(sim.LoadBalancer)); n > 0 || s.sim.Handles() > 0 {
		s.t.Errorf("%d load balancers left, %d handles", n, s.sim.Handles())
	}
	for _, e := range s.sim.Objects(sim.Endpoint) {
		if e.Remote() {
			s.t.Errorf("endpoint %s is left", e.Name())
		}
	}
	w := s.sim.Warnings()
	kit.Check(s.t, len(w) <= 0, "HNS warns: %q", w)
}
