// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// generator draws small clusters, so that names and addresses coincide.
type generator struct {
	t      *rapid.T
	family service.Family
}

func (g generator) drawInt(label string, n int) int { return rapid.IntRange(0, n-1).Draw(g.t, label) }
func (g generator) drawBool(label string) bool      { return rapid.Bool().Draw(g.t, label) }

// nth returns the n-th address after the base of the family.
func (g generator) nth(v4, v6 string, n int) netip.Addr {
	base := v4
	if g.family == service.IPv6 {
		base = v6
	}
	b := addr(base).AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// Node is always the same.
func (g generator) Node() *service.Node { return theNode }

// localPod is the address of a pod of this node, remotePod that of another node's pod.
func (g generator) localPod(n int) netip.Addr  { return g.nth("10.244.1.10", "fd00:10:244:1::10", n) }
func (g generator) remotePod(n int) netip.Addr { return g.nth("10.244.2.10", "fd00:10:244:2::10", n) }

// foreignPod is the remote pod that has an endpoint of another owner in HNS.
const foreignPod = 6

func (g generator) network() Network {
	if g.family == service.IPv4 && g.drawBool("overlay") {
		return overlayN
	}
	n := bridgeN
	n.Kind = rapid.SampledFrom([]Kind{L2Bridge, L2Tunnel}).Draw(g.t, "kind")
	return n
}

func (g generator) version() Version {
	all := []Version{{9, 5}, {13, 3}, {15, 4}, {15, 5}}
	if g.family == service.IPv6 {
		all = all[1:]
	}
	return rapid.SampledFrom(all).Draw(g.t, "version")
}

func (g generator) options() Options {
	return Options{DSR: g.drawBool("dsr"), ForwardHealthChecks: g.drawBool("forward"), RootEndpoint: "cbr0", HealthzPort: 10256, IgnoreSourceRanges: g.drawBool("ignore ranges")}
}

func (g generator) endpoint() service.Endpoint {
	port := uint16(8080)
	if g.drawInt("other port", 8) == 0 {
		port = 9090
	}
	switch g.drawInt("where", 8) {
	case 0, 1, 2:
		return service.Endpoint{Addr: netip.AddrPortFrom(g.localPod(g.drawInt("pod", 6)), port), Local: true}
	case 3: // location unknown
		return service.Endpoint{Addr: netip.AddrPortFrom(g.remotePod(g.drawInt("pod", 6)), port)}
	case 4: // a pod on a node's host network
		return service.Endpoint{Addr: netip.AddrPortFrom(g.nth("192.0.2.11", "2001:db8::11", 0), port), Remote: true}
	case 5: // another node reuses the address of a local pod
		return service.Endpoint{Addr: netip.AddrPortFrom(g.localPod(g.drawInt("pod", 6)), port), Remote: true}
	}
	return service.Endpoint{Addr: netip.AddrPortFrom(g.remotePod(g.drawInt("pod", foreignPod+1)), port), Remote: true}
}

func (g generator) endpoints(label string, only func(service.Endpoint) bool) []service.Endpoint {
	var all []service.Endpoint
	for range rapid.SampledFrom([]int{0, 1, 2, 3, 5, 8}).Draw(g.t, label) {
		if e := g.endpoint(); only(e) {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(all, func(a, b service.Endpoint) bool { return a.Addr == b.Addr })
}

// port draws the n-th port. It shares no frontend with others.
func (g generator) port(n int) *service.Port {
	p := &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%d", n), Port: "http", Protocol: rapid.SampledFrom([]service.Protocol{service.TCP, service.TCP, service.UDP, service.SCTP}).Draw(g.t, "protocol")},
		Family: g.family, Cluster: g.endpoints("cluster", func(service.Endpoint) bool { return true }),
		Internal: service.Policy(g.drawInt("internal", 2)), External: service.Policy(g.drawInt("external", 2)),
	}
	for _, e := range g.endpoints("listed", func(e service.Endpoint) bool { return !e.Local && !slices.Contains(p.Cluster, e) }) {
		p.Listed = append(p.Listed, e.Addr.Addr())
	}
	p.Listed = slices.Compact(p.Listed)
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		p.Local = g.endpoints("local", func(e service.Endpoint) bool { return e.Local })
	}
	if g.drawInt("affinity", 3) == 0 {
		p.Affinity = time.Hour
	}
	add := func(k service.Kind, a netip.Addr, port uint16, sources []netip.Prefix) {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: k, Addr: a, Port: port, Sources: sources})
	}
	add(service.ClusterIP, g.nth("10.96.0.10", "fd00:10:96::10", n/2), uint16(80+n), nil) // two ports share the address
	if g.drawBool("node port") {
		add(service.NodePort, netip.Addr{}, uint16(30000+n), nil)
	}
	if g.drawBool("external ip") {
		add(service.ExternalIP, g.nth("198.51.100.10", "2001:db8:1::10", n), 80, nil)
	}
	if g.drawBool("load balancer") {
		var sources []netip.Prefix
		if g.drawInt("sources", 4) == 0 {
			sources = []netip.Prefix{prefix("203.0.113.0/25")}
		}
		add(service.LoadBalancerIP, g.nth("203.0.113.200", "2001:db8:3::200", n/2), uint16(80+n), sources)
		p.HealthCheck = uint16(g.drawInt("health check", 2) * (31000 + n/2))
	}
	return p
}

// Ports draws the ports of up to four Services.
func (g generator) Ports() []*service.Port {
	var ports []*service.Port
	for n := range g.drawInt("ports", 5) {
		if g.drawInt("there", 5) > 0 {
			ports = append(ports, g.port(n))
		}
	}
	return ports
}

// Conn draws a connection to a frontend of the ports, or to another address.
func (g generator) Conn(ports []*service.Port) route.Conn {
	c := route.Conn{Protocol: service.TCP, To: netip.AddrPortFrom(g.remotePod(0), 80), From: g.nth("203.0.113.1", "2001:db8:2::1", 0), Interface: "eth0"}
	if len(ports) > 0 {
		p := ports[g.drawInt("to", len(ports))]
		f := p.Frontends[g.drawInt("frontend", len(p.Frontends))]
		to := f.Addr
		if c.ToNode = f.Kind == service.NodePort; c.ToNode {
			to = g.nth("192.0.2.10", "2001:db8::10", 0)
		}
		c.Protocol, c.To = p.Name.Protocol, netip.AddrPortFrom(to, f.Port+uint16(g.drawInt("beside", 8)/7))
	}
	switch g.drawInt("from", 3) {
	case 0:
		c.From, c.Interface = g.localPod(30), "vEthernet"
	case 1:
		c.From, c.Interface = g.nth("192.0.2.10", "2001:db8::10", 0), ""
	}
	return c
}
