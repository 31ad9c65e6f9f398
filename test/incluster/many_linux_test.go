// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"bytes"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/program"
)

const (
	many    = 1000 // Services at once
	sampled = 20   // Services that are checked endpoint by endpoint
)

// programmingTimes records the time of the kernel's last notification about each Service
// address.
type programmingTimes struct {
	mu   sync.Mutex
	last map[netip.Addr]time.Time
}

// observe searches a notification for the bytes of any address of ServiceCIDRv4.
func (a *programmingTimes) observe(n nftmonitor.Event) {
	if n.Kind != nftmonitor.NewElement {
		return
	}
	cidr := prefix("10.96.0.0/12")
	a.mu.Lock()
	defer a.mu.Unlock()
	for at := 0; ; at++ {
		i := bytes.IndexByte(n.Data[at:], 10)
		if at += i; i < 0 || at+4 > len(n.Data) {
			return
		}
		if addr, _ := netip.AddrFromSlice(n.Data[at : at+4]); cidr.Contains(addr) {
			a.last[addr] = n.At
		}
	}
}

// testMany creates a thousand Services of ten endpoints each, as fast as the API server
// accepts them.
func testMany(t *testing.T, w *fixture) {
	p := w.start(t)
	seen := &programmingTimes{last: map[netip.Addr]time.Time{}}
	listener, err := nftmonitor.Listen(w.Node, seen.observe)
	kit.Must(t, err)
	defer listener.Close()
	all, written := w.writeMany(t)
	whole := w.awaitProgrammed(t)
	now, peak := p.Memory(t)
	t.Logf("the proxy used %s of CPU and has %d MB resident, at most %d MB", p.CPU(t), now>>20, peak>>20)
	if _, err := listener.Counts(); err != nil {
		t.Errorf("some notices were lost: %v", err)
	}
	seen.print(t, all, written)

	for i, s := range all {
		if i%(many/sampled) == 0 {
			whole.Check(t, w.calls(t, s)[:1])
		}
	}
	w.askAll(t, all)
	w.clear(t)
	w.awaitProgrammed(t)
	p.Stop(t)
}

// writeMany writes Service after Service, each followed by its endpoints, and returns
// when the API server had both.
func (w *fixture) writeMany(t *testing.T) ([]*corev1.Service, map[string]time.Time) {
	t.Helper()
	var all []*corev1.Service
	for i := range many {
		all = append(all, newService(fmt.Sprintf("many-%d", i), func(s *corev1.Service) {
			one := corev1.IPFamilyPolicySingleStack
			s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &one, s.Spec.IPFamilies[:1]
			s.Spec.Ports = s.Spec.Ports[:1]
		}))
	}
	begin := time.Now()
	written := map[string]time.Time{}
	var mu sync.Mutex
	var writers sync.WaitGroup
	for part := range slices.Chunk(all, many/8) {
		writers.Go(func() {
			for _, s := range part {
				err := w.api.Set(t.Context(), s)
				if err == nil {
					err = w.api.Set(t.Context(), newSlice(s.Name, service.IPv4, w.webs(10)...))
				}
				kit.Check(t, err == nil, "%v", err)
				mu.Lock()
				written[s.Name] = time.Now()
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	t.Logf("%d Services with ten endpoints each were written in %s", many, time.Since(begin).Round(time.Millisecond))
	return all, written
}

// print prints how long after the API server's response the kernel had the last rule of
// each Service. The proxy may be faster than that response.
func (a *programmingTimes) print(t *testing.T, all []*corev1.Service, written map[string]time.Time) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var took []time.Duration
	for _, s := range all {
		at, ok := a.last[netip.MustParseAddr(s.Spec.ClusterIP)]
		if !ok {
			t.Errorf("no element of %s at %s was heard of", s.Name, s.Spec.ClusterIP)
			continue
		}
		took = append(took, at.Sub(written[s.Name]))
	}
	slices.Sort(took)
	line := "from the API server's answer to the kernel:"
	for _, q := range []int{0, 10, 50, 90, 99, 100} {
		line += fmt.Sprintf("  p%d %s", q, took[q*(len(took)-1)/100].Round(100*time.Microsecond))
	}
	t.Log(line)
}

// askAll sends one request to every Service.
func (w *fixture) askAll(t *testing.T, all []*corev1.Service) {
	t.Helper()
	for _, s := range all {
		to := netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), 80)
		a, err := w.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: to})
		kit.Check(t, err == nil && a.Outcome == netlab.Answered, "%s at %s: %s, %v", s.Name, to, a.Outcome, err)
	}
}

// awaitHealth waits for the HTTP status of /healthz and /livez.
func awaitHealth(t *testing.T, p *program.Proxy, when string, eligible, alive int) {
	t.Helper()
	kit.Until(t, when+": health", func() bool {
		return p.Status(t, program.HealthAddr, "/healthz") == eligible && p.Status(t, program.HealthAddr, "/livez") == alive
	})
}

// testNode creates the own Node late, changes and deletes it. None of that stops traffic.
func testNode(t *testing.T, w *fixture) {
	here, there := newSlice("near", service.IPv4, w.webs(3)...), newSlice("near", service.IPv6, w.webs(3)...)
	for _, s := range []*discoveryv1.EndpointSlice{here, there} {
		for i := range s.Endpoints {
			zone := []string{"east", "west", "west"}[i]
			s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
	}
	near := newService("near", typed(corev1.ServiceTypeNodePort))
	w.remove(t, node())
	w.set(t, here, there, near)
	p := w.launch(t)
	p.AwaitLog(t, `"Programmed"`, "nftables IPv4")
	p.AwaitLog(t, `"Programmed"`, "nftables IPv6")
	calls := w.calls(t, near)
	w.awaitProgrammed(t).Check(t, calls)
	awaitHealth(t, p, "no Node yet", http.StatusServiceUnavailable, http.StatusOK)

	n := node()
	w.set(t, n) // until then no NodePort answers
	p.AwaitLog(t, `"The Node is known"`)
	w.awaitProgrammed(t).Check(t, calls)
	traffic := w.load(t, near)
	for _, s := range []struct {
		name     string
		edit     func()
		eligible int
	}{
		{"the Node comes", func() {}, http.StatusOK},
		{"its zone comes", func() { n.Labels = map[string]string{corev1.LabelTopologyZone: "west"} }, http.StatusOK},
		{"another zone", func() { n.Labels[corev1.LabelTopologyZone] = "east" }, http.StatusOK},
		{"a zone without endpoints", func() { n.Labels[corev1.LabelTopologyZone] = "north" }, http.StatusOK},
		{"it is to be removed", func() {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, http.StatusServiceUnavailable},
		{"it stays after all", func() { n.Spec.Taints = nil }, http.StatusOK},
	} {
		s.edit()
		w.set(t, n)
		w.awaitProgrammed(t).Check(t, calls)
		awaitHealth(t, p, s.name, s.eligible, http.StatusOK)
	}
	w.remove(t, n)
	awaitHealth(t, p, "it is gone", http.StatusServiceUnavailable, http.StatusOK)
	w.awaitProgrammed(t).Check(t, calls)
	w.set(t, node())
	awaitHealth(t, p, "it is back", http.StatusOK, http.StatusOK)
	traffic.stop(t)
	p.Stop(t)
}

// testNodeAddress changes the address at which NodePorts answer.
func testNodeAddress(t *testing.T, w *fixture) {
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(3)...), web)...)
	p := w.start(t)
	second := netip.MustParseAddr("192.0.2.77")
	kit.Must(t, w.Node.AddAddr(second))
	calls := w.calls(t, web)
	at, err := w.api.Client.CoreV1().Services(space).Get(t.Context(), web.Name, metav1.GetOptions{})
	kit.Must(t, err)
	moved := w.dial(calls[len(calls)-1], second.String(), at.Spec.Ports[0].NodePort, corev1.ProtocolTCP)
	for i := range moved {
		moved[i].ToNode, moved[i].Name = true, "NodePort at the new address"
	}
	w.awaitProgrammed(t).Check(t, moved) // no host has the address yet
	n := node()
	n.Status.Addresses[0].Address = second.String()
	w.set(t, n)
	w.awaitProgrammed(t).Check(t, append(calls, moved...))
	kit.Must(t, w.Node.DelAddr(second))
	p.Stop(t)
}

// testNodeCIDR identifies pods by the Node's podCIDRs, which cannot change. A Node with
// other podCIDRs is another Node of the same name.
func testNodeCIDR(t *testing.T, w *fixture) {
	means := w.trackOptions
	defer func() { w.trackOptions = means }()
	w.trackOptions.Pods, w.trackOptions.PodsFromNode = service.LocalPods{}, true
	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(3)...), web)...)
	p := w.run(t, "--kubeconfig="+w.login, "--detect-local-mode=NodeCIDR")
	calls := w.calls(t, web)
	w.awaitProgrammed(t).Check(t, calls)
	for _, cidrs := range [][]string{{"10.244.9.0/24", "fd00:10:244:9::/64"}, {"10.244.1.0/24", "fd00:10:244:1::/64"}} {
		n := node()
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
		w.remove(t, n)
		w.set(t, n)
		w.awaitProgrammed(t).Check(t, calls)
	}
	p.Stop(t)
}

// testNodeName spells the name as a user may.
func testNodeName(t *testing.T, w *fixture) {
	p := w.start(t, "--hostname-override= NODE-A ")
	awaitHealth(t, p, "the Node's name has small letters", http.StatusOK, http.StatusOK)
	var about struct{ Node string }
	if p.JSON(t, "/services", &about); about.Node != netlab.NodeName {
		t.Errorf("node = %q, want %q", about.Node, netlab.NodeName)
	}
	p.Stop(t)
}
