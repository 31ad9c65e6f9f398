// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winparity

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// step is a change in the life of some Services.
type step struct {
	name string
	// next returns the Services from now on; nil changes none.
	next func(state) state
	// do acts on a side, before the objects change.
	do func(*testing.T, *side)
	// differ are the known differences after the step.
	differ differences
	// recovers means that HNS lost objects, which ours creates again. kube-proxy.exe may
	// not, so it is not compared.
	recovers bool
	// alone means that ours alone is compared, with what differ says. kube-proxy.exe may
	// stay broken until its next start.
	alone bool
}

// run runs the steps on both sides, and compares after each one.
func (d *parity) run(t *testing.T, life []step) {
	t.Helper()
	for _, s := range life {
		d.before = d.ours.programmed()
		before := [2]hns.Calls{d.upstream.hns.Calls(), d.ours.hns.Calls()}
		for _, x := range d.sides() {
			if s.do != nil {
				s.do(t, x)
			}
		}
		next := d.now.with()
		if s.next != nil {
			next = s.next(d.now)
		}
		d.apply(t, next)
		if s.recovers {
			d.awaitRecovered(t, s.name)
			continue
		}
		if s.alone {
			d.awaitOurs(t, s)
			continue
		}
		d.awaitMarker(t)
		rest := d.compare(t, s.differ)
		kit.Check(t, rest == "", "%s:\n%s", s.name, rest)
		known, ours := d.upstream.hns.Calls().Sub(before[0]), d.ours.hns.Calls().Sub(before[1])
		t.Logf("%-42s calls %5d to %4d, writes %3d to %3d", s.name, total(known), total(ours), known.Writes(""), ours.Writes(""))
	}
}

func total(c hns.Calls) int {
	n := 0
	for _, times := range c {
		n += times
	}
	return n
}

// addPod creates a pod's endpoint, as the network plugin does.
func addPod(ips ...string) func(*testing.T, *side) {
	return func(t *testing.T, s *side) {
		t.Helper()
		for _, ip := range ips {
			_, err := s.hns.AddPod("net0", "pod-"+ip, netip.MustParseAddr(ip))
			kit.Must(t, err)
		}
	}
}

func deletePod(ip string) func(*testing.T, *side) {
	return func(t *testing.T, s *side) {
		t.Helper()
		for _, e := range s.hns.Objects(hns.Endpoint) {
			if e.Name() == "pod-"+ip {
				kit.Must(t, s.hns.Delete(hns.Endpoint, e.ID()))
			}
		}
	}
}

func deleteLoadBalancer(vip string) func(*testing.T, *side) {
	return func(t *testing.T, s *side) {
		t.Helper()
		for _, lb := range s.hns.Objects(hns.LoadBalancer) {
			if !slices.Contains(lb.VIPs(), vip) {
				continue
			}
			kit.Must(t, s.hns.Delete(hns.LoadBalancer, lb.ID()))
		}
	}
}

// awaitRecovered waits until ours serves again what it served before, and the marker.
func (d *parity) awaitRecovered(t *testing.T, name string) {
	t.Helper()
	var rest string
	for deadline := time.Now().Add(kit.Limit); ; time.Sleep(50 * time.Millisecond) {
		have := d.ours.programmed()
		maps.DeleteFunc(have, func(f, _ string) bool { return strings.HasPrefix(f, markerVIP) })
		maps.DeleteFunc(d.before, func(f, _ string) bool { return strings.HasPrefix(f, markerVIP) })
		if rest = cmp.Diff(d.before, have); rest == "" {
			return
		}
		kit.Need(t, !time.Now().After(deadline),
			"%s: ours serves something else than before (-before +now):\n%s", name, rest)
	}
}

// awaitOurs waits until ours serves what s says.
func (d *parity) awaitOurs(t *testing.T, s step) {
	t.Helper()
	for _, x := range s.differ {
		kit.Until(t, fmt.Sprintf("%s: ours has %s at %s", s.name, x.ours, x.frontend), func() bool { return d.ours.programmed()["6 "+x.frontend] == x.ours })
	}
}

// set adds a, or replaces the Service of its name.
func set(a app) func(state) state { return func(s state) state { return s.with(a) } }

// pods gives a Service other endpoints.
func pods(name string, list ...string) func(state) state {
	return func(s state) state { return s.with(s[name].on(list...)) }
}

// spec changes the specification of the Service web.
func spec(change func(*corev1.ServiceSpec)) func(state) state {
	return func(s state) state { return s.with(s["web"].withSpec(change)) }
}

func external(p corev1.ServiceExternalTrafficPolicy) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = p }
}

func internal(p corev1.ServiceInternalTrafficPolicy) func(*corev1.ServiceSpec) {
	return func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &p }
}

// lifecycle is the life of the Services.
func lifecycle() []step {
	const remote, other, third = "10.244.2.11", "10.244.2.12", "10.244.2.13"
	return slices.Concat([]step{
		{name: "start", do: func(t *testing.T, s *side) { addPod("10.244.1.11", "10.244.1.12")(t, s); s.start(t) },
			next: set(web().on("10.244.1.11", remote, other))},
		{name: "a remote endpoint leaves", next: pods("web", "10.244.1.11", remote)},
		{name: "a remote endpoint comes", next: pods("web", "10.244.1.11", remote, third)},
		{name: "session affinity", next: spec(func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })},
		{name: "no session affinity", next: spec(func(s *corev1.ServiceSpec) {
			s.SessionAffinity, s.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		})},
		{name: "external policy Local", next: spec(external(corev1.ServiceExternalTrafficPolicyLocal))},
		{name: "policy Local, the local pod is not ready", next: pods("web", "10.244.1.11/n", remote, third), differ: slices.Concat(
			differ(notReady, on(8080, remote, third), "10.96.5.5:80"),
			differ(lastEndpoint, "", externals...),
		)},
		{name: "policy Local, the local pod is ready", next: pods("web", "10.244.1.11", remote, third)},
		{name: "policy Local, the local pod is terminating", next: pods("web", "10.244.1.11/t", remote, third), differ: differ(notReady, on(8080, remote, third), "10.96.5.5:80")},
		{name: "external policy Cluster", next: func(s state) state {
			return s.with(s["web"].on("10.244.1.11", remote, third).withSpec(external(corev1.ServiceExternalTrafficPolicyCluster)))
		}},
		{name: "internal policy Local", next: spec(internal(corev1.ServiceInternalTrafficPolicyLocal))},
		{name: "internal policy Cluster", next: spec(internal(corev1.ServiceInternalTrafficPolicyCluster))},
	}, rollout(remote, other, third), moreSteps(remote, third))
}

// rollout adds and removes pods.
func rollout(remote, other, third string) []step {
	return []step{
		{name: "a remote pod turns not ready", next: pods("web", "10.244.1.11", remote+"/n", third)},
		{name: "a remote pod is ready again", next: pods("web", "10.244.1.11", remote, third)},
		{name: "a remote pod is terminating", next: pods("web", "10.244.1.11", remote+"/t", other, third)},
		{name: "the remote pod has ended", next: pods("web", "10.244.1.11", other, third)},
		{name: "a local pod is replaced", next: pods("web", "10.244.1.11/t", "10.244.1.12", other, third)},
		{name: "the network plugin deletes the old pod", do: deletePod("10.244.1.11"), next: pods("web", "10.244.1.12", other, third)},
		{name: "all are terminating and serving", next: pods("web", "10.244.1.12/t", other+"/t"),
			differ: differ(deleted, on(8080, "10.244.1.12", other), "198.51.100.5:80", "node:30080")},
		{name: "all are terminating and do not serve", next: pods("web", "10.244.1.12/d", other+"/d"), differ: slices.Concat(
			differ(lastEndpoint, "", "10.96.5.5:80", "203.0.113.5:80"),
			differ(deleted, "", "198.51.100.5:80", "node:30080"),
		)},
		{name: "no endpoints", next: pods("web")},
		{name: "endpoints again", next: pods("web", "10.244.1.12", other, third)},
	}
}

// moreSteps adds other Services, ports and restarts.
func moreSteps(remote, third string) []step {
	return []step{
		{name: "a second Service with the same endpoints", next: set(api().on("10.244.1.12", remote, third))},
		{name: "the first one loses a shared endpoint", next: pods("web", "10.244.1.12", remote)},
		{name: "another port", next: spec(func(s *corev1.ServiceSpec) { s.Ports[0].Port = 81 })},
		{name: "another target port", next: func(s state) state {
			a := *s["web"]
			a.target = 9090
			return s.with(a)
		}, differ: differ(targetPort, on(9090, "10.244.1.12", remote), "10.96.5.5:81", "198.51.100.5:81", "203.0.113.5:81", "node:30080")},
		{name: "another address of the load balancer", next: func(s state) state {
			a := *s["web"]
			a.ingress = "203.0.113.6"
			return s.with(a)
		}},
		{name: "source ranges", next: spec(func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} }),
			differ: differ(sourceRanges, "", "203.0.113.6:81")},
		{name: "no source ranges", next: spec(func(s *corev1.ServiceSpec) { s.LoadBalancerSourceRanges = nil })},
		{name: "no external IP", next: spec(func(s *corev1.ServiceSpec) { s.ExternalIPs = nil })},
		{name: "TCP and UDP on one port", next: set(dns().on("10.244.1.12", remote))},
		{name: "HNS restarts and forgets load balancers", recovers: true, do: func(_ *testing.T, s *side) { s.hns.Restart(hns.Pods) }},
		{name: "a load balancer is deleted by hand", recovers: true, do: deleteLoadBalancer("10.96.5.6")},
		{name: "kill and start", do: func(t *testing.T, s *side) { s.kill(t); s.start(t) }, next: pods("api", "10.244.1.12", remote)},
		{name: "stop and start", do: func(t *testing.T, s *side) { s.stop(t); s.start(t) }},
		{name: "Services deleted", next: func(s state) state { return s.without("web", "api", "dns") }},
	}
}

// budget bounds the calls of ours to HNS in a life: today's figures, with some room for
// steps that took effect in two rounds.
type budget struct{ writes, gaps int }

func (b budget) holds(have budget) bool { return have.writes <= b.writes && have.gaps <= b.gaps }

// mostLives bounds the number of runs of a life. A busy machine splits many steps into
// two rounds, each of which writes. The least figures of several runs are what the proxy
// needs.
const mostLives = 3

// TestLifecycle runs one life on an HNS that can change load balancers.
func TestLifecycle(t *testing.T) {
	playLives(t, setting{hns.Version{Major: 15, Minor: 5}, "Overlay"}, budget{writes: 266, gaps: 41})
}

// TestLifecycleWithoutModify runs it on an HNS that cannot, and without an overlay.
func TestLifecycleWithoutModify(t *testing.T) {
	playLives(t, setting{hns.Version{Major: 13, Minor: 3}, "L2Bridge"}, budget{writes: 406, gaps: 81})
}

// playLives requires that every life succeeds, and that one of them stays within the
// budget.
func playLives(t *testing.T, s setting, most budget) {
	t.Helper()
	for n := 1; n <= mostLives; n++ {
		var have budget
		well := t.Run(fmt.Sprintf("life %d", n), func(t *testing.T) {
			d := newParity(t, s)
			d.run(t, lifecycle())
			have = d.end(t)
		})
		if !well || most.holds(have) {
			return
		}
		t.Logf("ours wrote %d times and made %d load balancers again, more than %+v", have.writes, have.gaps, most)
	}
	t.Errorf("no life of %d was within %+v", mostLives, most)
}

// end stops both sides and returns the calls of ours to HNS.
func (d *parity) end(t *testing.T) budget {
	t.Helper()
	known, ours := d.upstream.hns.Calls(), d.ours.hns.Calls()
	have := budget{ours.Writes(""), gaps(d.ours.hns.Journal())}
	t.Logf("all: calls %d to %d, writes %d to %d, made again %d to %d", total(known), total(ours),
		known.Writes(""), have.writes, gaps(d.upstream.hns.Journal()), have.gaps)
	warnings := d.ours.hns.Warnings()
	kit.Check(t, len(warnings) == 0, "HNS warns of ours: %q", warnings)
	for _, s := range d.sides() {
		s.stop(t)
	}
	return have
}

// gaps counts frontends that were deleted and then created again: in between they were
// not served.
func gaps(journal []hns.Entry) int {
	of, gone, n := map[string][]string{}, map[string]bool{}, 0
	for _, e := range journal {
		if e.Code != hns.OK || e.Kind != hns.LoadBalancer {
			continue
		}
		if e.Document != nil { // created or changed
			of[e.ID] = frontends(e.Document)
		}
		for _, f := range of[e.ID] {
			if e.Document != nil && gone[f] {
				n++
			}
			gone[f] = e.Document == nil
		}
	}
	return n
}

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
			warnings := d.ours.hns.Warnings()
			kit.Check(t, len(warnings) == 0, "HNS warns of ours: %q", warnings)
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
			kit.Must(t, s.hns.Inject(hns.Fault{Function: f, Code: hns.GeneralFailure, Count: 1}))
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
		kit.Must(t, s.hns.AddRoute("net0", hns.Route{Prefix: netip.PrefixFrom(netip.MustParseAddr(ip), 32), Provider: s.other, MAC: otherMAC}))
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
