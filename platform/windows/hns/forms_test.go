// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// normalizer is an HNS that holds objects in another form than it was asked for. Where it is silent, only listings show
// that.
type normalizer struct {
	Driver
	change func(*LoadBalancer)
	silent bool
}

func (n *normalizer) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	l, err := n.Driver.List(ctx, what)
	for i := range l.LoadBalancers {
		n.change(&l.LoadBalancers[i])
	}
	return l, err
}

func (n *normalizer) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	made, err := n.Driver.CreateLoadBalancer(ctx, lb)
	if err == nil && !n.silent {
		n.change(&made)
	}
	return made, err
}

func (n *normalizer) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	made, err := n.Driver.UpdateLoadBalancer(ctx, lb)
	if err == nil {
		n.change(&made)
	}
	return made, err
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
				b.restartOn(&normalizer{b.hns, tt.change, silent})
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
		if n, repairs := tn.hns.writes(), repaired && resync <= maxRepairs; (n > 0) != repairs {
			t.Errorf("resync %d: %d writes, want some: %v", resync, n, repairs)
		}
		if left := repaired && resync > maxRepairs; (err != nil) != left || left && !strings.Contains(err.Error(), report+", also after it was made again") {
			t.Errorf("resync %d: %v, want %q: %v", resync, err, report, left)
		}
	}
	want = snapshot(2, allKinds("10.244.1.11:80", "10.244.1.12:80", "10.244.2.11:80@b"))
	_, _ = tn.round(want) // the report goes on
	for _, lb := range tn.hns.balancers {
		if len(lb.Endpoints) != 3 {
			t.Errorf("%s has %d endpoints after a change, want 3", lb.Key, len(lb.Endpoints))
		}
	}
	want = snapshot(3, allKinds("10.244.1.11:80", "10.244.2.11:80@b"))
	if _, _ = tn.round(want); tn.hns.calls["create load balancer"] > 0 {
		t.Error("a second change of endpoints makes load balancers again")
	}
	tn.now = tn.now.Add(31 * time.Second)
	_, _ = tn.round(want)
	if n := tn.hns.writes(); n > 0 {
		t.Errorf("%d writes after the change of endpoints", n)
	}
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
			if n := b.hns.writes(); n > 0 {
				t.Errorf("lost %v, step %d: %d writes of a resync", lost, i, n)
			}
		}
		b.rounds(t, snapshot(9), 1)
		if forms := b.backend.host.record.Forms; len(forms) > 0 {
			t.Errorf("the forms of no load balancer: %v", forms)
		}
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
	if err == nil {
		t.Error("a form that was repaired in vain is not reported")
	}
	b.rounds(t, snapshot(2, plain), 1)
}

// affinityNode returns a node whose HNS has no session affinity, though it says so, and a Service with and without it.
func affinityNode(t *testing.T, silent bool) (b *testNode, sticky, plain *service.Port) {
	b = newTestNode(t, v13, bridgeN)
	b.restartOn(&normalizer{b.hns, func(lb *LoadBalancer) { lb.Distribution = DistributionNone }, silent})
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
			if n := b.hns.writes(); (n > 0) != repairs {
				t.Errorf("%s, resync %d: %d writes, want some: %v", name, resync, n, repairs)
			}
		}
	}
}

// macs is an HNS that gives remote endpoints MACs of its own.
type macs struct {
	Driver
	silent bool
}

func (m *macs) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	l, err := m.Driver.List(ctx, what)
	for i := range l.Endpoints {
		if l.Endpoints[i].Remote {
			l.Endpoints[i].MAC = "AA-BB-CC-00-00-01"
		}
	}
	return l, err
}

func (m *macs) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	made, err := m.Driver.CreateEndpoint(ctx, e)
	if made.Remote && !m.silent {
		made.MAC = "AA-BB-CC-00-00-01"
	}
	return made, err
}

// TestOtherMACs keeps remote endpoints to which HNS gives other MACs.
func TestOtherMACs(t *testing.T) {
	for _, silent := range []bool{false, true} {
		b := newTestNode(t, v13, bridgeN)
		b.restartOn(&macs{b.hns, silent})
		want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"))
		b.rounds(t, want, 1)
		for resync := 1; resync <= 5; resync++ {
			b.now = b.now.Add(31 * time.Second)
			_, err := b.round(want)
			if n, repairs := b.hns.writes(), silent && resync <= maxRepairs; (n > 0) != repairs {
				t.Errorf("silent %v, resync %d: %d writes, want some: %v", silent, resync, n, repairs)
			}
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
		if _, err := tn.round(want); err != nil {
			t.Fatal(err)
		}
	}
}
