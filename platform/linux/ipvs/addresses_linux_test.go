// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// onLoopback adds an address to the loopback interface, or removes it.
func onLoopback(t *testing.T, do func(netlink.Link, *netlink.Addr) error, a netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = do(lo, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD})
	}
	if err != nil {
		t.Fatalf("address %s: %v", a, err)
	}
}

// TestKernelAddressesComeAndGo has an address that is a Service's and the node's own at
// once, from the start or later. Then it belongs to the node and stays when the Service
// is deleted. NodePorts answer there meanwhile.
func TestKernelAddressesComeAndGo(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			p := portsOf(changingSnapshot(f, 0), f)[0]
			outer := []netip.Addr{netip.MustParseAddr("203.0.113.77"), netip.MustParseAddr("2001:db8:77::77")}[f]
			q := *p
			q.Frontends = []service.Frontend{
				p.Frontends[0], {Kind: service.NodePort, Port: 30999},
				{Kind: service.ExternalIP, Addr: outer, Port: 80}, {Kind: service.ExternalIP, Addr: generate.NodeAddr[f], Port: 80},
			}
			want := service.New(1, &service.Node{NodePorts: service.AnyAddress(), Addrs: []netip.Addr{generate.NodeAddr[f]}}, []*service.Port{&q})
			b := newKernel(t, f, Options{MasqueradeBit: 14, SyncPeriod: time.Hour})
			k := b.driver.(*kernel)
			wantOwn := func(when string, source netip.Addr, ours ...netip.Addr) {
				t.Helper()
				apply(t, b, want)
				s, err := k.Read(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var routes []localRoute
				for _, a := range ours {
					routes = append(routes, localRoute{a, source})
				}
				for _, list := range [][]localRoute{s.routes, routes} {
					slices.SortFunc(list, func(a, b localRoute) int { return a.addr.Compare(b.addr) })
				}
				if !slices.Equal(s.routes, routes) {
					t.Errorf("%s, %s: addresses of Services %v, want %v", f, when, s.routes, routes)
				}
				if nodePort := s.servers[addressAt(outer, 30999, p.Name.Protocol)] != nil; nodePort == slices.Contains(ours, outer) {
					t.Errorf("%s, %s: a NodePort is answered at %s: %t", f, when, outer, nodePort)
				}
			}
			cluster, source := p.Frontends[0].Addr, generate.NodeAddr[f]
			wantOwn("at first", source, cluster, outer)
			onLoopback(t, netlink.AddrAdd, outer)
			wantOwn("the node has it, too", source, cluster)
			onLoopback(t, netlink.AddrDel, outer)
			wantOwn("the node has lost it", source, cluster, outer)
			onLoopback(t, netlink.AddrDel, source)
			wantOwn("the node has lost its first one", generate.OtherNodeAddr[f], cluster, source, outer)
			onLoopback(t, netlink.AddrAdd, source)
			wantOwn("the node has its first one again", source, cluster, outer)
			if err := b.Cleanup(t.Context()); err != nil {
				t.Error(err)
			}
			if addrs, err := k.NodeAddrs(t.Context()); err != nil || !slices.Contains(addrs, source) {
				t.Errorf("after a cleanup the node has %v, %v, want %s", addrs, err, source)
			}
			_ = b.Close()
		}
	})
}

// TestKernelTentativeAddress checks that an IPv6 address counts as the node's only after
// duplicate address detection has succeeded.
func TestKernelTentativeAddress(t *testing.T) {
	inNamespace(t, func() {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "veth1"}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db7::1"), Mask: net.CIDRMask(64, 128)}}
		peer := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth1"}}
		const questions = "/proc/sys/net/ipv6/conf/veth0/dad_transmits"
		for _, err := range []error{
			netlink.LinkAdd(link), netlink.LinkSetUp(peer), netlink.LinkSetUp(link),
			os.WriteFile(questions, []byte("100"), 0o644), netlink.AddrAdd(link, a),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		p := portsOf(changingSnapshot(service.IPv6, 0), service.IPv6)[0]
		want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{p})
		b := newKernel(t, service.IPv6, alwaysResync())
		apply(t, b, want)
		a.Flags = unix.IFA_F_NODAD
		for _, err := range []error{netlink.AddrDel(link, a), netlink.AddrAdd(link, a)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if source := b.node.source(service.IPv6); source != generate.NodeAddr[1] {
			t.Errorf("the source was %s, want %s", source, generate.NodeAddr[1])
		}
		apply(t, b, want)
		if source := b.node.source(service.IPv6); !a.IP.Equal(source.AsSlice()) {
			t.Errorf("the source is %s, want %s", source, a.IP)
		}
		_ = b.Close()
	})
}
