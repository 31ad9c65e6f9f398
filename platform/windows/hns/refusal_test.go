// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
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
			kit.Check(t, fewest >= 3, "%d of 4 load balancers left while HNS refused %d", fewest, creates)
			b.hns.refuse = nil
			for range 8 { // one frontend may be in backoff for a moment, and the next one after it
				if _, err := b.round(want); err == nil {
					break
				}
				b.now = b.now.Add(minBackoff)
			}
			kit.Same(t, "once HNS takes them again (-want +got)", allKindsBalancers("10.244.1.11 10.244.1.12"), b.balancerTexts())
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
		diff := cmp.Diff(allKindsBalancers("10.244.1.11"), b.balancerTexts())
		kit.Need(t, diff == "", "meanwhile (-want +got):\n%s", diff)
		kit.Need(t, !strings.Contains(err.Error(), "tried again in a while") || b.hns.calls["list endpoints"] <= 1,
			"what is not tried needs no second listing: %v", b.hns.calls)
		b.now = b.now.Add(4 * time.Second)
	}
	n := refused / 2
	kit.Check(t, n >= 4*12 && n <= 4*25, "%d attempts at four load balancers in an hour, want one every 5 minutes each and some before", n)
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
	kit.Must(t, err)
	err = p.Apply(ctx).Err
	kit.Check(t, err != nil, "a round that was cut off succeeds")
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
			k := service.Address{Addr: addr("203.0.113.10"), Port: tt.held, Protocol: service.TCP}
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
			kit.Check(t, creates <= 2+6 && lists <= 4, "in 33 s %d creating calls, want 8 at most; %d listings, want one a resync and one more", creates, lists)
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
				Address: service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 80, SourceVIP: nodeA, Endpoints: []string{"endpoint-000001", "endpoint-000002"},
			})
			kit.Must(t, err)
			kit.Must(t, p.Apply(t.Context()).Err)
			_, kept := b.hns.balancers[made.ID]
			kit.Check(t, kept && len(b.hns.balancers) == 1, "load balancers = %v, want the one that was there", b.hns.balancers)
		})
	}
}

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
			diff := cmp.Diff([]string{"tcp 10.96.0.10:80 " + tt.left}, b.balancerTexts())
			kit.Check(t, diff == "" && (err != nil) == (len(tt.gone) > 0), "Apply = %v (-want +got):\n%s", err, diff)
			kit.Same(t, "calls while the Service has no load balancer (-want +got)", tt.want, calls)
			b.pods(tt.gone...)
			b.converge(next)
			kit.Same(t, "once the pod is back (-want +got)", []string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.1.12]"}, b.balancerTexts())
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
			got := reconcile.InForce(err)
			kit.Check(t, got == tt.want && !reconcile.Unsupported(err), "in force %t, want %t, and to be tried again: %v", got, tt.want, err)
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
				kit.Check(t, !reconcile.InForce(all[0].Err) && reconcile.InForce(all[1].Err) && reconcile.InForce(all[2].Err), "in force all but alone: %v", err)
				kit.Same(t, "meanwhile (-want +got)", []string{"tcp 10.96.0.10:80 [10.244.1.11]", "tcp 10.96.0.11:80 [10.244.2.11]"}, b.balancerTexts())
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
		diff := cmp.Diff([]string{"tcp 10.96.0.10:80 [10.244.1.11]"}, b.balancerTexts())
		kit.Need(t, diff == "", "meanwhile (-want +got):\n%s", diff)
		b.now = b.now.Add(9 * time.Second)
	}
	kit.Check(t, cuts >= 12 && cuts <= 20, "%d attempts in an hour, want one every 5 minutes and some before", cuts)
	b.hns.unattached = nil
	b.now = b.now.Add(maxBackoff)
	b.converge(want)
}

func webName(i int) string { return fmt.Sprintf("web-%03d", i) }

// webNames returns the names of those from first on.
func webNames(first, n int) []string {
	var all []string
	for i := range n {
		all = append(all, webName(first+i))
	}
	return all
}

// manyServices is a snapshot of n Services with a ClusterIP, whose names count from 0.
func manyServices(generation uint64, n int) *service.Snapshot {
	var all []*service.Port
	for i := range n {
		all = append(all, clusterIP(webName(i), fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250), "10.244.1.11:80"))
	}
	return snapshot(generation, all...)
}

// TestDynamicPortsRunOut checks load balancers that HNS rejects without dynamic ports.
// The error names the remedy and does not blame a listening program. There are few calls
// and no listings, and available ports are noticed. If the system does not report what is
// left, load balancers are counted.
func TestDynamicPortsRunOut(t *testing.T) {
	for name, tt := range map[string]struct {
		blocks int
		silent bool
	}{"asked": {3, false}, "counted": {UsualDynamicPorts / PortBlockSize, true}} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11")
			var condition string
			b.backend.host.OnShortage(func(text string) { condition = text })
			b.hns.portBlocks, b.hns.portsUnknown = tt.blocks, tt.silent
			want := manyServices(1, tt.blocks+4)
			creates, lists := 0, 0
			for range 33 { // one second each
				_, err := b.round(want)
				wantFailed(t, err, "no 64 dynamic TCP ports of the node are left; --enable-dsr or winkernel.enableDSR", webNames(tt.blocks, 4)...)
				kit.Need(t, !strings.Contains(err.Error(), "listens"), "somebody is said to listen: %v", err)
				creates += b.hns.calls["create load balancer"]
				lists += b.hns.calls["list load balancers"]
			}
			kit.Check(t, len(b.hns.balancers) == tt.blocks && creates <= tt.blocks+6 && lists <= 3,
				"%d load balancers by %d creating calls and %d listings", len(b.hns.balancers), creates, lists)
			kit.Check(t, strings.HasPrefix(condition, "4 load balancers over IPv4 and TCP are missing") && !strings.Contains(condition, "web"),
				"the condition is %q", condition)
			b.hns.portBlocks += 10
			b.now = b.now.Add(maxBackoff)
			b.converge(want)
			kit.Check(t, condition == "", "the condition stays: %q", condition)
		})
	}
}

// TestDirectReturnNeedsNoPorts applies the remedy.
func TestDirectReturnNeedsNoPorts(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.hns.portBlocks = 3
	want := manyServices(1, 7)
	_, err := b.round(want)
	wantFailed(t, err, "dynamic TCP ports", webNames(3, 4)...)
	b.options.DSR = true
	b.restart()
	b.converge(want)
	kit.Check(t, len(b.hns.balancers) == 7, "%d load balancers, want 7", len(b.hns.balancers))
}

// An exhausted pool does not block load balancers that need no port of it.
func TestOtherPoolsGoOn(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	b.hns.portBlocks = 1
	udp := clusterIP("dns", "10.96.0.10", "10.244.1.11:53")
	udp.Name.Protocol = service.UDP
	local := clusterIP("zz-local", "10.96.0.12", "10.244.1.11:80")
	local.External, local.Local = service.PolicyLocal, local.Cluster
	local.Frontends = []service.Frontend{{Kind: service.ExternalIP, Addr: addr("198.51.100.10"), Port: 80}}
	want := snapshot(1, clusterIP("a", "10.96.0.13", "10.244.1.11:80"), clusterIP("b", "10.96.0.14", "10.244.1.11:80"), udp, local)
	_, err := b.round(want)
	wantFailed(t, err, "dynamic TCP ports", "b")
	if len(b.hns.balancers) != 3 {
		t.Errorf("%v, want all but one", b.balancerTexts())
	}
}

func TestMorePorts(t *testing.T) {
	tcp, udp6 := service.Address{Protocol: service.TCP}, service.Address{Family: service.IPv6, Protocol: service.UDP}
	for _, tt := range []struct {
		site Site
		key  service.Address
		want string
	}{
		{Site{Version: Version{10, 1}}, tcp, "HNS 10.1 has no direct server return, which needs none: netsh int ipv4 set dynamicportrange tcp"},
		{Site{Version: v13}, tcp, "--enable-dsr or winkernel.enableDSR serves ClusterIPs without them"},
		{Site{Version: v13, Options: Options{DSR: true}}, udp6, "externalTrafficPolicy Local serves other addresses than ClusterIPs without them; netsh int ipv6 set dynamicportrange udp"},
	} {
		got := tt.site.portShortageHint(tt.key)
		kit.Check(t, strings.HasPrefix(got, tt.want), "%q, want %q", got, tt.want)
	}
}

// TestDriversPassPortsOn calls PortsLeft through the program's wrapping drivers.
func TestDriversPassPortsOn(t *testing.T) {
	k := newFake(v13)
	k.portBlocks = 1
	d := Metered(WithTimeout(k, func(string) {}, func() {}), func(Call) { t.Error("that is no call to HNS") })
	for _, want := range []bool{true, false} {
		left, err := d.PortsLeft(t.Context(), service.Address{Protocol: service.TCP})
		kit.Check(t, err == nil && left == want, "left %t, %v; want %t", left, err, want)
		k.balancers["x"] = LoadBalancer{ID: "x", Address: service.Address{Protocol: service.TCP}}
	}
	k.portsUnknown = true
	_, err := d.PortsLeft(t.Context(), service.Address{})
	kit.Check(t, err != nil, "no error where nobody knows")
}

// pass knows what HNS holds, for texts.
func (fa *fake) pass(f service.Family) *pass {
	l := Listing{}
	for _, e := range fa.endpoints {
		l.Endpoints = append(l.Endpoints, e)
	}
	return &pass{model: newModel(l, ""), family: f}
}

// balancerText describes a load balancer as a plan does.
func (fa *fake) balancerText(start string, lb *LoadBalancer) string {
	return fmt.Sprintf("%s%s %s %s", start, lb.Address, lb.describe(), fa.pass(lb.Family).formatEndpoints(lb.Endpoints))
}

// balancerTexts returns HNS's load balancers with the addresses of their endpoints.
func (tn *testNode) balancerTexts() []string {
	l := Listing{}
	for _, e := range tn.hns.endpoints {
		l.Endpoints = append(l.Endpoints, e)
	}
	p := pass{model: newModel(l, "")}
	all := []string{}
	for _, lb := range tn.hns.balancers {
		all = append(all, lb.Address.String()+" "+p.formatEndpoints(lb.Endpoints))
	}
	slices.Sort(all)
	return all
}

// HNS reports success for a call without effect. The next resync finds that, also in
// another process. A load balancer that should be deleted is still known as ours,
// although it uses only local pods.
func TestFalseSuccess(t *testing.T) {
	for _, v := range []Version{v13, v15} {
		for _, op := range []string{"create endpoint", "delete endpoint", "create load balancer", "change load balancer", "delete load balancer"} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("HNS %s, %s, restart %t", v, op, restart), func(t *testing.T) { runFalseSuccess(t, v, op, restart) })
			}
		}
	}
}

func runFalseSuccess(t *testing.T, v Version, op string, restart bool) {
	b := newTestNode(t, v, bridgeN)
	without := "" // the call that has no effect
	d := onWrites(b.hns, func(x string, do func()) {
		if x != without {
			do()
		}
	})
	b.restartOn(d)
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80")))
	without = op
	want := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.12:80@b"), clusterIP("new", "10.96.0.12", "10.244.1.12:80"))
	_, _ = b.round(want) // the result does not matter
	without = ""
	if restart {
		b.restartOn(d)
	}
	b.now = b.now.Add(time.Minute)
	_, err := b.round(want)
	kit.Need(t, err == nil, "the next resync: %v", err)
	kit.Same(t, "load balancers (-want +got)", []string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.2.12]", "tcp 10.96.0.12:80 [10.244.1.12]"}, b.balancerTexts())
	n := len(b.hns.endpoints)
	kit.Check(t, n == 3, "%d endpoints, want two pods and one elsewhere: %v", n, b.hns.endpoints)
}

// The process dies before or after each of its calls. The Services may differ when the
// next process starts. It recognises all our objects and needs one sync.
func TestCrashAtEachCall(t *testing.T) {
	first := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.1.11:80"))
	second := snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.12:80"), clusterIP("new", "10.96.0.12", "10.244.1.12:80"), clusterIP("out", "10.96.0.13", "10.244.2.12:80@b"))
	for name, then := range map[string]*service.Snapshot{"nothing": snapshot(3), "what was": first, "what was to be": second} {
		for _, v := range []Version{v13, v15} {
			t.Run(fmt.Sprintf("%s, HNS %s", name, v), func(t *testing.T) {
				for call := 1; crashAt(t, newTestNode(t, v, bridgeN), call, []*service.Snapshot{first, second, then}); call++ {
				}
				for call := 1; crashAt(t, newTestNode(t, v, overlayN), call, []*service.Snapshot{first, second, then}); call++ {
				}
			})
		}
	}
}

// crashAt returns whether there was such a call. Calls with odd numbers have no effect.
func crashAt(t *testing.T, b *testNode, call int, snapshots []*service.Snapshot) (crashed bool) {
	b.pods("10.244.1.11", "10.244.1.12")
	b.converge(snapshots[0])
	at := 0
	b.restartOn(onWrites(b.hns, func(_ string, do func()) {
		if at++; at == call {
			panic(errCrash)
		}
		do()
		if at++; at == call {
			panic(errCrash)
		}
	}))
	func() {
		defer func() { crashed = recover() != nil }()
		_, _ = b.round(snapshots[1])
	}()
	b.restart()
	b.converge(snapshots[2])
	if left := len(b.hns.endpoints); snapshots[2].Len(service.IPv4) == 0 && (len(b.hns.balancers) > 0 || left > 3) { // the pods and a source VIP
		t.Errorf("call %d: left are %v, %v", call, b.balancerTexts(), b.hns.endpoints)
	}
	return crashed
}
