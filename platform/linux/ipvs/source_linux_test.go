// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// TestFirstAddressIsTheDefaultRoutes has a node without a name in the API, with a
// container bridge that has the lowest address, and a default route by another
// interface. The source of the node's connections must be the address of that interface.
func TestFirstAddressIsTheDefaultRoutes(t *testing.T) {
	for f, c := range map[service.Family]struct{ bridge, own, gateway, all string }{
		service.IPv4: {"172.17.0.1", "192.168.50.1", "192.168.50.254", "0.0.0.0/0"},
		service.IPv6: {"2001:db7::1", "2001:db8:50::1", "2001:db8:50::254", "::/0"},
	} {
		netlab.InNamespace(t, func() {
			handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
			if err != nil {
				t.Fatal(err)
			}
			defer handle.Close()
			k := &kernel{family: f, links: links{handle}}
			bridge, own := netip.MustParseAddr(c.bridge), netip.MustParseAddr(c.own)
			addLink(t, "docker0", bridge)
			uplink := addLink(t, "eth0", own)
			if addrs, err := k.NodeAddrs(t.Context()); err != nil || !slices.Equal(addrs, []netip.Addr{bridge, own}) {
				t.Errorf("without a default route: %v, %v", addrs, err)
			}
			_, all, _ := net.ParseCIDR(c.all)
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: all, Gw: net.ParseIP(c.gateway)}); err != nil {
				t.Fatal(err)
			}
			if addrs, err := k.NodeAddrs(t.Context()); err != nil || !slices.Equal(addrs, []netip.Addr{own, bridge}) {
				t.Errorf("with one by eth0: %v, %v", addrs, err)
			}
		})
	}
}

// addLink creates an interface with one address.
func addLink(t *testing.T, name string, a netip.Addr) netlink.Link {
	t.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "-far"}
	far := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name + "-far"}}
	bits := 24
	if a.Is6() {
		bits = 64
	}
	of := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}, Flags: unix.IFA_F_NODAD}
	for _, do := range []func() error{
		func() error { return netlink.LinkAdd(link) },
		func() error { return netlink.LinkSetUp(link) },
		func() error { return netlink.LinkSetUp(far) },
		func() error { return netlink.AddrAdd(link, of) },
	} {
		if err := do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return link
}
