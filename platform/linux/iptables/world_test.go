// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

var (
	nodeAddr  = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	nodeOther = [2]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")}
)

func isNodeAddr(a netip.Addr) bool {
	return slices.Contains(nodeAddr[:], a) || slices.Contains(nodeOther[:], a)
}

// addrIn returns the n-th address after base.
func addrIn(base string, n int) netip.Addr {
	b := netip.MustParseAddr(base).AsSlice()
	b[len(b)-1] += byte(n)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// world draws snapshots of a small cluster, so that things collide.
type world struct {
	t      *rapid.T
	family service.Family
}

func (w world) pick(label string, n int) int { return rapid.IntRange(0, n-1).Draw(w.t, label) }
func (w world) coin(label string) bool       { return rapid.Bool().Draw(w.t, label) }

func (w world) base(v4, v6 string) string {
	if w.family == service.IPv6 {
		return v6
	}
	return v4
}

func (w world) pod(n int) netip.Addr {
	return addrIn(w.base("10.244.1.0", "fd00:10:244:1::"), n)
}

func (w world) node() *service.Node {
	n := &service.Node{Name: "node-a", Addrs: []netip.Addr{nodeAddr[w.family]}, MasqueradeAll: w.coin("masquerade all")}
	switch w.pick("detect", 4) {
	case 0:
		n.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}
	case 1:
		n.Pods.Interface = "cbr0"
	case 2:
		n.Pods.InterfacePrefix = "veth"
	}
	if w.coin("restricted") {
		for _, a := range nodeAddr {
			n.NodePorts = append(n.NodePorts, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return n
}

func (w world) endpoints(label string) []service.Endpoint {
	n := rapid.SampledFrom([]int{0, 1, 2, 3, 5, 8, 9, 20}).Draw(w.t, label)
	var list []service.Endpoint
	for i := range n {
		where := w.pick("where", 3)
		list = append(list, service.Endpoint{
			Addr:  netip.AddrPortFrom(w.pod(1+w.pick("pod", 30)), 8080),
			Local: where == 0, Elsewhere: where == 1,
		})
		_ = i
	}
	slices.SortFunc(list, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return slices.CompactFunc(list, func(a, b service.Endpoint) bool { return a.Addr == b.Addr })
}

func (w world) sources() []netip.Prefix {
	switch w.pick("sources", 4) {
	case 0:
		return []netip.Prefix{}
	case 1:
		return []netip.Prefix{netip.MustParsePrefix(w.base("203.0.113.0/25", "2001:db8:2::/65"))}
	}
	return nil
}

// port draws the n-th port, whose frontends are its own.
func (w world) port(n int) *service.Port {
	p := &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%d", n), Port: "http", Protocol: rapid.SampledFrom([]service.Protocol{service.TCP, service.UDP, service.SCTP}).Draw(w.t, "protocol")},
		Family: w.family, Cluster: w.endpoints("cluster"),
		Internal: service.Policy(w.pick("internal", 2)), External: service.Policy(w.pick("external", 2)),
	}
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		p.Local = w.endpoints("local")
	}
	if w.pick("affinity", 3) == 0 {
		p.Affinity = time.Duration(1+w.pick("timeout", 2)) * time.Hour
	}
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ClusterIP, Addr: addrIn(w.base("10.96.0.0", "fd00:10:96::"), n), Port: 80})
	if w.coin("node port") {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.NodePort, Port: uint16(30000 + n)})
	}
	if w.coin("external ip") {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: addrIn(w.base("198.51.100.10", "2001:db8:1::10"), n), Port: 80})
	}
	if w.coin("load balancer") {
		p.Frontends = append(p.Frontends, service.Frontend{Kind: service.LoadBalancerIP, Addr: addrIn(w.base("203.0.113.200", "2001:db8:3::200"), n), Port: 80, Sources: w.sources()})
	}
	return p
}

func (w world) ports() []*service.Port {
	var ports []*service.Port
	for n := range w.pick("ports", 5) {
		if w.pick("here", 5) > 0 {
			ports = append(ports, w.port(n))
		}
	}
	return ports
}

// conn draws a connection to one of the ports' frontends, or beside them.
func (w world) conn(ports []*service.Port) route.Conn {
	c := route.Conn{Protocol: service.TCP, To: netip.AddrPortFrom(w.pod(3), 80)}
	if len(ports) > 0 {
		p := ports[w.pick("to", len(ports))]
		f := p.Frontends[w.pick("frontend", len(p.Frontends))]
		c.Protocol = p.Name.Protocol
		addr := f.Addr
		if f.Kind == service.NodePort {
			addr = rapid.SampledFrom([]netip.Addr{nodeAddr[w.family], nodeOther[w.family], w.pod(40), netip.MustParseAddr(w.base("127.0.0.1", "::1"))}).Draw(w.t, "node address")
		}
		port := f.Port
		switch w.pick("other", 16) {
		case 0, 1:
			port++
		case 2: // no Service has it, but an external one may be a neighbour's
			addr = addr.Next()
		case 3:
			addr = addrIn(w.base("10.96.0.0", "fd00:10:96::"), 200)
		}
		c.To = netip.AddrPortFrom(addr, port)
	}
	c.ToNode = isNodeAddr(c.To.Addr()) || c.To.Addr().IsLoopback()
	switch w.pick("from", 4) {
	case 0:
		c.From, c.Interface = w.pod(1+w.pick("client", 30)), rapid.SampledFrom([]string{"veth1", "cbr0"}).Draw(w.t, "interface")
	case 1:
		c.From, c.Interface = addrIn(w.base("203.0.113.1", "2001:db8:2::1"), 200*w.pick("far", 2)), "eth0"
	case 2:
		c.From = nodeAddr[w.family]
	default:
		c.From, c.Interface = addrIn(w.base("192.0.2.50", "2001:db8::50"), 0), "eth0"
	}
	return c
}

// nodeLocal says what the routing tables do: the node's addresses and loopback are local.
func nodeLocal(a netip.Addr) bool { return isNodeAddr(a) || a.IsLoopback() }
