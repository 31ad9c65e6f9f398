// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/test/kit"
)

// liveCase describes snapshots of two Services: dns, with a VIP and NodePort 30053, and
// late, with a second VIP and, in one case, NodePort 5400.
type liveCase struct {
	dns, late            []netip.AddrPort
	noDNS, noNodePort    bool
	lateNodePort         bool
	nodePortsOnOtherAddr bool
}

func (l liveCase) snapshot(p *testNet) *service.Snapshot {
	node := &service.Node{NodePorts: service.AnyAddress(), Name: "n", Addrs: []netip.Addr{p.node}}
	if l.nodePortsOnOtherAddr {
		node.NodePorts = []netip.Prefix{netip.PrefixFrom(p.remote, p.remote.BitLen())}
	}
	dns := port("dns", p.family, l.dns, service.Frontend{Kind: service.ClusterIP, Addr: p.vip, Port: 53})
	if !l.noNodePort {
		dns.Frontends = append(dns.Frontends, service.Frontend{Kind: service.NodePort, Port: 30053})
	}
	late := port("late", p.family, l.late, service.Frontend{Kind: service.ClusterIP, Addr: p.vip2, Port: 53})
	if l.lateNodePort {
		late.Frontends = append(late.Frontends, service.Frontend{Kind: service.NodePort, Port: 5400})
	}
	ports := []*service.Port{late}
	if !l.noDNS {
		ports = append(ports, dns)
	}
	return service.New(1, node, ports)
}

// TestSupervise creates entries with real packets. The rules translate dns to endpoint a
// and do not contain late yet.
func TestSupervise(t *testing.T) {
	for _, f := range service.Families {
		p := newAddresses(f)
		a, b, ab := []netip.AddrPort{p.a}, []netip.AddrPort{p.b}, []netip.AddrPort{p.a, p.b}
		vip, nodePort := to(p.vip, 53), to(p.node, 30053)
		tests := map[string]struct {
			before *liveCase // nil if the process just started
			after  liveCase
			gone   []netip.AddrPort
		}{
			"nothing changed":            {&liveCase{dns: ab}, liveCase{dns: ab}, nil},
			"an endpoint came":           {&liveCase{dns: a}, liveCase{dns: ab}, nil},
			"the endpoint left":          {&liveCase{dns: ab}, liveCase{dns: b}, []netip.AddrPort{vip, nodePort}},
			"the last endpoint left":     {&liveCase{dns: a}, liveCase{}, []netip.AddrPort{vip, nodePort}},
			"the Service was deleted":    {&liveCase{dns: a}, liveCase{noDNS: true}, []netip.AddrPort{vip, nodePort}},
			"the NodePort went":          {&liveCase{dns: a}, liveCase{dns: a, noNodePort: true}, []netip.AddrPort{nodePort}},
			"the first endpoint came":    {&liveCase{dns: a}, liveCase{dns: a, late: b}, []netip.AddrPort{to(p.vip2, 53)}},
			"a NodePort came":            {&liveCase{dns: a, late: b}, liveCase{dns: a, late: b, lateNodePort: true}, []netip.AddrPort{to(p.node, 5400)}},
			"start, all well":            {nil, liveCase{dns: a}, []netip.AddrPort{to(p.vip2, 53)}},
			"start, the endpoint left":   {nil, liveCase{dns: b}, []netip.AddrPort{vip, nodePort, to(p.vip2, 53)}},
			"NodePorts on other address": {&liveCase{dns: ab}, liveCase{dns: b, nodePortsOnOtherAddr: true}, []netip.AddrPort{vip, to(p.vip2, 53)}},
		}
		for name, test := range tests {
			t.Run(f.String()+" "+name, func(t *testing.T) {
				isolate(t)
				p := newTestNet(t, f)
				r := &Reconciler{Driver: Netlink{}, Family: f}
				if test.before != nil {
					_, err := r.Sync(t.Context(), test.before.snapshot(p))
					kit.Must(t, err)
				}
				want := p.traffic(test.gone)
				n, err := r.Sync(t.Context(), test.after.snapshot(p))
				kit.Must(t, err)
				if got := p.list(); !cmp.Equal(want, got) || n != len(test.gone) {
					t.Errorf("deleted %d, want %d; entries left (-want +got):\n%s", n, len(test.gone), cmp.Diff(want, got))
				}
			})
		}
	}
}

func to(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// traffic creates entries of every kind. It returns the destinations, without those in
// gone.
func (tn *testNet) traffic(gone []netip.AddrPort) []string {
	tn.t.Helper()
	vip, nodePort := to(tn.vip, 53), to(tn.node, 30053)
	tn.translate(map[netip.AddrPort]netip.AddrPort{vip: tn.a, nodePort: tn.a})
	var want []string
	for dst, by := range map[netip.AddrPort]netip.AddrPort{
		vip:               tn.a,
		nodePort:          tn.a,
		to(tn.node, 5400): to(tn.node, 5400), // a local server of the node
		tn.b:              tn.b,              // an endpoint without a Service
	} {
		got := tn.query(tn.open(dst))
		kit.Need(tn.t, got == by.String(), "%s answered by %s, want %s", dst, got, by)
		if !slices.Contains(gone, dst) {
			want = append(want, dst.String()+" by "+by.String())
		}
	}
	for _, dst := range []netip.AddrPort{
		to(tn.vip2, 53), to(tn.vip2, 54), to(tn.remote, 53), to(tn.remote, 30053), to(tn.remote, 5400),
	} {
		_, err := tn.open(dst).Write([]byte("lost"))
		kit.Must(tn.t, err)
		if !slices.Contains(gone, dst) {
			want = append(want, dst.String()+" by "+dst.String())
		}
	}
	slices.Sort(want)
	return want
}

// TestFind finds the entry of a connection that rules translated, and of none that there is not.
func TestFind(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			isolate(t)
			p := newTestNet(t, f)
			vip := to(p.vip, 53)
			p.translate(map[netip.AddrPort]netip.AddrPort{vip: p.a})
			c := p.open(vip)
			p.query(c)
			from := c.LocalAddr().(*net.UDPAddr).AddrPort()
			from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			got, found, err := Netlink{}.Find(t.Context(), service.UDP, from, vip)
			kit.Check(t, err == nil && found && got.Src == from && got.Dst == vip && got.ReplySrc == p.a && got.Answered, "%+v, %t, %v", got, found, err)
			for _, to := range []netip.AddrPort{p.a, to(p.vip, 54)} {
				got, found, err := (Netlink{}).Find(t.Context(), service.UDP, from, to)
				kit.Check(t, err == nil && !found, "to %s: %+v, %v, want none", to, got, err)
			}
		})
	}
}

// TestBlackHole shows why this package exists: a client that keeps its socket keeps
// sending to a removed endpoint, whatever the rules are.
func TestBlackHole(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			isolate(t)
			p := newTestNet(t, f)
			r := &Reconciler{Driver: Netlink{}, Family: f}
			_, err := r.Sync(t.Context(), liveCase{dns: []netip.AddrPort{p.a}}.snapshot(p))
			kit.Must(t, err)
			p.translate(map[netip.AddrPort]netip.AddrPort{to(p.vip, 53): p.a})
			c := p.open(to(p.vip, 53))
			first := p.query(c)
			p.translate(map[netip.AddrPort]netip.AddrPort{to(p.vip, 53): p.b})
			second := p.query(c)
			_, err = r.Sync(t.Context(), liveCase{dns: []netip.AddrPort{p.b}}.snapshot(p))
			kit.Must(t, err)
			got := []string{first, second, p.query(c)}
			if want := []string{p.a.String(), p.a.String(), p.b.String()}; !cmp.Equal(want, got) {
				t.Errorf("answers (-want +got):\n%s", cmp.Diff(want, got))
			}
		})
	}
}

// testNet is one family's part of a test's network namespace. It has the node's address,
// two endpoints that answer with their own address, and Service addresses that have no
// destination without translation.
type testNet struct {
	t      *testing.T
	family service.Family
	client netip.Addr
	node   netip.Addr
	vip    netip.Addr
	vip2   netip.Addr
	remote netip.Addr // of another machine
	a, b   netip.AddrPort
}

func newAddresses(f service.Family) testNet {
	ip := netip.MustParseAddr
	p := testNet{family: f, client: ip("192.0.2.9"), node: ip("192.0.2.1"), vip: ip("10.96.0.10"),
		vip2: ip("10.96.0.11"), remote: ip("198.51.100.7")}
	a, b := ip("10.244.1.1"), ip("10.244.1.2")
	if f == service.IPv6 {
		p = testNet{family: f, client: ip("2001:db8::9"), node: ip("2001:db8::1"), vip: ip("fd00:96::10"),
			vip2: ip("fd00:96::11"), remote: ip("2001:db8:100::7")}
		a, b = ip("fd00:244::1"), ip("fd00:244::2")
	}
	p.a, p.b = netip.AddrPortFrom(a, 5353), netip.AddrPortFrom(b, 5353)
	return p
}

// isolate moves the rest of the test into a new network namespace. The thread stays
// locked, so it ends with the test.
func isolate(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	runtime.LockOSThread()
	kit.Must(t, unix.Unshare(unix.CLONE_NEWNET))
}

// newTestNet sets up the namespace and starts the endpoints.
func newTestNet(t *testing.T, f service.Family) *testNet {
	t.Helper()
	p := newAddresses(f)
	p.t = t
	kit.Must(t, rtnl.LinkAdd(&rtnl.Veth{LinkAttrs: rtnl.LinkAttrs{Name: "out"}, PeerName: "nowhere"}))
	for _, name := range []string{"lo", "nowhere", "out"} {
		link, err := rtnl.LinkByName(name)
		kit.Must(t, err)
		kit.Must(t, rtnl.LinkSetUp(link))
		switch name {
		case "lo":
			for _, a := range []netip.Addr{p.client, p.node, p.a.Addr(), p.b.Addr()} {
				kit.Must(t, rtnl.AddrAdd(link, &rtnl.Addr{IPNet: single(a), Flags: unix.IFA_F_NODAD}))
			}
		case "out":
			for _, dst := range []netip.Addr{p.vip, p.vip2, p.remote} {
				kit.Must(t, rtnl.RouteAdd(&rtnl.Route{LinkIndex: link.Attrs().Index, Dst: single(dst)}))
			}
		}
	}
	p.waitForAddresses()
	for _, at := range []netip.AddrPort{p.a, p.b, netip.AddrPortFrom(p.node, 5400)} {
		p.echo(at)
	}
	return &p
}

// waitForAddresses waits until the addresses work. IPv6 adds their routes a moment later.
func (tn *testNet) waitForAddresses() {
	tn.t.Helper()
	deadline := time.After(time.Minute)
	for _, a := range []netip.Addr{tn.client, tn.node, tn.a.Addr(), tn.b.Addr()} {
		for {
			is, err := Netlink{}.Local(tn.t.Context(), a)
			kit.Must(tn.t, err)
			if is {
				break
			}
			select {
			case <-deadline:
				tn.t.Fatalf("address %s is not there after a minute", a)
			case <-time.After(time.Millisecond):
			}
		}
	}
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// echo answers every packet with its destination address.
func (tn *testNet) echo(at netip.AddrPort) {
	tn.t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	kit.Must(tn.t, err)
	tn.t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 64)
		for {
			_, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort([]byte(at.String()), from)
		}
	}()
}

// translate redirects new flows from each key to its value, and no others.
func (tn *testNet) translate(to map[netip.AddrPort]netip.AddrPort) {
	tn.t.Helper()
	c, err := nftables.New()
	kit.Must(tn.t, err)
	t := &nftables.Table{Name: "test", Family: nftables.TableFamilyIPv4}
	if tn.family == service.IPv6 {
		t.Family = nftables.TableFamilyIPv6
	}
	c.AddTable(t)
	c.DelTable(t)
	c.AddTable(t)
	chain := c.AddChain(&nftables.Chain{Name: "output", Table: t, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest})
	for from, dst := range to {
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: tn.dnat(from, dst)})
	}
	kit.Must(tn.t, c.Flush())
}

func (tn *testNet) dnat(from, to netip.AddrPort) []expr.Any {
	offset, family := uint32(16), uint32(unix.NFPROTO_IPV4)
	if tn.family == service.IPv6 {
		offset, family = 24, unix.NFPROTO_IPV6
	}
	addr := from.Addr().AsSlice()
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(addr))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(from.Port())},
		&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: 1, RegProtoMin: 2},
	}
}

// open returns a socket connected to dst.
func (tn *testNet) open(dst netip.AddrPort) *net.UDPConn {
	tn.t.Helper()
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(tn.client, 0)), net.UDPAddrFromAddrPort(dst))
	kit.Must(tn.t, err)
	tn.t.Cleanup(func() { c.Close() })
	return c
}

// query sends a packet and returns the answer.
func (tn *testNet) query(c *net.UDPConn) string {
	tn.t.Helper()
	_, err := c.Write([]byte("who"))
	kit.Must(tn.t, err)
	kit.Must(tn.t, c.SetReadDeadline(time.Now().Add(15*time.Second)))
	b := make([]byte, 64)
	n, err := c.Read(b)
	kit.Must(tn.t, err)
	return string(b[:n])
}

// list returns the original destinations of all entries, sorted.
func (tn *testNet) list() []string {
	tn.t.Helper()
	var all []string
	kit.Must(tn.t, Netlink{}.Dump(tn.t.Context(), Filter{Family: tn.family}, func(f Flow) {
		if f.Protocol == service.UDP {
			all = append(all, f.Dst.String()+" by "+f.ReplySrc.String())
		}
	}))
	slices.Sort(all)
	return all
}

// inject adds entries for flows that never existed.
func inject(t testing.TB, flows []Flow) {
	t.Helper()
	for part := range slices.Chunk(flows, 500) {
		var e netlink.Encoder
		for _, f := range part {
			e.Message(subsystem|msgNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
			e.Buf = append(e.Buf, encodeNew(f)...)
			e.EndMessage()
		}
		e.AddFlags(unix.NLM_F_ACK)
		s, err := dial(t.Context())
		kit.Must(t, err)
		kit.Must(t, s.Transact(e.Buf))
		s.Close()
	}
}

// infoOf is the attribute that holds the state of each protocol.
var infoOf = map[service.Protocol]uint16{service.TCP: ctaProtoInfoTCP, service.SCTP: ctaProtoInfoSCTP}

// encodeNew returns the payload that adds f with a timeout of one hour.
func encodeNew(f Flow) []byte {
	const ctaTimeout, confirmed, assured = 7, 1 << 3, 1 << 2
	status := uint32(confirmed)
	if f.Answered {
		status |= statusSeenReply | assured
	}
	e := payload(service.FamilyOf(f.Dst.Addr()))
	encodeTuple(e, ctaTupleOrig, tuple{
		protocol: f.Protocol, src: f.Src.Addr(), dst: f.Dst.Addr(), from: f.Src.Port(), to: f.Dst.Port(),
	})
	encodeTuple(e, ctaTupleReply, tuple{
		protocol: f.Protocol, src: f.ReplySrc.Addr(), dst: f.ReplyDst.Addr(), from: f.ReplySrc.Port(), to: f.ReplyDst.Port(),
	})
	e.Uint32(ctaStatus, status)
	e.Uint32(ctaTimeout, 3600)
	if f.State != 0 {
		info := e.Nest(ctaProtoInfo)
		protocol := e.Nest(infoOf[f.Protocol])
		e.Uint8(ctaProtoInfoState, f.State)
		if f.Owed {
			e.Bytes(ctaProtoInfoFlags, []byte{unacknowledged, unacknowledged})
		}
		if f.Protocol == service.SCTP { // the kernel also needs the verification tags of both sides
			e.Uint32(2, 1)
			e.Uint32(3, 1)
		}
		e.EndNest(protocol)
		e.EndNest(info)
	}
	if f.Zone != 0 {
		e.Uint16(ctaZone, f.Zone)
	}
	return e.Buf
}

// table returns n flows with a reply, to 100 Services with ten endpoints each.
func table(n int) []Flow {
	flows := make([]Flow, n)
	for i := range flows {
		s, e := i%100, i/100%10
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 10, 0, byte(i >> 14)}), uint16(1024+i&(1<<14-1)))
		flows[i] = Flow{Protocol: service.UDP, Src: src, Dst: tableVIP(s), ReplySrc: tableEndpoint(s, e), ReplyDst: src, Answered: true}
	}
	return flows
}

func tableVIP(s int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(s)}), 53)
}

func tableEndpoint(s, e int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(s), byte(e)}), 53)
}

// tableService returns Service s with all endpoints but one.
func tableService(s, without int) *service.Port {
	var endpoints []netip.AddrPort
	for e := range 10 {
		if e != without {
			endpoints = append(endpoints, tableEndpoint(s, e))
		}
	}
	return port(tableVIP(s).String(), service.IPv4, endpoints,
		service.Frontend{Kind: service.ClusterIP, Addr: tableVIP(s).Addr(), Port: 53})
}

// BenchmarkReconcile deletes the 100 flows to one of 1,000 endpoints from a table of
// 100,000 entries.
func BenchmarkReconcile(b *testing.B) {
	const entries, stale = 100_000, 100
	var ports []*service.Port
	for s := range 100 {
		without := -1
		if s == 0 {
			without = 0
		}
		ports = append(ports, tableService(s, without))
	}
	now := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	for name, rules := range map[string][]Rule{
		"one Service changed": Changes(tableService(0, -1), ports[0]),
		"all looked at":       All(now, service.IPv4),
	} {
		b.Run(name, func(b *testing.B) {
			isolate(b)
			all := table(entries)
			lost := slices.DeleteFunc(slices.Clone(all), func(f Flow) bool { return f.ReplySrc != tableEndpoint(0, 0) })
			inject(b, all)
			r := &Reconciler{Driver: Netlink{}}
			b.ReportAllocs()
			for b.Loop() {
				n, err := r.Reconcile(b.Context(), rules, now)
				kit.Need(b, n == stale && err == nil, "Reconcile = %d, %v, want %d", n, err, stale)
				b.StopTimer()
				inject(b, lost)
				b.StartTimer()
			}
		})
	}
}
