// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

func unsupportedOnly(err error) bool { return reconcile.Unsupported(err) }

// errCrash is the panic of the fake when the process dies.
var errCrash = errors.New("the process dies")

// TestConverges runs syncs in which HNS calls fail, HNS goes down, the process dies, and
// other processes change HNS. One sync without failures must reach the desired state, and
// the next one must find nothing to do. No object of ours is left over, and objects of
// other owners stay unchanged.
func TestConverges(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) { converges(t, generator{r, f}) })
		})
	}
}

func converges(t *testing.T, w generator) {
	b := drawTestNode(t, w)
	foreign := w.addForeign(b)
	var want *service.Snapshot
	var ports []*service.Port
	for n := range 5 {
		if want == nil || w.drawBool("changes") {
			ports = w.ports()
			want = service.New(uint64(n), theNode, ports)
		}
		w.tamper(b)
		w.injectFaults(b)
		w.faultyRound(b, want)
		b.hns.refuse, b.hns.after, b.hns.down = nil, nil, false
	}
	w.restorePods(b)
	b.now = b.now.Add(time.Minute) // a later listing shows changes by other processes
	if text, err := b.round(want); err != nil && !unsupportedOnly(err) {
		w.t.Fatalf("a clean round: %v\n%s", err, text)
	}
	if text := b.plan(want).String(); text != "" {
		w.t.Fatalf("after a clean round, still to do:\n%s", text)
	}
	w.checkLeftovers(b, ports)
	for _, e := range foreign {
		if _, ok := b.hns.endpoints[e]; !ok && b.hns.balancers[e].ID == "" {
			w.t.Fatalf("%s was not ours, and is gone", e)
		}
	}
	if len(b.hns.warnings) > 0 {
		w.t.Fatalf("HNS warns: %v", b.hns.warnings)
	}
	for range 5 {
		judge(w.t, b, want, w.conn(ports))
	}
}

// addForeign adds objects of another owner: a load balancer, and its remote endpoint.
func (w generator) addForeign(b *testNode) []string {
	n := b.hns.networks[0].ID
	e := Endpoint{ID: "stranger-endpoint", Network: n, Name: "other", Remote: true, MAC: "02-11-00-00-00-01", Provider: nodeB, Addrs: []netip.Addr{w.nth("10.244.3.99", "fd00:10:244:3::99", 0)}}
	b.hns.endpoints[e.ID] = e
	lb := LoadBalancer{ID: "stranger-balancer", Key: Key{Family: w.family, Port: 40000, Protocol: service.TCP}, TargetPort: 1, Endpoints: []string{e.ID}}
	b.hns.balancers[lb.ID] = lb
	return []string{e.ID, lb.ID}
}

// injectFaults makes calls of the next sync fail, before or after their effect.
func (w generator) injectFaults(b *testNode) {
	codes := []uint32{0xaa, 0x57, 0x803b0007, 0x1f}
	fail := func(label string, one int) func(string) error {
		return func(op string) error {
			switch w.drawInt(label, one) {
			case 0:
				return codeError(op, rapid.SampledFrom(codes).Draw(w.t, "code"))
			case 1:
				if w.drawInt("crash", 4) == 0 {
					panic(errCrash)
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
}

// faultyRound runs a sync that may fail or end the process.
func (w generator) faultyRound(b *testNode, want *service.Snapshot) {
	defer func() {
		r := recover()
		if r != nil && r != error(errCrash) {
			panic(r)
		}
		if r != nil || w.drawInt("restart", 4) == 0 {
			b.restart()
			b.setFamily(w.family)
		}
	}()
	b.now = b.now.Add(time.Duration(w.drawInt("later", 40)) * time.Second)
	p, err := b.backend.Plan(context.Background(), want)
	if err != nil {
		if !b.hns.down && b.hns.refuse == nil && b.hns.after == nil {
			w.t.Fatalf("Plan: %v", err)
		}
		return
	}
	if p.Empty() {
		return
	}
	// The next syncs handle failures and missing pods.
	if err := p.Apply(context.Background()); err != nil && len(reconcile.PortErrors(err)) == 0 && !b.hns.down && b.hns.refuse == nil && b.hns.after == nil {
		w.t.Fatalf("Apply: %v\n%s", err, p)
	}
}

// tamper changes HNS as another process or the network plugin might.
func (w generator) tamper(b *testNode) {
	lbs, eps := slices.Sorted(maps.Keys(b.hns.balancers)), slices.Sorted(maps.Keys(b.hns.endpoints))
	switch w.drawInt("meddle", 9) {
	case 0: // load balancers disappear
		for _, id := range lbs {
			if id != "stranger-balancer" && w.drawBool("vanish") {
				delete(b.hns.balancers, id)
			}
		}
	case 1: // a load balancer is altered
		id := lbs[w.drawInt("altered", len(lbs))]
		if lb := b.hns.balancers[id]; id != "stranger-balancer" {
			lb.TargetPort++
			b.hns.balancers[id] = lb
		}
	case 2: // remote endpoints and pods disappear, used or not
		for _, id := range eps {
			if id != "stranger-endpoint" && w.drawInt("vanish", 3) == 0 {
				delete(b.hns.endpoints, id)
			}
		}
	case 3: // a pod is created again
		w.replacePod(b)
	case 4: // another node has the pods of a subnet
		if n := &b.hns.networks[0]; n.Kind == Overlay {
			n.Routes = slices.Clone(n.Routes)
			n.Routes[0].Provider = rapid.SampledFrom([]netip.Addr{nodeB, addr("192.0.2.20")}).Draw(w.t, "provider")
		}
	case 5: // the network plugin creates the network again, with the pods
		w.renewNetwork(b)
	}
}

func (w generator) replacePod(b *testNode) {
	a := w.localPod(w.drawInt("pod", 6))
	for id, e := range b.hns.endpoints {
		if e.HasAddr(a) && !e.Remote {
			delete(b.hns.endpoints, id)
			e.ID = b.hns.id("endpoint")
			b.hns.endpoints[e.ID] = e
			return
		}
	}
}

func (w generator) renewNetwork(b *testNode) {
	b.hns.networks[0].ID = b.hns.id("network")
	for id, e := range b.hns.endpoints {
		if e.ID == "stranger-endpoint" {
			e.Network = b.hns.networks[0].ID
			b.hns.endpoints[id] = e
			continue
		}
		delete(b.hns.endpoints, id)
	}
	w.restorePods(b)
}

// restorePods creates the missing pods, as the network plugin does.
func (w generator) restorePods(b *testNode) {
	n := b.hns.networks[0].ID
	create := func(name string, a netip.Addr) {
		if !b.hns.hasAddr(n, a, false) {
			e := Endpoint{ID: b.hns.id("endpoint"), Name: name, Network: n, Addrs: []netip.Addr{a}}
			b.hns.endpoints[e.ID] = e
		}
	}
	for i := range 6 {
		create(fmt.Sprintf("pod-%d", i), w.localPod(i))
	}
	create("cbr0", rootAddr(w.family))
}

// checkLeftovers checks that HNS holds exactly what ports need, and the objects of other
// owners.
func (w generator) checkLeftovers(b *testNode, ports []*service.Port) {
	l, _ := b.hns.List(context.Background(), All)
	site, _, err := b.backend.discover(l, theNode)
	if err != nil {
		w.t.Fatalf("survey: %v", err)
	}
	wanted, vips := map[Key]bool{}, map[netip.Addr]bool{}
	for _, p := range ports {
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
		if id != "stranger-balancer" && !wanted[lb.Key] {
			w.t.Fatalf("load balancer %s is left over", lb.Key)
		}
		for _, e := range lb.Endpoints {
			used[e] = true
		}
	}
	if len(b.hns.balancers)-1 != len(wanted) {
		w.t.Fatalf("%d load balancers, want %d", len(b.hns.balancers)-1, len(wanted))
	}
	for id, e := range b.hns.endpoints {
		if e.Remote && !used[id] && !vips[e.Addrs[0]] {
			w.t.Fatalf("endpoint %s is left over", e.describe())
		}
	}
}
