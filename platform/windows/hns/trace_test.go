// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/generate"
)

// look follows c and compares it with route.Decide.
func (tn *testNode) look(want *service.Snapshot, c route.Conn) (*explain.Explanation, *explain.Walk) {
	tn.t.Helper()
	writes := tn.hns.writes()
	w, err := tn.backend.Trace(tn.t.Context(), want, c, func(a netip.Addr) bool { return slices.Contains(want.Node.Addrs, a) })
	if err != nil {
		tn.t.Fatal(err)
	}
	if n := tn.hns.writes(); n > writes {
		tn.t.Fatalf("to look made %d calls that change HNS", n-writes)
	}
	v := route.Decide(want, c)
	x := &explain.Explanation{Action: v.Action.String()}
	for _, e := range v.Endpoints {
		x.Endpoints = append(x.Endpoints, explain.Endpoint{Listed: track.Listed{Address: e.Addr.String()}, Chosen: true, Client: "kept"})
	}
	x.Compare(w.Path())
	return x, w
}

// tamperings change what HNS has for a connection: its load balancer, or the endpoint
// with an ID. They return the text that a difference must contain, "" if they do not
// apply.
var tamperings = map[string]func(k *fake, lb LoadBalancer, endpoint string) string{
	"a load balancer is gone": func(k *fake, lb LoadBalancer, _ string) string {
		delete(k.balancers, lb.ID)
		return "no load balancer has " + lb.Address.String()
	},
	"another target port": func(k *fake, lb LoadBalancer, _ string) string {
		lb.TargetPort++
		k.balancers[lb.ID] = lb
		return lb.ID + " has the target port"
	},
	"direct server return": func(k *fake, lb LoadBalancer, _ string) string {
		lb.DSR = !lb.DSR
		k.balancers[lb.ID] = lb
		return lb.ID + " has direct server return"
	},
	"the flag ILB": func(k *fake, lb LoadBalancer, _ string) string {
		lb.Flags |= ILB
		k.balancers[lb.ID] = lb
		return lb.ID + " has the port flags internal"
	},
	"session affinity": func(k *fake, lb LoadBalancer, _ string) string {
		lb.Distribution = DistributionSourceIPProtocol
		k.balancers[lb.ID] = lb
		return lb.ID + " has the distribution"
	},
	"another source VIP": func(k *fake, lb LoadBalancer, _ string) string {
		lb.SourceVIP = addr("198.51.100.77")
		k.balancers[lb.ID] = lb
		return lb.ID + " has the source VIP 198.51.100.77"
	},
	"flags of the load balancer": func(k *fake, lb LoadBalancer, _ string) string {
		lb.Unsupported = true
		k.balancers[lb.ID] = lb
		return lb.ID + " has properties that kube-proxy never sets"
	},
	"fewer endpoints": func(k *fake, lb LoadBalancer, endpoint string) string {
		lb.Endpoints = slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool { return id == endpoint })
		k.balancers[lb.ID] = lb
		return lb.ID + " lacks endpoint " + endpoint
	},
	"a foreign endpoint": func(k *fake, lb LoadBalancer, _ string) string {
		if slices.Contains(lb.Endpoints, "foreign-endpoint") { // a Service leads to it
			return ""
		}
		lb.Endpoints = append(slices.Clone(lb.Endpoints), "foreign-endpoint")
		k.balancers[lb.ID] = lb
		return lb.ID + " has endpoint foreign-endpoint"
	},
	"an endpoint has another address": func(k *fake, _ LoadBalancer, endpoint string) string {
		e := k.endpoints[endpoint]
		e.Addrs = []netip.Addr{e.Addrs[0].Prev()}
		for _, other := range k.endpoints {
			if other.HasAddr(e.Addrs[0]) {
				return ""
			}
		}
		k.endpoints[endpoint] = e
		return "has endpoint " + endpoint
	},
	"an endpoint is gone": func(k *fake, _ LoadBalancer, endpoint string) string {
		delete(k.endpoints, endpoint)
		return "endpoint " + endpoint + " of load balancer"
	},
	"an endpoint leads elsewhere": func(k *fake, _ LoadBalancer, endpoint string) string {
		e := k.endpoints[endpoint]
		if !e.Remote {
			return ""
		}
		e.MAC = "02-00-00-00-00-99"
		k.endpoints[endpoint] = e
		return "endpoint " + endpoint + " is"
	},
	"a foreign load balancer has the port": func(k *fake, lb LoadBalancer, _ string) string {
		delete(k.balancers, lb.ID)
		other := lb.Address
		other.Port += 5
		lb.ID, lb.Endpoints, lb.ExtraKeys = "foreign", []string{"foreign-endpoint"}, []service.Address{other}
		k.balancers[lb.ID] = lb
		return "load balancer foreign has " + lb.Address.String()
	},
}

// Whatever a connection meets in HNS, Trace finds that it is missing or changed, and
// finds nothing before.
func TestTraceFindsTampering(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				n := drawSuiteNode(t, generate.Cluster{T: r, Family: f}, false)
				n.Start()
				ports := n.draw.Ports()
				want := service.New(1, n.draw.Node(), ports)
				for range 2 {
					n.Heal()
					n.plan(want).Apply(r.Context())
				}
				for range 2 {
					tamperOnPath(r, n, want, n.draw.Conn(ports))
				}
			})
		})
	}
}

func tamperOnPath(t *rapid.T, n *suiteNode, want *service.Snapshot, c route.Conn) {
	x, w := n.look(want, c)
	if x.Verdict != explain.Agree {
		t.Fatalf("%+v: %q before anything was changed", c, x.Differences)
	}
	var got []netip.AddrPort
	for a := range w.Targets {
		got = append(got, a)
	}
	slices.SortFunc(got, netip.AddrPort.Compare)
	if met := trace(n.hns, n.draw.family, c); w.Action == route.Forward && !slices.Equal(met, got) {
		t.Fatalf("%+v: forwarded to %v, and HNS has %v", c, got, met)
	}
	var lb *LoadBalancer
	for _, x := range n.hns.balancers {
		if slices.ContainsFunc(w.Hops, func(h explain.Hop) bool { return h.Object == "load balancer "+x.ID }) {
			lb = &x
		}
	}
	if lb == nil {
		return
	}
	balancers, endpoints := n.hns.balancers, n.hns.endpoints
	endpoint := rapid.SampledFrom(lb.Endpoints).Draw(t, "endpoint")
	for _, name := range slices.Sorted(maps.Keys(tamperings)) {
		n.hns.balancers, n.hns.endpoints = maps.Clone(balancers), maps.Clone(endpoints)
		named := tamperings[name](n.hns, *lb, endpoint)
		if x, _ := n.look(want, c); named != "" && (x.Verdict != explain.Differ || !slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, named) })) {
			t.Errorf("%+v: %s: no %q in %q", c, name, named, x.Differences)
		}
	}
	n.hns.balancers, n.hns.endpoints = balancers, endpoints
}

// to is a connection of a client outside of the cluster.
func to(a string) route.Conn {
	c := route.Conn{Protocol: service.TCP, From: addr("203.0.113.1"), To: netip.MustParseAddrPort(a), Interface: "eth0"}
	c.ToNode = slices.Contains(theNode.Addrs, c.To.Addr())
	return c
}

// The path names each object of HNS by its ID, and what it does.
func TestTracePath(t *testing.T) {
	b, want := dsrNode(t)
	ids := map[service.Address]string{}
	for id, lb := range b.hns.balancers {
		ids[lb.Address] = id
	}
	cluster, node := ids[service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}], ids[service.Address{Port: 30080, Protocol: service.TCP}]
	local, remote, vip := "endpoint-000001", b.remote("10.244.2.11"), b.remote("10.96.0.10")
	ends := []explain.Hop{
		{Object: "endpoint " + local, Does: "10.244.1.11 local"},
		{Object: "endpoint " + remote, Does: "10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11"},
	}
	network := explain.Hop{Object: "network vxlan0", Does: "Overlay, HNS 15.5"}
	for destination, hops := range map[string][]explain.Hop{
		"10.96.0.10:80": {
			network, {Object: "endpoint " + vip, Does: "10.96.0.10 remote 00-15-5d-aa-aa-aa via 192.0.2.10: the ClusterIP is at the node"},
			{Object: "load balancer " + cluster, Does: "tcp 10.96.0.10:80 -> :80 dsr source-vip 10.244.1.254, of shop/web:http"}, ends[0], ends[1],
		},
		"192.0.2.10:30080": {
			network, {Object: "load balancer " + node, Does: "tcp node:30080 -> :80 local-routed external source-vip 10.244.1.254, of shop/web:http"}, ends[0], ends[1],
		},
		"192.0.2.10:22": {network},
	} {
		x, w := b.look(want, to(destination))
		if diff := cmp.Diff(hops, w.Hops); diff != "" || x.Verdict != explain.Agree {
			t.Errorf("%s: %s, %q (-want +got):\n%s", destination, x.Verdict, x.Differences, diff)
		}
	}
}

// Where HNS differs from the rules of Kubernetes without a fault, the Walk says why.
func TestTraceSaysLimits(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	ranges, empty := allKinds("10.244.1.11:80"), clusterIP("empty", "10.96.0.11")
	ranges.Frontends[3].Sources = []netip.Prefix{prefix("203.0.113.0/24")}
	kept := clusterIP("kept", "10.96.0.12", "10.244.1.11:80", "10.244.2.11:80@b")
	kept.KeepVIP, kept.Frontends = true, append(kept.Frontends, frontend(service.LoadBalancerIP, "203.0.113.12", 80))
	want := snapshot(1, ranges, empty, kept)
	for range 2 {
		b.now = b.now.Add(2 * listingTTL)
		b.plan(want).Apply(t.Context())
	}
	for destination, text := range map[string]string{
		"10.96.0.11:80":   "HNS can neither refuse nor drop a connection",
		"203.0.113.10:80": "HNS has no source ranges: 203.0.113.10 is not programmed",
		"203.0.113.12:80": keptHere,
	} {
		x, w := b.look(want, to(destination))
		if x.Verdict != explain.Agree || !strings.Contains(w.ByDesign, text) {
			t.Errorf("%s: %s, faults %q, by design %q, want %q", destination, x.Verdict, w.Faults, w.ByDesign, text)
		}
	}
}

// This checks what Trace reports about a port that HNS refused, about objects that are
// not wanted any more, about objects of others, and about a node without a network.
func TestTraceOddities(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	held := service.Address{Addr: addr("10.96.0.12"), Port: 80, Protocol: service.TCP}
	b.hns.heldPorts[held] = true
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("held", "10.96.0.12", "10.244.1.11:80"), clusterIP("early", "10.96.0.13", "10.244.1.12:80"))
	_, err := b.round(want)
	wantFailed(t, err, "port is taken", "early", "held")
	b.hns.balancers["other"] = LoadBalancer{ID: "other", Address: service.Address{Port: 40000, Protocol: service.TCP}, TargetPort: 1, Endpoints: []string{"endpoint-000001"}}
	for destination, text := range map[string]string{
		"10.96.0.10:80":    "",
		"10.96.0.12:80":    "no load balancer has tcp 10.96.0.12:80, of shop/held:http: create load balancer: HNS says that the port is taken",
		"10.96.0.13:80":    "no load balancer has tcp 10.96.0.13:80, of shop/early:http: none of its endpoints is in HNS",
		"192.0.2.10:40000": "",
	} {
		x, w := b.look(want, to(destination))
		if got := strings.Join(w.Faults, "\n"); !strings.HasPrefix(got, text) || (got == "") != (text == "") || text == "" && x.Verdict != explain.Agree {
			t.Errorf("%s: %s, faults %q, want %q", destination, x.Verdict, got, text)
		}
	}
	if x, _ := b.look(snapshot(2), to("10.96.0.10:80")); !slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, "it is left over") }) {
		t.Errorf("a load balancer that no Service wants: %q", x.Differences)
	}
	b.hns.networks = nil
	if x, _ := b.look(want, to("10.96.0.10:80")); len(x.Differences) == 0 || !strings.Contains(x.Differences[0], "waiting for a network") {
		t.Errorf("without a network: %q", x.Differences)
	}
	b.hns.down = true
	if _, err := b.backend.Trace(t.Context(), want, to("10.96.0.10:80"), generate.IsNodeLocal); err == nil {
		t.Error("no error while HNS is down")
	}
}
