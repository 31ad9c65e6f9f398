// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// TestRefusedAtOnce checks that a Service without endpoints, and a port without a
// Service, refuse at once.
func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	empty := app{name: "empty", number: 10}
	web := app{name: "web", number: 11}.on(c.Host("web-1"))
	c.save(t, empty, web)
	c.start(t)

	cells := c.cells(c.clientHosts(), empty)
	for _, x := range c.cells(c.clientHosts(), web) {
		if x.ToNode || x.Name != "ClusterIP of web" {
			continue
		}
		x.Name, x.To = "no port of web", netip.AddrPortFrom(x.To.Addr(), 81)
		cells = append(cells, x)
	}
	c.check(t, c.awaitProgrammed(t), cells)

	c.save(t, empty.on(c.Host("web-3")))
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), empty))
	c.save(t, empty)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), empty))
}

// TestHairpin checks that a pod which reaches itself through its Service sees a node's
// address as the client. An answer to its own address would never leave the pod.
func TestHairpin(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, internal: "Local", external: "Local"}.on(c.Host("web-1"))
	c.save(t, web)
	c.start(t)
	pod := c.Host("web-1")
	for _, x := range c.cells([]*netlab.Host{pod}, web) {
		a, err := pod.Ask(t.Context(), netlab.Query{Proto: x.Proto.String(), To: x.To})
		if err != nil {
			t.Fatal(err)
		}
		want := c.judge(nil).NodeTowards(pod.Addr(a.At.Addr()))
		if c.accelerated && x.Proto == service.TCP && x.Name == "ClusterIP of web" {
			want = pod.Addr(a.At.Addr()) // it connects to itself, and nothing leaves it
		}
		if a.Backend != "web-1" || a.Client.Addr() != want {
			t.Errorf("%s: %s by %s, who saw %s", x, a.Outcome, a.Backend, a.Client)
		}
	}
}

// TestSourceRanges checks that loadBalancerSourceRanges apply to load-balancer addresses
// and to nothing else.
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t)
	var apps []app
	for i, ranges := range [][]string{
		{"192.0.2.100/32", "2001:db8:2::100/128"},                                           // the client
		{"192.0.2.10/32", "2001:db8:2::10/128"},                                             // the node
		{"10.244.1.13/32", "fd00:10:244:1::13/128", "192.0.2.96/28", "2001:db8:2::100/120"}, // a pod and the client
		{"0.0.0.0/0", "::/0"},
		{"192.0.2.0/24", "2001:db8:2::/64"}, // the client and the node
	} {
		for j, policy := range []corev1.ServiceExternalTrafficPolicy{"Cluster", "Local"} {
			a := app{name: fmt.Sprintf("guarded-%d-%s", i, [2]string{"cluster", "local"}[j]), number: 10 + 2*i + j, ranges: ranges, external: policy}
			apps = append(apps, a.on(c.Host("web-1"), c.Host("web-3")))
		}
	}
	c.save(t, apps...)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), apps...))

	// A client that is no longer allowed is stopped, and a newly allowed one is served.
	closed := apps[0]
	closed.ranges = apps[2].ranges[:2]
	c.save(t, closed)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), closed))
	closed.ranges = nil
	c.save(t, closed)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), closed))
}

// TestSourceRangesOfTheNode checks a node that holds a load balancer's address and is
// allowed. It reaches the Service with that very address as its source.
func TestSourceRangesOfTheNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, ranges: []string{"192.0.2.10/32", "2001:db8:2::10/128"}}.on(c.Host("web-1"), c.Host("web-3"))
	c.save(t, web)
	c.start(t)
	for _, f := range service.Families {
		vip := web.address(service.LoadBalancerIP, f)
		if err := c.Node.AddAddr(vip); err != nil {
			t.Fatal(err)
		}
		a, err := c.Node.Ask(t.Context(), netlab.Query{Proto: "tcp", To: web.at(service.LoadBalancerIP, f)})
		if err != nil || a.Outcome != netlab.Answered || a.From.Addr() != vip {
			t.Errorf("node-a to %s: %s from %s, %v", vip, a.Outcome, a.From, err)
		}
	}
}

// checkServers sends requests until no new server has answered for long, and requires the
// named servers, "" for none.
func checkServers(t *testing.T, from *netlab.Host, to netip.AddrPort, want string) {
	t.Helper()
	q := netlab.Query{Proto: "tcp", To: to}
	if want == "" {
		q.Timeout = netlab.SilenceTimeout
	}
	var seen []string
	// One of two servers is missed with probability 2^-49.
	for missed := 0; missed < 50; missed++ {
		a, err := from.Ask(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if a.Outcome != netlab.Answered {
			break
		}
		if i, found := slices.BinarySearch(seen, a.Backend); !found {
			seen, missed = slices.Insert(seen, i, a.Backend), 0
		}
	}
	if got := strings.Join(seen, " "); got != want {
		t.Errorf("%s to %s: answered by %q, want %q", from.Name, to, got, want)
	}
}

// TestTerminating checks that a terminating endpoint serves while no other one does. The
// judge parses manifests with the proxy's own code, so the expected servers are listed
// here.
func TestTerminating(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	one, two, three, four := c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")
	base := app{name: "policies-cluster", number: 10}
	local := app{name: "policies-local", number: 11, internal: "Local", external: "Local"}
	c.launch(t)
	for name, tc := range map[string]struct {
		with              func(app) app
		inside, localOnly string // servers for a pod, and for a client outside under policy Local
	}{
		"all end": {func(a app) app { return a.with(one, terminating).with(three, terminating) },
			"web-1 web-3", "web-1"},
		"one is ready": {func(a app) app { return a.with(one, terminating).with(two, ready).with(three, terminating) },
			"web-2", "web-2"},
		"the rest is away": {func(a app) app { return a.with(one, terminating).with(three, ready).with(four, ready) },
			"web-3 web-4", "web-1"},
		"the last has ended": {func(a app) app { return a.with(one, ended).with(two, unready).with(four, ended) },
			"", ""},
		"served elsewhere": {func(a app) app { return a.with(one, ended).with(three, terminating) },
			"web-3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			apps := []app{tc.with(base), tc.with(local)}
			c.save(t, apps...)
			c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), apps...))
			for _, f := range service.Families {
				checkServers(t, c.Host("shopper"), base.at(service.ClusterIP, f), tc.inside)
				checkServers(t, c.Host("customer"), local.at(service.NodePort, f), tc.localOnly)
			}
		})
	}
}
