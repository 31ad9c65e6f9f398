// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/peers"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/mode"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// peerSet are the nodes of a lab. It implements mode.Peers.
type peerSet struct {
	*proxies
	family service.Family
}

func (s peerSet) Want([]string)                        {}
func (s peerSet) Settled() bool                        { return true }
func (s peerSet) Missing(peers.IPv6) map[string]string { return nil }

func (s peerSet) Known(peers.IPv6) map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for _, n := range s.names() {
		all[n] = s.Host(n).Addr(balancer[s.family])
	}
	return all
}

func (s peerSet) Answering(ipv6 peers.IPv6) map[string]netip.Addr {
	if s.silent {
		return nil
	}
	return s.Known(ipv6)
}

// proxies run on all nodes of a lab, which has two ingress nodes.
type proxies struct {
	*netlab.Lab
	backends map[string]reconcile.Backend
	family   service.Family
	ends     []end
	alter    func(node string, x *service.Port) // changes what a node gets
	silent   bool                               // no node answers as a peer
}

// end is an endpoint: a host, on a node.
type end struct {
	host, node string
	port       uint16
}

var (
	balancer = [...]netip.Addr{netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("2001:db8:203::5")}
	webs     = []string{"web-1", "web-2", "web-3"}
)

func newProxies(t *testing.T) *proxies {
	l := netlab.Start(t, netlab.Config{Pods: webs[:1], Remote: webs[1:], Clients: []string{"customer", "router"}, Nodes: []string{"node-c", "node-d"}})
	for _, name := range webs {
		_, err := l.Host(name).Echo("", 8080)
		kit.Must(t, err)
	}
	return &proxies{Lab: l, backends: map[string]reconcile.Backend{}, ends: []end{{"web-1", "node-a", 8080}, {"web-2", "node-b", 8080}, {"web-3", "node-b", 8080}}}
}

func (p *proxies) names() []string { return []string{"node-a", "node-b", "node-c", "node-d"} }

// snapshot is what a node gets.
func (p *proxies) snapshot(node string, f service.Family) *service.Snapshot {
	x := &service.Port{
		Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Family: f, Consistent: service.Consistent{Slots: 211}, Direct: &service.Direct{},
		Frontends: []service.Frontend{{Kind: service.LoadBalancerIP, Addr: balancer[f], Port: 80}},
	}
	for _, e := range p.ends {
		addr := netip.AddrPortFrom(p.Host(e.host).Addr(balancer[f]), e.port)
		x.Cluster = append(x.Cluster, service.Endpoint{Addr: addr, Local: e.node == node, Remote: e.node != node})
		x.Direct.Nodes = append(x.Direct.Nodes, e.node)
	}
	if p.alter != nil {
		p.alter(node, x)
	}
	var pods []netip.Prefix
	for _, s := range []string{"10.244.0.0/16", "fd00:10:244::/48"} {
		pods = append(pods, netip.MustParsePrefix(s))
	}
	y, z := *x, *x
	y.Name.Protocol, z.Name.Protocol = service.UDP, service.SCTP
	return service.New(1, &service.Node{Name: node, Pods: service.LocalPods{Prefixes: pods}}, []*service.Port{x, &y, &z})
}

// run has all nodes follow.
func (p *proxies) run(t *testing.T, f service.Family) {
	t.Helper()
	for _, n := range p.names() {
		kit.Must(t, p.Host(n).Do(func() error {
			if p.backends[n] == nil || f != p.family {
				rules, err := nftables.New(f, nftables.Options{})
				if err != nil {
					return err
				}
				p.backends[n] = reconcile.Both(rules, New(f, NewKernel(f, ""), func() mode.Peers { return peerSet{p, f} }))
			}
			plan, err := p.backends[n].Plan(t.Context(), p.snapshot(n, f))
			if err != nil {
				return err
			}
			if o := plan.Apply(t.Context()); o.Err != nil || p.silent != (o.Degraded != "") {
				return fmt.Errorf("%s: %v %s", n, o.Err, o.Degraded)
			}
			return nil
		}))
	}
	p.family = f
}

// TestSenders sends to the tunnel's port of a node from elsewhere. Only a node's packet reaches an endpoint.
func TestSenders(t *testing.T) {
	p := newProxies(t)
	p.run(t, service.IPv4)
	customer := p.Host("customer").IPv4
	client := netip.AddrPortFrom(customer, 4000) // each time another port, as both nodes may answer
	inner := func(dst netip.Addr, port uint16) []byte {
		udp := binary.BigEndian.AppendUint16(nil, client.Port())
		udp = binary.BigEndian.AppendUint16(udp, port)
		udp = append(binary.BigEndian.AppendUint16(udp, uint16(8+len("1\n"))), 0, 0)
		udp = append(udp, "1\n"...)
		ip := []byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, byte(service.UDP), 0, 0}
		ip = append(append(ip, customer.AsSlice()...), dst.AsSlice()...)
		sum := uint32(0)
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum&0xffff))
		return append(ip, udp...)
	}
	for _, tt := range []struct {
		what, from string
		key        uint32
		to         netip.AddrPort
		served     bool
	}{
		{"a node", "node-c", Key, netip.AddrPortFrom(balancer[0], 80), true},
		{"another key", "node-c", Key + 1, netip.AddrPortFrom(balancer[0], 80), false},
		{"another port of the Service's address", "node-c", Key, netip.AddrPortFrom(balancer[0], 81), false},
		{"an address that is no Service's", "node-c", Key, netip.AddrPortFrom(p.Host("web-1").IPv4, 8080), false},
		{"a client", "customer", Key, netip.AddrPortFrom(balancer[0], 80), false},
		{"a pod of the node", "web-1", Key, netip.AddrPortFrom(balancer[0], 80), false},
		{"a pod of another node", "web-2", Key, netip.AddrPortFrom(balancer[0], 80), false},
	} {
		client = netip.AddrPortFrom(customer, client.Port()+1)
		answers, err := p.Host("customer").ListenPacket(t.Context(), "udp4", client.String())
		kit.Must(t, err)
		gpe := append([]byte{0x0c, 0, 0, 1}, binary.BigEndian.AppendUint32(nil, tt.key<<8)...)
		for _, node := range []string{netlab.NodeName, netlab.OtherName} { // one of them has the slot
			c, err := p.Host(tt.from).Dial(t.Context(), "udp4", netip.AddrPortFrom(p.Host(node).IPv4, Port).String())
			kit.Must(t, err)
			_, err = c.Write(append(gpe[:8:8], inner(tt.to.Addr(), tt.to.Port())...))
			kit.Must(t, err, c.Close())
		}
		kit.Must(t, answers.SetReadDeadline(time.Now().Add(netlab.SilenceTimeout)))
		_, from, err := answers.ReadFrom(make([]byte, 100))
		kit.Must(t, answers.Close())
		if served := err == nil; served != tt.served || served && from.String() != netip.AddrPortFrom(balancer[0], 80).String() {
			t.Errorf("%s: served %v from %v, want %v", tt.what, served, from, tt.served)
		}
	}
}

// TestSizes sends more than the tunnel carries in one packet.
func TestSizes(t *testing.T) {
	p := newProxies(t)
	sink, err := p.Host("web-2").Listen(t.Context(), "tcp", ":8081")
	kit.Must(t, err)
	defer sink.Close()
	const size = 1 << 20
	go netlab.Serve(sink, func(c net.Conn) {
		n, _ := io.CopyN(io.Discard, c, size)
		_, _ = c.Write(make([]byte, n))
	})
	p.ends = []end{{"web-2", "node-b", 8081}}
	for _, f := range service.Families {
		p.run(t, f)
		kit.Must(t, p.Host("customer").Lead(p.Host("node-c"), balancer[f]))
		c, err := p.Host("customer").Dial(t.Context(), "tcp", netip.AddrPortFrom(balancer[f], 80).String())
		kit.Must(t, err)
		kit.Must(t, c.SetDeadline(time.Now().Add(kit.Limit)))
		_, err = c.Write(make([]byte, size))
		kit.Must(t, err)
		n, err := io.Copy(io.Discard, io.LimitReader(c, size))
		if err != nil || n != size {
			t.Errorf("%s: %d bytes, %v", f, n, err)
		}
		c.Close()
	}
}

// TestRoads asks the kernel for the way to each of many nodes, and lists all routes with the library that
// other programs use, too.
func TestRoads(t *testing.T) {
	netlab.InNamespace(t, func() {
		for _, f := range service.Families {
			k, roads, to := NewKernel(f, ""), map[uint32]netip.Addr{}, netip.MustParseAddr([...]string{"10.0.0.0", "2001:db8::"}[f])
			before, err := netlink.RuleList(k.family())
			kit.Must(t, err)
			for m := range uint32(100) {
				to = to.Next()
				roads[base+1+m] = to
			}
			_, _, err = k.Prepare(roads, netip.Addr{})
			kit.Must(t, err)
			for range 40 {
				delete(roads, base+uint32(len(roads)))
			}
			kit.Must(t, k.Retain(roads))
			if intact, err := k.Intact(roads); !intact || err != nil {
				t.Errorf("%s: %v, %v", f, intact, err)
			}
			for _, m := range slices.Concat([]uint32{0, 1, base}, slices.Collect(maps.Keys(roads)), []uint32{base + 90, base + most}) {
				_, want := roads[m]
				if all, err := netlink.RouteGetWithOptions(balancer[f].AsSlice(), &netlink.RouteGetOptions{Mark: m, FIBMatch: true}); want != (err == nil) || want && all[0].Table != int(m) {
					t.Errorf("%s: mark %#x leads to %v, %v", f, m, all, err)
				}
			}
			all, err := netlink.RouteListFiltered(k.family(), &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
			if err != nil || len(all) != len(roads) {
				t.Errorf("%s: routes are %v, %v", f, all, err)
			}
			kit.Must(t, k.Retain(nil))
			if after, err := netlink.RuleList(k.family()); err != nil || !reflect.DeepEqual(after, before) {
				t.Errorf("%s: left is %v, %v", f, after, err)
			}
		}
	})
}

// TestGoesOn has a Service ask while connections are open that the rules translate. Then all nodes stop to answer,
// and at last no Service asks, or the command cleanup runs.
func TestGoesOn(t *testing.T) {
	p := newProxies(t)
	c, f := p.Host("customer"), service.IPv4
	kit.Must(t, c.Lead(p.Host("node-c"), balancer[f]))
	open := func(masqueraded bool) (all []*netlab.Conn) {
		t.Helper()
		for range 20 {
			conn, a, err := c.Open(t.Context(), netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(balancer[f], 80)})
			kit.Must(t, err)
			if a, err = conn.Ask(t.Context()); err != nil || a.Outcome != netlab.Answered || a.Masqueraded() != masqueraded {
				t.Fatalf("%+v, %v; want masqueraded %v", a, err, masqueraded)
			}
			all = append(all, conn)
		}
		return all
	}
	live := func(all []*netlab.Conn) {
		t.Helper()
		for _, conn := range all {
			if a, err := conn.Ask(t.Context()); err != nil || a.Outcome != netlab.Answered {
				t.Errorf("%+v, %v", a, err)
			}
		}
	}
	p.silent = true
	p.run(t, f)
	translated := open(true)
	p.silent = false
	p.run(t, f)
	live(translated)
	led := open(false)
	live(append(translated, led...))
	p.silent = true
	p.run(t, f)
	live(translated)
	live(open(true))
	for _, n := range p.names() {
		kit.Must(t, p.Host(n).Do(func() error {
			b := p.backends[n]
			if n == "node-d" { // as after a crash
				b = New(f, NewKernel(f, ""), nil)
				kit.Must(t, b.Cleanup(t.Context()))
			}
			plan, err := b.Plan(t.Context(), service.New(1, &service.Node{Name: n}, nil))
			if err == nil {
				err = plan.Apply(t.Context()).Err
			}
			if err == nil {
				if plan, err = b.Plan(t.Context(), service.New(1, &service.Node{Name: n}, nil)); err == nil && !plan.Empty() {
					t.Errorf("%s: then %v", n, plan.Changes())
				}
			}
			if out, _ := exec.Command("sh", "-c", "nft list tables; ip link; ip rule; ip route show table all").CombinedOutput(); strings.Contains(string(out), "kube-direct") || strings.Contains(string(out), "0x6b64") {
				t.Errorf("%s: left is\n%s", n, out)
			}
			return err
		}))
	}
}

// TestSurvivesIngress moves open connections from one ingress node to another one.
func TestSurvivesIngress(t *testing.T) {
	for _, f := range service.Families {
		for _, proto := range protocols() {
			t.Run(f.String()+" "+proto, func(t *testing.T) { survive(t, f, proto) })
		}
	}
}

func survive(t *testing.T, f service.Family, proto string) {
	p := newProxies(t)
	p.run(t, f)
	c := p.Host("customer")
	kit.Must(t, c.Lead(p.Host("node-c"), balancer[f]))
	var conns []*netlab.Conn
	var before []netlab.Answer
	seen := map[string]int{}
	for range 40 {
		conn, a, err := c.Open(t.Context(), netlab.Query{Proto: proto, To: netip.AddrPortFrom(balancer[f], 80)})
		if err == nil && a.Outcome == netlab.Answered {
			a, err = conn.Ask(t.Context())
		}
		if err != nil || a.Outcome != netlab.Answered || a.Masqueraded() {
			t.Fatalf("%+v, %v", a, err)
		}
		conns, before = append(conns, conn), append(before, a)
		seen[a.Backend]++
	}
	kit.Must(t, c.Lead(p.Host("node-d"), balancer[f]), p.Host("node-c").Unplug())
	live := 0
	for i, conn := range conns {
		a, err := conn.Ask(t.Context())
		if err == nil && a.Outcome == netlab.Answered && a.Backend == before[i].Backend && a.Client == before[i].Client {
			live++
		}
	}
	if live != len(conns) || len(seen) != len(webs) {
		t.Errorf("%v served, %d of %d connections live", seen, live, len(conns))
	}
}

// TestEndpointLeaves has an endpoint leave the list, as one that terminates. Its node knows its connections: they
// go on if their slot is of another endpoint there.
func TestEndpointLeaves(t *testing.T) {
	p, all := newProxies(t), []*netlab.Conn{}
	p.ends = p.ends[1:]
	p.everywhere(t, []string{"node-c"}, func(f service.Family, _ string) {
		for _, proto := range slices.Repeat(protocols(), 10) {
			c, a, err := p.Host("customer").Open(t.Context(), netlab.Query{Proto: proto, To: netip.AddrPortFrom(balancer[f], 80)})
			if err == nil {
				a, err = c.Ask(t.Context())
			}
			kit.Must(t, err)
			kit.Check(t, a.Outcome == netlab.Answered, "%s %s: %+v", f, proto, a)
			all = append(all, c)
		}
	})
	p.ends = p.ends[1:]
	p.everywhere(t, []string{"node-d"}, func(service.Family, string) {})
	for _, c := range all {
		a, err := c.Ask(t.Context())
		if err != nil || a.Outcome != netlab.Answered || a.Masqueraded() {
			t.Errorf("%+v, %v", a, err)
		}
	}
}
