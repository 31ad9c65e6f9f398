// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/condition"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
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

// TestMarkRules reads a rule as wg-quick makes it.
func TestMarkRules(t *testing.T) {
	for f, command := range map[service.Family]string{service.IPv4: "-4", service.IPv6: "-6"} {
		netlab.InNamespace(t, func() {
			shared := func(want string) {
				t.Helper()
				if got, err := SharedMark(f, 14); err != nil || (got == "") != (want == "") || !strings.Contains(got, want) {
					t.Errorf("%s: %q, %v; want %q", f, got, err, want)
				}
			}
			rule := func(words ...string) {
				t.Helper()
				if out, err := exec.Command("ip", append([]string{command, "rule", "add"}, words...)...).CombinedOutput(); err != nil {
					t.Errorf("%v: %v, %s", words, err, out)
				}
			}
			rule("from", "all", "lookup", "7")
			rule("fwmark", "1", "lookup", "100")
			rule("fwmark", "0x200/0xf00", "lookup", "2004")
			shared("")
			rule("pref", "32764", "not", "fwmark", "51820", "table", "51820")
			shared(`"32764: not fwmark 0xca6c lookup 51820"`)
		})
	}
}

// TestSharedMarkIsCondition checks what mode ipvs gives to the proxy.
func TestSharedMarkIsCondition(t *testing.T) {
	shown, b := map[condition.Name]string{}, &Backend{}
	s := mode.Setup{Config: &config.Config{}, DetailedCondition: func(name condition.Name) func(text, detail string) {
		return func(text, _ string) { shown[name] = text }
	}}
	if err := complete(s, &mode.Backend{Family: service.IPv6}, b); err != nil {
		t.Fatal(err)
	}
	if b.showSharedMark("used"); shown["shared-mark-IPv6"] != "used" {
		t.Errorf("conditions: %v", shown)
	}
}
