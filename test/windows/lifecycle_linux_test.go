// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
	"kubeproxy/test/wine"
)

func shop() (web, cart, dns app) {
	return app{"web", 10, []string{"10.244.1.11", "10.244.2.11", "10.244.2.12"}},
		app{"cart", 20, []string{"10.244.2.12", "10.244.2.13"}},
		app{"dns", 30, []string{"10.244.1.12"}}
}

// TestLifecycle follows a node from its first start to its cleanup, in every version of
// HNS.
func TestLifecycle(t *testing.T) {
	for _, v := range hns.Versions() {
		t.Run(v.String(), func(t *testing.T) {
			n := newNode(t, hns.Options{Version: v})
			n.installForeign(t)
			web, cart, dns := shop()
			n.save(t, web, cart)
			n.start(t)
			n.awaitProgrammed(t, web, cart)
			n.checkIdle(t, "after the start")

			n.churn(t, web, cart, dns)
			n.restarts(t, web, dns)
			n.clean(t)
		})
	}
}

// churn ends with web and dns.
func (n *node) churn(t *testing.T, web, cart, dns app) {
	t.Helper()
	n.save(t, dns)
	n.awaitProgrammed(t, web, cart, dns)

	before := n.hns.Calls()
	less := web.on("10.244.1.11", "10.244.2.11")
	n.save(t, less)
	n.awaitProgrammed(t, less, cart, dns)
	most := 4
	if n.hns.Version().Major < 10 {
		most = 6 // a deletion may fail the first time
	}
	if calls := n.hns.Calls().Sub(before); calls.Writes("") > most {
		t.Errorf("one endpoint left, on two addresses: %s, want at most %d calls that change something", calls, most)
	}
	n.remove(t, cart)
	n.awaitProgrammed(t, less, dns)
	n.save(t, web)
	n.awaitProgrammed(t, web, dns)
	n.checkIdle(t, "after the churn")
}

// restarts ends the proxy in two ways; the next process recognizes its objects.
func (n *node) restarts(t *testing.T, apps ...app) {
	t.Helper()
	n.stop(t)
	before := n.hns.Calls()
	n.awaitProgrammed(t, apps...) // a stop changes nothing
	if code, text := n.run(t, "diff"); code != 0 || !has(text, "Nothing differs", "those with which the proxy last ran here: hostnameOverride") {
		t.Errorf("diff without a proxy: exit code %d\n%s", code, text)
	}
	n.start(t)
	kit.Until(t, "a look at HNS", func() bool { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) > 0 })
	n.checkIdle(t, "after a restart")
	calls := n.hns.Calls().Sub(before)
	kit.Check(t, calls.Writes("") == 0, "a restart: %s, want no call that changes something", calls)
	n.kill(t)
	before = n.hns.Calls()
	n.start(t)
	kit.Until(t, "a look at HNS", func() bool { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) > 0 })
	n.checkIdle(t, "after a crash")
	if calls := n.hns.Calls().Sub(before); calls.Writes("") != 0 {
		t.Errorf("a crash: %s, want no call that changes something", calls)
	}
}

// clean removes all objects of the proxy and nothing else.
func (n *node) clean(t *testing.T) {
	t.Helper()
	n.stop(t)
	program, err := exe()
	kit.Must(t, err)
	code, output, err := n.wine.Run(t.Context(), wine.Program{Path: program, Args: []string{"--cleanup", "--hostname-override=node-a"}})
	kit.Check(t, err == nil && code == 0, "--cleanup: exit code %d, %v\n%s", code, err, output)
	n.awaitProgrammed(t)
	for _, kind := range []hns.Kind{hns.LoadBalancer, hns.Endpoint} {
		made := n.hns.CreatedCount(kind)
		kit.Check(t, made == 0, "%d left of kind %s after --cleanup:\n%s", made, kind, output)
	}
	left, err := filepath.Glob(filepath.Join(n.wine.Prefix(), "drive_c", "ProgramData", "kube-proxy", "*.json"))
	kit.Check(t, err == nil && len(left) == 0, "--cleanup leaves %s, %v", left, err)
	have := len(n.hns.Objects(hns.Endpoint))
	kit.Check(t, have == len(locals)+1, "%d endpoints of others, want %d", have, len(locals)+1)
}

// TestHNSFailures causes several failures. After each one, the previous state must be
// restored.
func TestHNSFailures(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 15, Minor: 4}, Case: hns.UpperCase})
	n.installForeign(t)
	web, cart, dns := shop()
	n.save(t, web, cart, dns)
	kit.Must(t, n.hns.Inject(hns.Fault{Function: "HcnCreate*", Code: hns.ServerUnavailable, Count: 2, When: hns.Afterwards}))
	n.start(t)
	n.awaitProgrammed(t, web, cart, dns)

	for name, befall := range map[string]func(*testing.T){
		"another program deletes load balancers": func(t *testing.T) { n.deleteOurs(t, hns.LoadBalancer) },
		"another program deletes endpoints":      func(t *testing.T) { n.deleteOurs(t, hns.Endpoint) },
		"HNS restarts":                           func(*testing.T) { n.hns.Restart(hns.Everything) },
		"connections break":                      func(*testing.T) { n.hns.DropConnections() },
		"HNS forgets what is not a pod's": func(*testing.T) {
			n.hns.Restart(hns.Pods)
			clear(n.foreign) // Reset of HNS removes them, too
		},
		"HNS is away for a while":        func(t *testing.T) { n.changeWithoutHNS(t, cart, web, dns) },
		"a pod is made anew":             func(t *testing.T) { n.remakePod(t, "10.244.1.12") },
		"a pod is not on the switch yet": func(t *testing.T) { n.addRefusedPod(t, web, cart, dns) },
		"a crash in the middle of a change": func(t *testing.T) {
			n.hns.Delay("HcnCreate*", 300*time.Millisecond)
			before := n.hns.Calls()
			more := app{"more", 40, []string{"10.244.2.21", "10.244.2.22", "10.244.2.23"}}
			n.save(t, more)
			kit.Until(t, "the change begins", func() bool { return n.hns.Calls().Sub(before).Writes("") > 1 })
			n.kill(t)
			n.hns.ClearFaults()
			n.remove(t, more)
			n.start(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			befall(t)
			n.awaitProgrammed(t, web, cart, dns)
			n.checkIdle(t, name)
		})
	}
	n.stop(t)
}

// remakePod deletes a pod's endpoint and makes another one.
func (n *node) remakePod(t *testing.T, ip string) {
	t.Helper()
	for _, e := range n.hns.Objects(hns.Endpoint) {
		if e.Name() != "pod-"+ip {
			continue
		}
		kit.Must(t, n.hns.Delete(hns.Endpoint, e.ID()))
	}
	n.installPod(t, ip)
}

// changeWithoutHNS changes cart while HNS does not run.
func (n *node) changeWithoutHNS(t *testing.T, cart app, others ...app) {
	t.Helper()
	less := cart.on(cart.pods[1:]...)
	n.hns.Stop(hns.ServerUnavailable)
	n.save(t, less)
	before := n.hns.Calls()
	kit.Until(t, "the proxy asks in vain", func() bool { return n.hns.Calls().Sub(before).Lists("") > 1 })
	n.hns.Start(hns.Everything)
	n.awaitProgrammed(t, append(others, less)...)
	n.save(t, cart)
}

// addRefusedPod gives web a pod that HNS refuses at first: its present pod serves on.
func (n *node) addRefusedPod(t *testing.T, web app, others ...app) {
	t.Helper()
	const late = "10.244.1.13"
	id := n.installPod(t, late)
	kit.Must(t, n.hns.Detach(id))
	n.save(t, web.on(locals[0], late))
	n.awaitProgrammed(t, append(others, web.on(locals[0]))...)
	kit.Must(t, n.hns.Attach(id))
	n.awaitProgrammed(t, append(others, web.on(locals[0], late))...)
	n.save(t, web)
}

// deleteOurs deletes the proxy's objects of a kind, all remote endpoints or all load
// balancers.
func (n *node) deleteOurs(t *testing.T, kind hns.Kind) {
	t.Helper()
	for _, o := range n.hns.Objects(kind) {
		ours := kind == hns.LoadBalancer && o.VIPs() == nil || kind == hns.Endpoint && o.Remote()
		for _, vip := range o.VIPs() {
			ours = ours || strings.HasPrefix(vip, "10.96.")
		}
		if !ours || kind == hns.Endpoint && len(o.IPs()) > 0 && o.IPs()[0].String() == "10.244.2.99" {
			continue
		}
		kit.Must(t, n.hns.Delete(kind, o.ID()))
	}
}

// TestChangesPassResyncs has an HNS that takes 5 ms for each call, 150 load balancers,
// and changes while all of them are listed: none waits for the listing.
func TestChangesPassResyncs(t *testing.T) {
	for _, v := range []hns.Version{{Major: 13, Minor: 3}, {Major: 15, Minor: 5}} {
		t.Run("HNS "+v.String(), func(t *testing.T) { changesPassResyncs(t, v) })
	}
}

func changesPassResyncs(t *testing.T, v hns.Version) {
	const services, each, changes, longest = 150, 5 * time.Millisecond, 20, 200 * time.Millisecond
	n := newNode(t, hns.Options{Version: v})
	network := bridge("cbr0", "L2Bridge")
	n.install(t, networkCase{networks: []hns.NetworkConfig{network}})
	all, _ := manyApps(services)
	for i := range all {
		all[i].pods = []string{remoteIP(i % 20), remoteIP(20 + i%20)}
	}
	n.write(t, "all.yaml", manyAppsManifest(t, all[1:]))
	n.write(t, "first.yaml", manyAppsManifest(t, all[:1]))
	n.start(t, "--iptables-sync-period=25s")
	n.awaitLoadBalancers(t, services)
	n.hns.Delay("Hcn*", each)
	alone := n.hurry(t, all[0], changes/4)
	// Calls take turns, so those of a change take twice as long beside a listing.
	most := 2*slices.Max(alone) + longest
	for try := range 3 { // on a machine that has much else to do
		lists := n.hns.Calls().Lists(hns.Endpoint)
		kit.Until(t, "another listing", func() bool { return n.hns.Calls().Lists(hns.Endpoint) > lists })
		whileListed := n.hurry(t, all[0], changes)
		t.Logf("try %d: a change takes %v, and while HNS is listed %v", try, alone, whileListed)
		if slices.Max(whileListed) <= most {
			return
		}
	}
	t.Errorf("a change took longer than %s while HNS was listed, each time", most)
}

// hurry has a lead to other pods, so many times, and returns how long each took.
func (n *node) hurry(t *testing.T, a app, times int) (took []time.Duration) {
	t.Helper()
	for i := range times {
		pods := a.pods[i%2 : i%2+1]
		begin := time.Now()
		n.write(t, "first.yaml", manyAppsManifest(t, []app{a.on(pods...)}))
		for !strings.HasSuffix(n.programmed()["6 10.96.0.1:80"], " on "+pods[0]) {
			if time.Since(begin) > kit.Limit {
				t.Fatalf("change %d is not programmed: %v", i, n.programmed()["6 10.96.0.1:80"])
			}
			time.Sleep(5 * time.Millisecond)
		}
		took = append(took, time.Since(begin).Round(time.Millisecond))
	}
	return took
}

// soak is a node with continuous changes and faults.
type soak struct {
	*node
	random *rand.Rand
	apps   map[int]app
}

// TestSoak makes random changes and faults for a while, and then requires the desired
// state without leftovers. To repeat a run, use the seed in its log.
func TestSoak(t *testing.T) {
	for i, v := range []hns.Version{{Major: 13, Minor: 3}, {Major: 15, Minor: 5}} {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano()) + uint64(i)
			t.Logf("seed %d", seed)
			s := &soak{newNode(t, hns.Options{Version: v, Seed: seed}), rand.New(rand.NewPCG(seed, 1)), map[int]app{}}
			s.installForeign(t)
			s.start(t)
			events := 0
			for end := time.Now().Add(*soakFor / 2); time.Now().Before(end); events++ {
				s.step(t)
				time.Sleep(time.Duration(s.random.IntN(150)) * time.Millisecond)
			}
			s.hns.ClearFaults()
			s.hns.Start(hns.Everything)
			var apps []app
			for _, a := range s.apps {
				apps = append(apps, a)
			}
			s.awaitProgrammed(t, apps...)
			s.awaitIdle(t)
			s.awaitProgrammed(t, apps...)
			s.stop(t)
			t.Logf("%d events, %s", events, s.hns.Calls())
		})
	}
}

// step makes one change or fault. Changes of Services are the most frequent.
func (s *soak) step(t *testing.T) {
	t.Helper()
	switch n := s.random.IntN(20); n {
	case 0:
		s.process.Kill()
		s.start(t)
	case 1:
		s.hns.Restart(hns.Everything)
	case 2:
		s.hns.DropConnections()
	case 3:
		s.hns.Stop(hns.ServerUnavailable)
	case 4, 5:
		s.hns.Start(hns.Everything)
	case 6, 7, 8:
		s.fault(t)
	case 9:
		s.hns.ClearFaults()
	case 10:
		s.hns.Delay("Hcn*", time.Duration(s.random.IntN(5))*time.Millisecond)
	case 11:
		s.deleteOne(t)
	default:
		s.change(t)
	}
}

func (s *soak) fault(t *testing.T) {
	t.Helper()
	f := hns.Fault{
		Function: pick(s, "HcnCreate*", "HcnDelete*", "HcnEnumerate*", "HcnModify*", "HcnQuery*", "Hcn*"),
		Code:     pick(s, hns.ServerUnavailable, hns.UnknownInterface, hns.PortNotFound, hns.GeneralFailure, hns.PortExists),
		When:     pick(s, hns.Instead, hns.Afterwards),
		Count:    1 + s.random.IntN(4),
		Share:    0.5,
	}
	kit.Must(t, s.hns.Inject(f))
}

func pick[T any](s *soak, choices ...T) T { return choices[s.random.IntN(len(choices))] }

// deleteOne deletes a load balancer of ours, as another program would.
func (s *soak) deleteOne(t *testing.T) {
	t.Helper()
	lbs := slices.DeleteFunc(s.hns.Objects(hns.LoadBalancer), func(lb hns.Document) bool {
		return slices.Contains(lb.VIPs(), "172.30.0.1")
	})
	if len(lbs) == 0 {
		return
	}
	// The proxy may have deleted it.
	_ = s.hns.Delete(hns.LoadBalancer, pick(s, lbs...).ID())
}

// change adds a Service, removes it or gives it other endpoints.
func (s *soak) change(t *testing.T) {
	t.Helper()
	number := 1 + s.random.IntN(12)
	a, there := s.apps[number]
	if there && s.random.IntN(4) == 0 {
		s.remove(t, a)
		delete(s.apps, number)
		return
	}
	pods := slices.Clone(locals)
	for i := range 8 {
		pods = append(pods, fmt.Sprintf("10.244.2.%d", 11+i))
	}
	s.random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	a = app{fmt.Sprintf("app-%d", number), number, pods[:1+s.random.IntN(4)]}
	s.apps[number] = a
	s.save(t, a)
}

// TestTakesOverFromKubeProxy has load balancers as kube-proxy creates them for a
// ClusterIP and a NodePort, with port flags 0 and 18. The proxy keeps them unchanged. See
// pkg/proxy/winkernel in kubernetes/kubernetes.
func TestTakesOverFromKubeProxy(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 13, Minor: 3}})
	web := app{"web", 10, []string{"10.244.1.11", "10.244.2.11"}}
	vip := netip.MustParseAddr("10.244.1.77")
	if _, err := n.hns.AddPod("vxlan0", "sourceVip", vip); err != nil {
		t.Fatal(err)
	}
	remote, err := n.hns.AddRemote("vxlan0", netip.MustParseAddr("10.244.2.11"), n.Other.IPv4, "02-11-0a-f4-02-0b")
	kit.Must(t, err)
	to := []any{remote}
	for _, e := range n.hns.Objects(hns.Endpoint) {
		if !e.Remote() && e.IPs()[0].String() == web.pods[0] {
			to = append(to, e.ID())
		}
	}
	made := map[string]bool{}
	for _, d := range []hns.Document{
		{"FrontendVIPs": []any{web.clusterIP()}, "PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": target, "ExternalPort": 80}}},
		{"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": target, "ExternalPort": int(web.nodePort()), "Flags": 18}}},
	} {
		d["SourceVIP"], d["HostComputeEndpoints"] = vip.String(), to
		id, err := n.hns.AddLoadBalancer(d)
		kit.Must(t, err)
		made[id] = true
	}
	n.save(t, web)
	n.start(t, "--source-vip="+vip.String())
	n.await(t, "two resyncs", func() bool { return n.hns.Calls().Lists(hns.LoadBalancer) >= 3 })
	n.awaitProgrammed(t, web)
	calls := n.hns.Calls()
	kit.Check(t, calls.Writes(hns.LoadBalancer) == 0, "%s, want no load balancer changed", calls)
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if !made[lb.ID()] {
			t.Errorf("load balancer %s is new, want %v kept", lb.ID(), slices.Collect(maps.Keys(made)))
		}
	}
	n.stop(t)
}

// remote returns the identity of the remote endpoint with an address, "" without one.
func (n *node) remote(ip string) string {
	for _, e := range n.hns.Objects(hns.Endpoint) {
		if e.Remote() && len(e.IPs()) == 1 && e.IPs()[0].String() == ip {
			return e.ID()
		}
	}
	return ""
}

// TestListedEndpointsStay makes a pod of another node unready and ready, terminates and
// removes it. Its endpoint in HNS stays the same until the pod is removed.
func TestListedEndpointsStay(t *testing.T) {
	for _, v := range []hns.Version{{Major: 13, Minor: 3}, {Major: 15, Minor: 5}} {
		t.Run(v.String(), func(t *testing.T) {
			n := newNode(t, hns.Options{Version: v})
			web := app{"web", 10, []string{"10.244.1.11", "10.244.2.11"}}
			with := func(c discoveryv1.EndpointConditions) {
				s := web.slice()
				s.Endpoints[1].Conditions = c
				n.write(t, web.name+".yaml", program.Manifest[any](t, web.service(), s))
			}
			yes, no := true, false
			n.save(t, web)
			n.start(t)
			n.awaitProgrammed(t, web)
			id := n.remote("10.244.2.11")
			n.idle = []string{"10.244.2.11"} // exists without a load balancer
			for name, c := range map[string]discoveryv1.EndpointConditions{
				"not ready":   {Ready: &no, Serving: &no},
				"terminating": {Ready: &no, Serving: &yes, Terminating: &yes},
			} {
				with(c)
				n.awaitProgrammed(t, web.on("10.244.1.11"))
				n.checkIdle(t, name)
				got := n.remote("10.244.2.11")
				kit.Check(t, got == id, "%s: endpoint %q, want %q", name, got, id)
				n.save(t, web)
				n.awaitProgrammed(t, web)
				if got := n.remote("10.244.2.11"); got != id {
					t.Errorf("after %s: endpoint %q, want %q", name, got, id)
				}
			}
			n.idle = nil
			n.save(t, web.on("10.244.1.11"))
			n.awaitProgrammed(t, web.on("10.244.1.11")) // without leftovers
			n.stop(t)
		})
	}
}
