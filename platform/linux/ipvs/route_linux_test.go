// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// TestRoutesOfAnInterfaceThatIsDown checks that routes are listed as long as the kernel has
// them: those of IPv4 stay in force. The interface is none that we would make, as the kernel
// may lack that type.
func TestRoutesOfAnInterfaceThatIsDown(t *testing.T) {
	addrs := [...]netip.Addr{service.IPv4: netip.MustParseAddr("10.96.0.1"), service.IPv6: netip.MustParseAddr("fd00::1")}
	stays := [...]bool{service.IPv4: true, service.IPv6: false}
	netlab.InNamespace(t, func() {
		a := netlink.NewLinkAttrs()
		a.Name = Device
		l := &netlink.Veth{LinkAttrs: a, PeerName: "other"}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		for _, f := range service.Families {
			k := &kernel{family: f}
			if err := k.openLinks(); err != nil {
				t.Fatal(err)
			}
			defer k.close()
			if f == service.IPv6 {
				if err := os.WriteFile(disableIPv6.path(), []byte("0\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := netlink.LinkSetUp(l); err != nil {
				t.Fatal(err)
			}
			add := op{verb: addRoute, route: localRoute{addr: addrs[f]}}
			if err := k.applyRoute(&add); err != nil {
				t.Fatal(err)
			}
			wantRoutes(t, k, true, 1)
			if err := netlink.LinkSetDown(l); err != nil {
				t.Fatal(err)
			}
			want := 0
			if stays[f] {
				want = 1
			}
			wantRoutes(t, k, false, want)
		}
	})
}

// wantRoutes checks what readRoutes returns: whether the interface is usable, and how many
// routes there are.
func wantRoutes(t *testing.T, k *kernel, usable bool, n int) {
	t.Helper()
	got, routes, err := k.readRoutes()
	if err != nil || got != usable || len(routes) != n {
		t.Errorf("%s: readRoutes = %t, %v, %v; want %t and %d routes", k.family, got, routes, err, usable, n)
	}
}
