// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winparity

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// TestNightlyLifecycle plays what is rare in the life of Services, by night, on an HNS that
// can change load balancers and on one that cannot.
func TestNightlyLifecycle(t *testing.T) {
	if !kit.Nightly() {
		return
	}
	for _, s := range []setting{{hns.Version{Major: 15, Minor: 5}, "Overlay"}, {hns.Version{Major: 13, Minor: 3}, "L2Bridge"}} {
		t.Run(fmt.Sprint(s.version, " ", s.network), func(t *testing.T) {
			d := newParity(t, s)
			d.run(t, rareLife())
			if warnings := d.ours.hns.Warnings(); len(warnings) > 0 {
				t.Errorf("HNS warns of ours: %q", warnings)
			}
			for _, x := range d.sides() {
				x.stop(t)
			}
		})
	}
}

// away stops HNS for 5 s. Changes meanwhile are programmed later.
func away(_ *testing.T, s *side) {
	s.hns.Stop(hns.ServerUnavailable)
	time.AfterFunc(5*time.Second, func() { s.hns.Start(hns.Everything) })
}

// failOnce makes the next call of each function fail.
func failOnce(functions ...string) func(*testing.T, *side) {
	return func(t *testing.T, s *side) {
		t.Helper()
		for _, f := range functions {
			if err := s.hns.Inject(hns.Fault{Function: f, Code: hns.GeneralFailure, Count: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// movePod deletes a pod's endpoint. An overlay leads the address to the other node.
func movePod(ip string) func(*testing.T, *side) {
	return func(t *testing.T, s *side) {
		t.Helper()
		deletePod(ip)(t, s)
		if !s.overlay() {
			return
		}
		if err := s.hns.AddRoute("net0", hns.Route{Prefix: netip.PrefixFrom(netip.MustParseAddr(ip), 32), Provider: s.other, MAC: otherMAC}); err != nil {
			t.Fatal(err)
		}
	}
}

func rareLife() []step {
	const local, second, remote, third, fourth = "10.244.1.11", "10.244.1.12", "10.244.2.11", "10.244.2.13", "10.244.2.14"
	everywhere := append([]string{"10.96.5.5:80"}, externals...)
	return []step{
		{name: "start", do: func(t *testing.T, s *side) { addPod(local, second)(t, s); s.start(t) }, next: set(web().on(local, second, remote))},
		{name: "another annotation", next: func(s state) state {
			a := *s["web"]
			a.annotations = map[string]string{"example.com/owner": "shop"}
			return s.with(a)
		}},
		{name: "a pod is gone in HNS before its slice says so", do: deletePod(second), next: pods("web", local, remote)},
		{name: "a pod on the network of its node", next: pods("web", "192.0.2.11", remote, local)},
		{name: "an endpoint outside of the cluster", next: pods("web", local, remote, "198.51.100.77/o")},
		{name: "HNS is away, a change meanwhile", do: away, next: pods("web", local, third), alone: true,
			differ: differ(outage, on(8080, local, third), everywhere...)},
		{name: "kill and start", do: func(t *testing.T, s *side) { s.kill(t); s.start(t) }, next: pods("web", local, third, remote)},
		{name: "one failed create of a load balancer", do: failOnce("HcnCreateLoadBalancer", "HcnModifyLoadBalancer"), next: pods("web", local, remote, third)},
		{name: "one failed create of an endpoint", do: failOnce("HcnCreateEndpoint"), next: pods("web", local, third, fourth), alone: true,
			differ: differ(endpointFailed, on(8080, local, third, fourth), everywhere...)},
		{name: "the faults are over", do: func(_ *testing.T, s *side) { s.hns.ClearFaults() }, next: pods("web", local, remote)},
		{name: "a pod's address moves to the other node", do: movePod(local), next: pods("web", local+"/r", remote)},
		{name: "200 Services", next: manyServices(0)},
		{name: "20 changes among them", next: manyServices(20)},
	}
}

// manyServices is 200 Services more, of which so many have another endpoint.
func manyServices(changed int) func(state) state {
	return func(s state) state {
		for i := range 200 {
			a := app{name: fmt.Sprintf("many-%03d", i), clusterIP: fmt.Sprintf("10.96.20.%d", 1+i), target: 8080}
			a.spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports("web")}
			a.pods = []string{fmt.Sprintf("10.244.2.%d", 20+i%20)}
			if i < changed {
				a.pods = []string{fmt.Sprintf("10.244.2.%d", 50+i)}
			}
			s = s.with(a)
		}
		return s
	}
}
