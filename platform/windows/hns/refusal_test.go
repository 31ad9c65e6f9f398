// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// allKinds is a Service with a frontend of each kind.
func allKinds(endpoints ...string) *service.Port {
	p := clusterIP("web", "10.96.0.10", endpoints...)
	p.Frontends = append(p.Frontends,
		service.Frontend{Kind: service.NodePort, Port: 30080},
		service.Frontend{Kind: service.ExternalIP, Addr: addr("198.51.100.10"), Port: 80},
		service.Frontend{Kind: service.LoadBalancerIP, Addr: addr("203.0.113.10"), Port: 80})
	return p
}

func allKindsBalancers(endpoints string) []string {
	return []string{
		"tcp 10.96.0.10:80 [" + endpoints + "]", "tcp 198.51.100.10:80 [" + endpoints + "]",
		"tcp 203.0.113.10:80 [" + endpoints + "]", "tcp node:30080 [" + endpoints + "]",
	}
}

// An HNS that rejects new load balancers for a while costs a Service at most one of its
// own, after any number of syncs.
func TestRefusedCreatesLeaveTheOthers(t *testing.T) {
	for _, code := range []uint32{0x57, 0x1f, 0x803b000d} {
		t.Run(fmt.Sprintf("0x%x", code), func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11", "10.244.1.12")
			b.converge(snapshot(1, allKinds("10.244.1.11:80")))
			fewest, creates := 4, 0
			b.hns.refuse = func(op string) error {
				fewest = min(fewest, len(b.hns.balancers))
				if op != "create load balancer" {
					return nil
				}
				creates++
				return codeError(op, code)
			}
			want := snapshot(2, allKinds("10.244.1.11:80", "10.244.1.12:80"))
			for range 10 {
				_, err := b.round(want)
				wantFailed(t, err, "HNS", "web")
			}
			if fewest < 3 {
				t.Errorf("%d of 4 load balancers left while HNS refused %d", fewest, creates)
			}
			b.hns.refuse = nil
			for range 8 { // one frontend may be in backoff for a moment, and the next one after it
				if _, err := b.round(want); err == nil {
					break
				}
				b.now = b.now.Add(minBackoff)
			}
			if diff := cmp.Diff(allKindsBalancers("10.244.1.11 10.244.1.12"), b.balancerTexts()); diff != "" {
				t.Errorf("once HNS takes them again (-want +got):\n%s", diff)
			}
		})
	}
}

// If HNS rejects a replacement, the old load balancer is created again. The replacement
// is tried at growing intervals.
func TestRefusedLoadBalancerGivesWay(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshot(1, allKinds("10.244.1.11:80")))
	refused := 0
	b.hns.refuse = func(op string) error {
		// The newest of the four is deleted when the one with more endpoints is created.
		if op == "create load balancer" && len(b.hns.balancers) == 3 {
			if refused++; refused%2 == 1 {
				return codeError(op, 0x57)
			}
		}
		return nil
	}
	want := snapshot(2, allKinds("10.244.1.11:80", "10.244.1.12:80"))
	begin := b.now
	for b.now.Sub(begin) < time.Hour {
		_, err := b.round(want)
		wantFailed(t, err, "as before", "web")
		if diff := cmp.Diff(allKindsBalancers("10.244.1.11"), b.balancerTexts()); diff != "" {
			t.Fatalf("meanwhile (-want +got):\n%s", diff)
		}
		if strings.Contains(err.Error(), "tried again in a while") && b.hns.calls["list endpoints"] > 1 {
			t.Fatalf("what is not tried needs no second listing: %v", b.hns.calls)
		}
		b.now = b.now.Add(4 * time.Second)
	}
	if n := refused / 2; n < 4*12 || n > 4*25 {
		t.Errorf("%d attempts at four load balancers in an hour, want one every 5 minutes each and some before", n)
	}
	b.hns.refuse = nil
	b.now = b.now.Add(maxBackoff)
	b.converge(want)
}

// HNS is not blamed for a call that the end of a round cut off.
func TestRoundEndsDuringAReplacement(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshot(1, allKinds("10.244.1.11:80")))
	ctx, end := context.WithCancel(t.Context())
	b.hns.refuse = func(op string) error {
		if op == "create load balancer" {
			end()
			return codeError(op, 0x57)
		}
		return nil
	}
	want := snapshot(2, allKinds("10.244.1.11:80", "10.244.1.12:80"))
	p, err := b.backend.Plan(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(ctx).Err; err == nil {
		t.Error("a round that was cut off succeeds")
	}
	b.hns.refuse = nil
	b.converge(want)
}

// A port that a program of the node listens on is tried at growing intervals. Nothing is
// listed again once it is known that no load balancer has it. The error names the
// listener and the remedy.
func TestPortThatAProgramHolds(t *testing.T) {
	port := func(number uint16) *service.Port {
		p := clusterIP("web", "10.96.0.10", "10.244.1.11:80")
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.LoadBalancerIP, Addr: addr("203.0.113.10"), Port: number})
		return p
	}
	checked := port(80)
	checked.HealthCheck = 31000
	for name, tt := range map[string]struct {
		port *service.Port
		held uint16
		text string
	}{
		"health":       {port(80), 10256, "kube-proxy itself, for healthzBindAddress; set --healthz-bind-address to one address of the node, such as 192.0.2.10:10256, or use Windows Server 2022"},
		"metrics":      {port(10249), 10249, "kube-proxy itself, for metricsBindAddress; set --metrics-bind-address to one address of the node"},
		"health check": {checked, 31000, "kube-proxy itself, for the healthCheckNodePort; set --nodeport-addresses"},
		"another":      {port(8443), 8443, "Get-NetTCPConnection -State Listen -LocalPort 8443 names its process"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, Version{9, 5}, bridgeN)
			b.options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256, MetricsPort: 10249}
			b.restart()
			b.pods("10.244.1.11")
			b.addRootEndpoint()
			k := Key{VIP: addr("203.0.113.10"), Port: tt.held, Protocol: service.TCP}
			b.hns.heldPorts[k] = true
			want := snapshot(1, tt.port)
			creates, lists := 0, 0
			for range 33 { // one second each
				_, err := b.round(want)
				wantFailed(t, err, tt.text, "web")
				creates += b.hns.calls["create load balancer"]
				lists += b.hns.calls["list load balancers"]
			}
			// Two that work, and one of the others after 2, 4, 8 and 16 s each.
			if creates > 2+6 || lists > 4 {
				t.Errorf("in 33 s %d creating calls, want 8 at most; %d listings, want one a resync and one more", creates, lists)
			}
			delete(b.hns.heldPorts, k)
			b.now = b.now.Add(maxBackoff)
			b.converge(want)
		})
	}
}

// A load balancer that appears between the listing and our own attempt is found at once,
// whatever HNS refused before at the same address.
func TestTakenAfterAnotherRefusal(t *testing.T) {
	for name, code := range map[string]uint32{"nothing": 0, "wrong parameter": 0x57, "missing endpoint": 0x803b0002, "no switch port": 0x803b0007} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11", "10.244.1.12")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
			want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80"))
			if code != 0 {
				b.hns.refuse = func(op string) error {
					if op != "create load balancer" {
						return nil
					}
					return codeError(op, code)
				}
				_, err := b.round(want)
				wantFailed(t, err, "create load balancer", "web")
				b.hns.refuse = nil
			}
			clear(b.hns.balancers)
			b.now = b.now.Add(maxBackoff)
			p := b.plan(want)
			made, err := b.hns.CreateLoadBalancer(t.Context(), LoadBalancer{
				Key: Key{VIP: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 80, SourceVIP: nodeA, Endpoints: []string{"endpoint-000001", "endpoint-000002"},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(t.Context()).Err; err != nil {
				t.Fatalf("Apply: %v", err)
			}
			if _, kept := b.hns.balancers[made.ID]; !kept || len(b.hns.balancers) != 1 {
				t.Errorf("load balancers = %v, want the one that was there", b.hns.balancers)
			}
		})
	}
}
