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
)

// simulated calls a simulated HNS as hcsshim does, within the process.
type simulated struct{ *sim.Simulator }

func (d simulated) call(op string, q sim.Request, document any) (sim.Reply, error) {
	q.Args[0] = "{}"
	if document != nil {
		text, err := json.Marshal(document)
		if err != nil {
			return sim.Reply{}, err
		}
		q.Args[0] = string(text)
	}
	r := d.CallAs(sim.Caller, q)
	if r.Code != sim.OK {
		return r, &Error{Op: op, Code: uint32(r.Code)}
	}
	return r, nil
}

// with opens an object, or creates it with a document, does the rest with its handle, and closes it.
func (d simulated) with(op string, q sim.Request, document any, do func(handle uint64) error) error {
	r, err := d.call(op, q, document)
	if err != nil {
		return err
	}
	kind := strings.TrimPrefix(strings.TrimPrefix(q.Function, "HcnOpen"), "HcnCreate")
	defer d.CallAs(sim.Caller, sim.Request{Function: "HcnClose" + kind, Handle: r.Handle})
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

func (d simulated) List(_ context.Context, what ObjectKinds) (l Listing, err error) {
	v := d.Version()
	l.Version = Version{v.Major, v.Minor}
	if what&Networks != 0 {
		l.Networks, err = listed(d, "Network", parseNetwork)
	}
	if what&Endpoints != 0 && err == nil {
		l.Endpoints, err = listed(d, "Endpoint", parseEndpoint)
	}
	if what&LoadBalancers != 0 && err == nil {
		l.LoadBalancers, err = listed(d, "LoadBalancer", parseBalancer)
	}
	return l, err
}

func (d simulated) CreateEndpoint(_ context.Context, e Endpoint) (made Endpoint, err error) {
	op := "create endpoint " + e.Name
	err = d.with(op, open("Network", e.Network), nil, func(network uint64) error {
		return d.with(op, sim.Request{Function: "HcnCreateEndpoint", Handle: network}, e.document(), func(handle uint64) error {
			made, err = read(d, op, "Endpoint", handle, parseEndpoint)
			return err
		})
	})
	return made, err
}

func (d simulated) HasEndpoint(_ context.Context, id string) (bool, error) {
	err := d.with("find endpoint", open("Endpoint", id), nil, func(uint64) error { return nil })
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (d simulated) DeleteEndpoint(_ context.Context, id string) error {
	_, err := d.call("delete endpoint "+id, sim.Request{Function: "HcnDeleteEndpoint", ID: id}, nil)
	return err
}

func (d simulated) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (made LoadBalancer, err error) {
	op := "create load balancer " + lb.Key.String()
	err = d.with(op, sim.Request{Function: "HcnCreateLoadBalancer"}, lb.document(), func(handle uint64) error {
		made, err = read(d, op, "LoadBalancer", handle, parseBalancer)
		return err
	})
	return made, err
}

func (d simulated) UpdateLoadBalancer(_ context.Context, lb LoadBalancer) (now LoadBalancer, err error) {
	op := "change load balancer " + lb.Key.String()
	err = d.with(op, open("LoadBalancer", lb.ID), nil, func(handle uint64) error {
		if _, err := d.call(op, sim.Request{Function: "HcnModifyLoadBalancer", Handle: handle}, lb.document()); err != nil {
			return err
		}
		now, err = read(d, op, "LoadBalancer", handle, parseBalancer)
		return err
	})
	return now, err
}

func (d simulated) PortsLeft(context.Context, Key) (bool, error) { return true, nil }

func (d simulated) DeleteLoadBalancer(_ context.Context, lb LoadBalancer) error {
	_, err := d.call("delete load balancer "+lb.Key.String(), sim.Request{Function: "HcnDeleteLoadBalancer", ID: lb.ID}, nil)
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

func (b *simulatedNode) makeNetwork() {
	if _, err := b.sim.AddNetwork(b.network); err != nil {
		b.t.Fatal(err)
	}
	b.pods("10.244.1.11", "10.244.1.12", "10.244.1.13")
}

func (b *simulatedNode) pods(addrs ...string) {
	b.t.Helper()
	for _, a := range addrs {
		if _, err := b.sim.AddPod("net0", "pod-"+a, addr(a)); err != nil {
			b.t.Fatalf("the network plugin cannot make pod %s: %v", a, err)
		}
	}
}

func (b *simulatedNode) deletePod(a string) {
	for _, e := range b.sim.Objects(sim.Endpoint) {
		if e.Name() == "pod-"+a {
			if err := b.sim.Delete(sim.Endpoint, e.ID()); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

// round is that of a sync period, in which writes calls changed something.
func (b *simulatedNode) round(want *service.Snapshot) (writes int, err error) {
	before := b.sim.Calls()
	b.now = b.now.Add(31 * time.Second)
	p, err := b.backend.Plan(b.t.Context(), want)
	if err == nil && !p.Empty() {
		err = p.Apply(b.t.Context()).Err
	}
	return b.sim.Calls().Sub(before).Writes(""), err
}

// mostRounds is how many sync periods a goal may take.
const mostRounds = 8

// reach reaches want, after which resyncs must write nothing.
func (b *simulatedNode) reach(when string, want *service.Snapshot) {
	b.t.Helper()
	var log []string
	for range mostRounds {
		writes, err := b.round(want)
		log = append(log, fmt.Sprintf("%d writes, %v", writes, err))
		if writes > 0 || err != nil && !reconcile.Unsupported(err) {
			continue
		}
		if diff := cmp.Diff(b.wanted(want), b.served()); diff != "" {
			b.t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		for resync := 1; resync <= 3; resync++ {
			if writes, err := b.round(want); writes > 0 {
				b.t.Errorf("%s: resync %d after the goal writes %d times, %v", when, resync, writes, err)
			}
		}
		return
	}
	b.t.Fatalf("%s: not reached: %s", when, strings.Join(log, "\n"))
}

// wanted is the endpoints by address and port, and served those that HNS leads to.
func (b *simulatedNode) wanted(want *service.Snapshot) map[string]string {
	all := map[string]string{}
	for p := range want.Ports(service.IPv4) {
		for _, f := range p.Frontends {
			var to []string
			for _, e := range p.Endpoints(f.Kind) {
				to = append(to, e.Addr.Addr().String())
			}
			k := Key{VIP: f.Addr, Port: f.Port, Protocol: p.Name.Protocol}
			if len(to) > 0 {
				all[k.String()] = strings.Join(to, " ")
			}
		}
	}
	return all
}

func (b *simulatedNode) served() map[string]string {
	at, all := map[string]netip.Addr{}, map[string]string{}
	for _, e := range b.sim.Objects(sim.Endpoint) {
		at[e.ID()] = e.IPs()[0]
	}
	for _, d := range b.sim.Objects(sim.LoadBalancer) {
		text, _ := json.Marshal(d)
		lb, err := parseBalancer(text)
		if err != nil {
			b.t.Fatal(err)
		}
		var to []netip.Addr
		for _, id := range d.Endpoints() {
			to = append(to, at[id])
		}
		slices.SortFunc(to, netip.Addr.Compare)
		all[lb.Key.String()] = strings.Trim(fmt.Sprint(to), "[]")
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

func (b *simulatedNode) live() {
	sticky := func(endpoints ...string) *service.Port {
		p := clusterIP("cart", "10.96.0.11", endpoints...)
		p.Affinity, p.External = time.Hour, service.PolicyLocal
		return p
	}
	first := snapshot(1, allKinds("10.244.1.11:80", "10.244.2.11:80@b", "10.244.2.12:80@b"), sticky("10.244.1.12:80"))
	b.reach("the start", first)
	for i := 2; i < 10; i++ { // the network plugin's IPAM, which does not ask HNS
		b.pods(fmt.Sprintf("10.244.1.%d", i))
	}
	second := snapshot(2, allKinds("10.244.1.12:80", "10.244.1.13:80", "10.244.2.12:80@b"), sticky("10.244.1.12:80", "10.244.2.13:80@b"))
	b.reach("other endpoints", second)
	b.restartOn(simulated{b.sim})
	if writes, err := b.round(second); writes > 0 {
		b.t.Errorf("a new process writes %d times, %v", writes, err)
	}
	b.reach("a new process", second)
	b.deletePod("10.244.1.12")
	b.pods("10.244.1.12")
	b.reach("a pod made again", second)
	b.sim.Restart(sim.Everything)
	b.reach("HNS starts again", second)
	b.sim.Restart(sim.Pods)
	b.reach("HNS has lost everything but pods", second)
	for _, o := range b.sim.Objects(sim.Network) {
		if err := b.sim.Delete(sim.Network, o.ID()); err != nil {
			b.t.Fatal(err)
		}
	}
	b.makeNetwork()
	b.reach("the network is made again", second)
	b.reach("no Services", snapshot(3))
	b.reach("Services again", snapshot(4, allKinds("10.244.1.11:80", "10.244.2.11:80@b")))
	for range mostRounds {
		if b.backend.Cleanup(b.t.Context()) == nil {
			break
		}
	}
	if n := len(b.sim.Objects(sim.LoadBalancer)); n > 0 || b.sim.Handles() > 0 {
		b.t.Errorf("%d load balancers left, %d handles", n, b.sim.Handles())
	}
	for _, e := range b.sim.Objects(sim.Endpoint) {
		if e.Remote() {
			b.t.Errorf("endpoint %s is left", e.Name())
		}
	}
	if w := b.sim.Warnings(); len(w) > 0 {
		b.t.Errorf("HNS warns: %q", w)
	}
}
