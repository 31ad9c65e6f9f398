// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// The network plugin deletes endpoints of pods without a notification. A Service that
// still uses one of them works while everything is listed.
func TestPodsVanish(t *testing.T) {
	for name, tt := range map[string]struct {
		gone []string
		want []string // calls while the Service has no load balancer
		left string
	}{
		"one of two": {[]string{"10.244.1.12"}, []string{"create load balancer", "find endpoint", "find endpoint", "create load balancer"}, "[10.244.1.11]"},
		"none":       {nil, []string{"create load balancer"}, "[10.244.1.11 10.244.1.12]"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, overlayN)
			b.pods("10.244.1.11", "10.244.1.12")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80", "10.244.2.11:80@b")))
			for id, e := range b.hns.endpoints {
				if slices.Contains(tt.gone, e.Addrs[0].String()) {
					delete(b.hns.endpoints, id)
				}
			}
			next := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80"))
			p := b.plan(next)
			var calls []string
			b.hns.refuse = func(op string) error {
				if len(b.hns.balancers) == 0 {
					calls = append(calls, op)
				}
				return nil
			}
			err := p.Apply(context.Background()).Err
			b.hns.refuse = nil
			if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 " + tt.left}, b.balancerTexts()); diff != "" || (err != nil) != (len(tt.gone) > 0) {
				t.Errorf("Apply = %v (-want +got):\n%s", err, diff)
			}
			if diff := cmp.Diff(tt.want, calls); diff != "" {
				t.Errorf("calls while the Service has no load balancer (-want +got):\n%s", diff)
			}
			b.pods(tt.gone...)
			b.converge(next)
			if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.1.12]"}, b.balancerTexts()); diff != "" {
				t.Errorf("once the pod is back (-want +got):\n%s", diff)
			}
		})
	}
}

// A Service that lacks one pod for now, or the health checks of a load balancer, is still
// in force. A Service without any pod is not.
func TestInForceButFor(t *testing.T) {
	pods := func(more ...string) *service.Port { return clusterIP("web", "10.96.0.10", more...) }
	balanced := pods("10.244.1.11:80")
	balanced.Frontends = append(balanced.Frontends, service.Frontend{Kind: service.LoadBalancerIP, Addr: addr("203.0.113.5"), Port: 80})
	local := pods("10.244.1.12:80", "10.244.2.11:80@b")
	local.Frontends = append(local.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	local.External, local.Local = service.PolicyLocal, local.Cluster[:1]
	for name, tt := range map[string]struct {
		port *service.Port
		want bool
	}{
		"a pod is not there yet":        {pods("10.244.1.11:80", "10.244.1.12:80"), true},
		"the only one":                  {pods("10.244.1.12:80"), false},
		"the only one here":             {local, false},
		"no route to one":               {pods("10.244.1.11:80", "10.244.9.9:80@b"), true},
		"no route to the only one":      {pods("10.244.9.9:80@b"), false},
		"no endpoint for health checks": {balanced, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, overlayN)
			b.options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
			b.restart()
			b.pods("10.244.1.11")
			node := *theNode
			node.Pods = service.LocalPods{Prefixes: []netip.Prefix{prefix("10.244.0.0/16")}}
			_, err := b.round(service.New(1, &node, []*service.Port{tt.port}))
			wantFailed(t, err, "web", "web")
			if got := reconcile.InForce(err); got != tt.want || reconcile.Unsupported(err) {
				t.Errorf("in force %t, want %t, and to be tried again: %v", got, tt.want, err)
			}
		})
	}
}

// unplug removes a pod from the switch.
func (tn *testNode) unplug(pod string) {
	tn.hns.unattached = map[string]bool{}
	for id, e := range tn.hns.endpoints {
		tn.hns.unattached[id] = e.HasAddr(addr(pod))
	}
}

// HNS rejects a whole load balancer if a pod has no switch port yet. Meanwhile the
// Service keeps the other pods, and loses those that are deleted.
func TestPodNotOnTheSwitch(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		t.Run(v.String(), func(t *testing.T) {
			b := newTestNode(t, v, bridgeN)
			b.pods("10.244.1.11", "10.244.1.12", "10.244.1.13")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80")))
			b.unplug("10.244.1.13")
			want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.13:80"),
				clusterIP("cart", "10.96.0.11", "10.244.1.13:80", "10.244.2.11:80@b"), clusterIP("alone", "10.96.0.12", "10.244.1.13:80"))
			for range 2 {
				_, err := b.round(want)
				wantFailed(t, err, "switch port", "alone", "cart", "web")
				all := reconcile.PortErrors(err)
				if reconcile.InForce(all[0].Err) || !reconcile.InForce(all[1].Err) || !reconcile.InForce(all[2].Err) {
					t.Errorf("in force all but alone: %v", err)
				}
				if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11]", "tcp 10.96.0.11:80 [10.244.2.11]"}, b.balancerTexts()); diff != "" {
					t.Errorf("meanwhile (-want +got):\n%s", diff)
				}
			}
			b.hns.unattached = nil
			b.converge(want)
		})
	}
}

// A pod that stays without a switch port costs the Service its load balancer for a
// moment, at growing intervals.
func TestPodStaysOffTheSwitch(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
	b.unplug("10.244.1.12")
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80"))
	begin, cuts := b.now, 0
	for b.now.Sub(begin) < time.Hour {
		_, err := b.round(want)
		wantFailed(t, err, "switch port", "web")
		cuts += b.hns.calls["delete load balancer"]
		if diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11]"}, b.balancerTexts()); diff != "" {
			t.Fatalf("meanwhile (-want +got):\n%s", diff)
		}
		b.now = b.now.Add(9 * time.Second)
	}
	if cuts < 12 || cuts > 20 {
		t.Errorf("%d attempts in an hour, want one every 5 minutes and some before", cuts)
	}
	b.hns.unattached = nil
	b.now = b.now.Add(maxBackoff)
	b.converge(want)
}
