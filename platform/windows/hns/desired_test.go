// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// site returns a Site as discover returns it.
func site(n Network, v Version) *Site {
	s := &Site{Network: n, Version: v, Node: theNode, NodeIP: nodeA, HostMAC: "00-15-5d-aa-aa-aa"}
	if n.Kind == Overlay {
		s.SourceVIP = addr("10.244.1.2")
	}
	return s
}

const ownText = " is on the host network of this node, and HNS has no endpoint for that: it gets no connections through this node"

// formatDesired formats w, one object per line.
func formatDesired(w DesiredState) []string {
	var all []string
	for _, x := range w.LoadBalancers {
		var to []string
		for _, t := range x.Targets {
			to = append(to, t.text())
		}
		all = append(all, fmt.Sprintf("%s %s [%s]", x.Key, x.describe(), strings.Join(to, ", ")))
	}
	for _, err := range w.Limits {
		all = append(all, "limit: "+err.Error())
	}
	for _, n := range w.Notes {
		all = append(all, "note: "+n.Text)
	}
	return all
}

func (t Target) text() string {
	switch t.Location {
	case Local:
		return t.Addr.String()
	case Root:
		return "root"
	}
	return (&Endpoint{Addrs: []netip.Addr{t.Addr}, MAC: t.MAC, Provider: t.Provider, Remote: true}).describe()
}

func frontend(k service.Kind, a string, port uint16) service.Frontend {
	f := service.Frontend{Kind: k, Port: port}
	f.Addr, _ = netip.ParseAddr(a)
	return f
}

const (
	localEndpoint  = "10.244.1.11:8080"
	remoteEndpoint = "10.244.2.11:8080@b"
	remoteText     = "10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11"
)

type desiredCase struct {
	network Network
	version Version
	change  func(*service.Port, *Site)
	want    []string
}

var desiredCases = map[string]desiredCase{
	"ClusterIP on an overlay": {overlayN, v13, nil, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11, " + remoteText + "]"}},
	"with DSR": {overlayN, v13, func(_ *service.Port, s *Site) { s.Options.DSR = true },
		[]string{"tcp 10.96.0.10:80 -> :8080 dsr source-vip 10.244.1.2 [10.244.1.11, " + remoteText + "]"}},
	"DSR that HNS lacks": {bridgeN, Version{10, 1}, func(_ *service.Port, s *Site) { s.Options.DSR = true },
		[]string{"tcp 10.96.0.10:80 -> :8080 [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]"}},
	"NodePort": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.Frontends = []service.Frontend{frontend(service.NodePort, "", 30080)}
	}, []string{"tcp node:30080 -> :8080 local-routed external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]"}},
	"external policy Local": {overlayN, v13, func(p *service.Port, _ *Site) {
		p.Frontends = []service.Frontend{frontend(service.ExternalIP, "198.51.100.7", 80), frontend(service.ClusterIP, "10.96.0.10", 80)}
		p.External, p.Local = service.PolicyLocal, endpointsOf(localEndpoint)
	}, []string{
		"tcp 198.51.100.7:80 -> :8080 external dsr source-vip 10.244.1.2 [10.244.1.11]",
		"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11, " + remoteText + "]", "note: " + localForAll}},
	"policy Local without an endpoint here": {overlayN, v13, func(p *service.Port, _ *Site) { p.Internal = service.PolicyLocal }, nil},
	"source ranges": {bridgeN, v13, func(p *service.Port, _ *Site) {
		f := frontend(service.LoadBalancerIP, "203.0.113.5", 80)
		f.Sources = []netip.Prefix{}
		p.Frontends = []service.Frontend{f}
	}, []string{"limit: HNS has no source ranges: 203.0.113.5 is not programmed, because everybody could connect"}},
	"source ranges that are ignored": {bridgeN, v13, func(p *service.Port, s *Site) {
		f := frontend(service.LoadBalancerIP, "203.0.113.5", 80)
		f.Sources = []netip.Prefix{}
		p.Frontends, p.Cluster = []service.Frontend{f}, endpointsOf(localEndpoint)
		s.Options = Options{IgnoreSourceRanges: true, ForwardHealthChecks: true, HealthzPort: 10256}
	}, []string{"tcp 203.0.113.5:80 -> :8080 external [10.244.1.11]", "tcp 203.0.113.5:10256 -> :10256 [root]",
		"note: HNS has no source ranges: every client can connect to 203.0.113.5, as --ignore-source-ranges says"}},
	"preserve-destination": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.KeepVIP, p.Frontends = true, []service.Frontend{
			frontend(service.LoadBalancerIP, "203.0.113.5", 80), frontend(service.ExternalIP, "198.51.100.7", 80), frontend(service.NodePort, "", 30080),
		}
	}, []string{
		"tcp 203.0.113.5:80 -> :8080 mux preserve-destination external dsr [10.244.1.11]",
		"tcp 198.51.100.7:80 -> :8080 external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]",
		"tcp node:30080 -> :8080 local-routed external [10.244.1.11]", "note: " + keptHere}},
	"preserve-destination without an endpoint here": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.KeepVIP, p.Frontends = true, []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80), frontend(service.NodePort, "", 30080)}
		p.Cluster = endpointsOf(remoteEndpoint)
	}, []string{"note: " + keptHere}},
	"NodePorts at some addresses": {bridgeN, v13, func(p *service.Port, s *Site) {
		p.Frontends, p.Cluster = []service.Frontend{frontend(service.NodePort, "", 30080)}, endpointsOf(localEndpoint)
		s.Node = &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	}, []string{"tcp node:30080 -> :8080 local-routed external [10.244.1.11]", "note: " + everyNodePort}},
	"health checks of preserve-destination": {overlayN, v13, func(p *service.Port, s *Site) {
		p.KeepVIP, p.Frontends, p.Cluster = true, []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80)}, endpointsOf(localEndpoint)
		s.Options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
	}, []string{"tcp 203.0.113.5:80 -> :8080 mux preserve-destination external dsr source-vip 10.244.1.2 [10.244.1.11]",
		"tcp 203.0.113.5:10256 -> :10256 mux preserve-destination source-vip 10.244.1.2 [root]"}},
	"preserve-destination that HNS lacks": {bridgeN, Version{10, 1}, func(p *service.Port, _ *Site) {
		p.KeepVIP, p.Frontends = true, []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80), frontend(service.NodePort, "", 30080)}
	}, []string{"tcp 203.0.113.5:80 -> :8080 external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]",
		"tcp node:30080 -> :8080 local-routed external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]",
		"limit: HNS 10.1 has no direct server return: the annotation preserve-destination has no effect"}},
	"SCTP": {bridgeN, v13, func(p *service.Port, _ *Site) { p.Name.Protocol = service.SCTP },
		[]string{"limit: HNS has no load balancers for sctp"}},
	"two target ports": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.Cluster = endpointsOf("10.244.1.11:9090", "10.244.1.12:8080", "10.244.1.13:9090")
	}, []string{"tcp 10.96.0.10:80 -> :9090 [10.244.1.11, 10.244.1.13]",
		"limit: the endpoints of policy Cluster have different ports, and a load balancer of HNS has one: only the 2 with port 9090 get traffic, not 1 with ports [8080]"}},
	"affinity": {bridgeN, v13, func(p *service.Port, _ *Site) { p.Affinity, p.Cluster = time.Hour, endpointsOf(localEndpoint) },
		[]string{"tcp 10.96.0.10:80 -> :8080 affinity [10.244.1.11]", "note: session affinity has no timeout: HNS has none"}},
	"affinity that HNS lacks": {bridgeN, Version{11, 10}, func(p *service.Port, _ *Site) { p.Affinity, p.Cluster = time.Hour, endpointsOf(localEndpoint) },
		[]string{"tcp 10.96.0.10:80 -> :8080 [10.244.1.11]", "limit: HNS 11.10 has no session affinity: want Windows Server 2022 or newer"}},
	"no endpoints": {bridgeN, v13, func(p *service.Port, _ *Site) { p.Cluster = nil },
		[]string{"note: it has no ready endpoint, and HNS cannot refuse connections: they time out"}},
	"another node as endpoint": {overlayN, v13, func(p *service.Port, _ *Site) { p.Cluster = endpointsOf("192.0.2.11:6443@b") },
		[]string{"tcp 10.96.0.10:80 -> :6443 source-vip 192.0.2.10 [192.0.2.11 remote 02-11-c0-00-02-0b via 192.0.2.11]"}},
	"the host network of this node": {overlayN, v13, func(p *service.Port, s *Site) {
		p.Cluster = endpointsOf("192.0.2.10:8080", "10.244.1.11:8080")
		p.Cluster[0].Local = true
	}, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11]", "limit: endpoint 192.0.2.10:8080 of policy Cluster" + ownText}},
	"nothing else": {bridgeN, v13, func(p *service.Port, s *Site) {
		p.Cluster = endpointsOf("192.0.2.10:8080")
		p.Cluster[0].Local = true
	}, []string{"limit: endpoint 192.0.2.10:8080 of policy Cluster" + ownText}},
	"an endpoint outside the cluster": {overlayN, v13, func(p *service.Port, _ *Site) { p.Cluster = endpointsOf("198.51.100.9:443@b") },
		[]string{"tcp 10.96.0.10:80 -> :443 source-vip 192.0.2.10 [198.51.100.9 remote 02-11-c6-33-64-09 via 192.0.2.10]"}},
	"the narrowest route": {overlayN, v13, func(p *service.Port, s *Site) {
		s.Network.Routes = []Route{{prefix("10.244.0.0/16"), addr("192.0.2.99")}, {prefix("10.244.2.0/24"), addr("192.0.2.11")}, {prefix("10.244.2.0/23"), addr("192.0.2.98")}}
		p.Cluster = endpointsOf(remoteEndpoint)
	}, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [" + remoteText + "]"}},
	"no route yet": {overlayN, v13, func(p *service.Port, s *Site) {
		s.Node = &service.Node{NodePorts: service.AnyAddress(), Addrs: theNode.Addrs, Pods: service.LocalPods{Prefixes: []netip.Prefix{prefix("10.244.0.0/16")}}}
		p.Cluster = endpointsOf(localEndpoint, "10.244.9.1:8080@b")
	}, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11]",
		`limit: network "vxlan0" has no route to the node of 10.244.9.1 yet: the network plugin makes it`}},
	"health checks of a UDP Service": {bridgeN, v13, func(p *service.Port, s *Site) {
		s.Options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
		p.Name.Protocol, p.Cluster = service.UDP, endpointsOf(localEndpoint)
		p.Frontends = []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 53)}
	}, []string{"udp 203.0.113.5:53 -> :8080 external [10.244.1.11]", "tcp 203.0.113.5:10256 -> :10256 [root]"}},
	"health checks on the Service's own port": {bridgeN, v13, func(p *service.Port, s *Site) {
		s.Options.ForwardHealthChecks, p.HealthCheck, p.Cluster = true, 80, endpointsOf(localEndpoint)
		p.Frontends = []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80)}
	}, []string{"tcp 203.0.113.5:80 -> :8080 external [10.244.1.11]",
		"limit: port 80 of 203.0.113.5 is the Service's own: health checks on it do not reach the node"}},
	"family that cannot be had": {overlayN, v13, func(_ *service.Port, s *Site) { s.Unavailable = "no IPv6" }, nil},
}

func TestDesired(t *testing.T) {
	for name, tt := range desiredCases {
		t.Run(name, func(t *testing.T) {
			p, s := clusterIP("web", "10.96.0.10", localEndpoint, remoteEndpoint), site(tt.network, tt.version)
			if tt.change != nil {
				tt.change(p, s)
			}
			if diff := cmp.Diff(tt.want, formatDesired(Desired(p, s))); diff != "" {
				t.Errorf("wishes (-want +got):\n%s", diff)
			}
		})
	}
}

// A load balancer has at most 1,024 endpoints.
func TestDesiredTooMany(t *testing.T) {
	p := clusterIP("web", "10.96.0.10")
	a := addr("10.244.2.1")
	for range maxEndpoints + 1 {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(a, 80), Remote: true})
		a = a.Next()
	}
	w := Desired(p, site(bridgeN, v13))
	if n := len(w.LoadBalancers[0].Targets); n != maxEndpoints || len(w.Limits) != 1 {
		t.Errorf("%d targets, limits %v", n, w.Limits)
	}
	if !errors.Is(w.Limits[0], errors.ErrUnsupported) {
		t.Errorf("limit %v is not known as one", w.Limits[0])
	}
}

func TestRemoteMAC(t *testing.T) {
	if a, b := remoteMAC(addr("fd00:10:244:1::11")), remoteMAC(addr("fd00:10:244:2::11")); a == b {
		t.Errorf("two pods have %s", a)
	}
	if !equalMAC("02-11-0A-00-00-01", "02:11:0a:00:00:01") || equalMAC("02-11-0a-00-00-01", "02-11-0a-00-00-02") {
		t.Error("sameMAC errs")
	}
}
