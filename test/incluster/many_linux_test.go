// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
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
	if err != nil {
		t.Fatal(err)
	}
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
				if err != nil {
					t.Error(err)
				}
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
		if err != nil || a.Outcome != netlab.Answered {
			t.Errorf("%s at %s: %s, %v", s.Name, to, a.Outcome, err)
		}
	}
}
