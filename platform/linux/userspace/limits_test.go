// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// claimFor returns a claim of a Service in namespace shop for a client with this number.
func claimFor(s string, client int) claim {
	return claim{files: 2, service: serviceName{"shop", s}, client: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(client >> 8), byte(client)}), 32)}
}

// fill acquires claims of next until one is refused, and returns the number of files.
func fill(l *Limits, next func(n int) claim) (files int) {
	for n := 0; ; n++ {
		c := next(n)
		if !l.acquire(c) {
			return files
		}
		files += c.files
	}
}

// TestShares checks that no Service, client or namespace gets more than its share,
// whichever others claim as much as possible.
func TestShares(t *testing.T) {
	const files = 4096
	for _, tt := range []struct {
		name       string
		next       []func(int) claim // the claims, one series after the other
		each, most float64           // fractions of all files
	}{
		{"one client", []func(int) claim{func(int) claim { return claimFor("a", 1) }}, 1. / 4, 1. / 4},
		{"one client of many Services", []func(int) claim{func(n int) claim { return claimFor(fmt.Sprint(n), 1) }}, 1. / 4, 1. / 4},
		{"one Service", []func(int) claim{func(n int) claim { return claimFor("a", n) }}, 1. / 2, 1. / 2},
		{"two Services", []func(int) claim{
			func(n int) claim { return claimFor("a", n) }, func(n int) claim { return claimFor("b", n) },
		}, 1. / 2, 2. / 3},
	} {
		l := NewLimits(files)
		var all int
		for _, next := range tt.next {
			got := fill(l, next)
			if all += got; float64(got) > tt.each*float64(l.max) {
				t.Errorf("%s: has %d of %d", tt.name, got, l.max)
			}
		}
		share := float64(all) / float64(l.max)
		kit.Check(t, share <= tt.most && share >= tt.most-0.01, "%s: %d of %d files are in use, want %.2f", tt.name, all, l.max, tt.most)
		for i := range 10 { // others
			c := claimFor("neighbour", 5000+i)
			c.service.namespace = "bank"
			kit.Check(t, l.acquire(c), "%s: neighbour %d is refused", tt.name, i)
		}
	}
}

// TestNetworksOfClients has one host of IPv6 come from ever new addresses of its network,
// which is one client. Pods that are known have an address each.
func TestNetworksOfClients(t *testing.T) {
	l := NewLimits(4096)
	to := target{name: service.PortName{Namespace: "shop", Name: "web"}}
	host := func(prefix string) func(int) claim {
		return func(n int) claim {
			addr := netip.MustParseAddr(fmt.Sprint(prefix, strconv.FormatInt(int64(n)+1, 16)))
			return to.clientClaim(l.clientOf(addr), filesPerConn)
		}
	}
	got := fill(l, host("2001:db8::"))
	kit.Check(t, got <= l.max/4 && got >= l.max/4-4, "one host has %d of %d; want a quarter", got, l.max)
	kit.Check(t, l.acquire(host("2001:db8:0:1::")(0)), "a host of another network is refused")
	l = NewLimits(4096)
	for _, pods := range []string{"fd01::/48", "fd00::/48"} { // a Node can get another range
		l.knowPods([]netip.Prefix{netip.MustParsePrefix(pods)})
	}
	if got := fill(l, host("fd00::")); got < l.max/2-4 {
		t.Errorf("pods of one node have %d of %d; want as much as a Service may have", got, l.max)
	}
	for addr, want := range map[string]string{
		"::ffff:10.0.0.1": "10.0.0.1/32", "10.0.0.1": "10.0.0.1/32", "fe80::1%eth0": "fe80::/64", "fd00::1": "fd00::1/128", "2001:db8:0:0:f::1": "2001:db8::/64",
	} {
		got := l.clientOf(netip.MustParseAddr(addr)).String()
		kit.Check(t, got == want, "%s belongs to client %s; want %s", addr, got, want)
	}
}

// TestManyGreedyServices of one namespace leave room for those of others.
func TestManyGreedyServices(t *testing.T) {
	l := NewLimits(4096)
	greedy := 0
	for s := range 30 {
		greedy += fill(l, func(n int) claim { return claimFor(fmt.Sprint(s), n) })
	}
	kit.Check(t, greedy <= l.max/3*2, "one namespace has %d of %d", greedy, l.max)
	other := func(n int) claim {
		return claim{2, serviceName{"bank", "web"}, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(n)}), 32)}
	}
	got := fill(l, other)
	kit.Check(t, got >= l.max/7, "a neighbour has %d of %d", got, l.max)
}

// TestListenersOfOneService checks that they leave files for those of other Services.
func TestListenersOfOneService(t *testing.T) {
	l := NewLimits(256)
	greedy := fill(l, func(int) claim { return claim{files: 1, service: serviceName{"shop", "greedy"}} })
	kit.Check(t, greedy == l.max/2, "one Service has %d listeners of %d", greedy, l.max)
	others := fill(l, func(n int) claim { return claim{files: 1, service: serviceName{"shop", fmt.Sprint(n)}} })
	kit.Check(t, greedy+others == l.max/4*3, "others have %d listeners, want %d", others, l.max/4*3-greedy)
	kit.Check(t, l.acquire(claimFor("0", 1)), "listeners leave no room for connections")
}

// TestFilesComeBack checks that released claims leave no counts.
func TestFilesComeBack(t *testing.T) {
	l := NewLimits(256)
	var leaves []func()
	for n := range 20 {
		leave, ok := l.acquireConn(claimFor("web", n))
		kit.Need(t, ok, "no place for connection %d", n)
		leaves = append(leaves, leave)
	}
	for _, leave := range leaves {
		leave()
	}
	if l.used != 0 || len(l.services) != 0 || len(l.clients) != 0 || l.Connections() != 0 {
		t.Errorf("left are %d files, Services %v, clients %v, %d connections", l.used, l.services, l.clients, l.Connections())
	}
}

// TestLateAnswersNeedRoom checks that no client is refused because of late replies.
func TestLateAnswersNeedRoom(t *testing.T) {
	l := NewLimits(256) // 112 for the relay
	for n := 1; n <= 5; n++ {
		c := claim{1, serviceName{"shop", "dns"}, netip.MustParsePrefix("10.0.0.1/32")}
		l.acquire(c)
		got, want := l.hasSpare(c), n <= 3
		kit.Check(t, got == want, "with %d clients there is room: %t, want %t", n, got, want)
	}
	l = NewLimits(256)
	for n := range 112 / 4 {
		l.acquire(claimFor(fmt.Sprint(n), n))
	}
	kit.Check(t, !l.hasSpare(claimFor("dns", 500)), "there is room with half of the files in use")
}

// TestRefusalsAreReported checks that refusals are reported once per reason, with a few
// names, until there has been none for a while.
func TestRefusalsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimits(4096)
		var mu sync.Mutex
		var said [][2]string
		l.Observe(func(text, detail string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, [2]string{text, detail})
		})
		all := func() [][2]string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(said)
		}
		for n := range 1000 {
			l.recordRefusal(Loop, claimFor(fmt.Sprint("s", n), n))
			l.recordRefusal(ClientShare, claimFor("web", n))
			time.Sleep(quietPeriod / 20)
		}
		n := len(all())
		kit.Check(t, n <= 10, "said %d times", n)
		last := all()[len(all())-1]
		kit.Check(t, strings.Contains(last[1], "shop/s0, shop/s1, shop/s2 and others") && strings.Contains(last[1], "10.0.0.0, 10.0.0.1, 10.0.0.2 and others"),
			"said in the end: %q", last[1])
		kit.Check(t, !strings.Contains(last[0], "shop") && !strings.Contains(last[0], "10.0"), "names somebody: %q", last[0])
		time.Sleep(quietPeriod)
		synctest.Wait()
		if last := all()[len(all())-1]; last != [2]string{} {
			t.Errorf("when it is over, %q is said", last)
		}
		got := l.Use().Refused
		kit.Check(t, got[Loop] == 1000 && got[ClientShare] == 1000, "counted %v", got)
	})
}

// TestHops checks how many relays a packet can pass, for each initial hop limit.
func TestHops(t *testing.T) {
	for _, tt := range []struct{ in, passes int }{
		{0, 7}, {64, 7}, {128, 7}, {255, 7}, // defaults of systems
		{40, 4},         // a distant client
		{12, 1},         // enough for the cluster
		{11, 0}, {1, 0}, // too little
	} {
		passes := 0
		for hops, ok := nextHops(tt.in); ok; hops, ok = nextHops(hops) {
			passes++
		}
		kit.Check(t, passes == tt.passes, "a hop limit of %d is good for %d passes, want %d", tt.in, passes, tt.passes)
	}
}
