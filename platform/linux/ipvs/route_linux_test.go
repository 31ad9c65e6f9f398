// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/condition"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
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
		kit.Must(t, netlink.LinkAdd(l))
		for _, f := range service.Families {
			k := &kernel{family: f}
			kit.Must(t, k.openLinks())
			defer k.close()
			if f == service.IPv6 {
				kit.Must(t, os.WriteFile(disableIPv6.path(), []byte("0\n"), 0o644))
			}
			kit.Must(t, netlink.LinkSetUp(l))
			add := op{verb: addRoute, route: localRoute{addr: addrs[f]}}
			kit.Must(t, k.applyRoute(&add))
			wantRoutes(t, k, true, 1)
			kit.Must(t, netlink.LinkSetDown(l))
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
	kit.Check(t, err == nil && got == usable && len(routes) == n,
		"%s: readRoutes = %t, %v, %v; want %t and %d routes", k.family, got, routes, err, usable, n)
}

// TestMarkRules reads a rule as wg-quick makes it.
func TestMarkRules(t *testing.T) {
	for f, command := range map[service.Family]string{service.IPv4: "-4", service.IPv6: "-6"} {
		netlab.InNamespace(t, func() {
			shared := func(want string) {
				t.Helper()
				got, err := SharedMark(f, 14)
				kit.Check(t, err == nil && (got == "") == (want == "") && strings.Contains(got, want), "%s: %q, %v; want %q", f, got, err, want)
			}
			rule := func(words ...string) {
				t.Helper()
				out, err := exec.Command("ip", append([]string{command, "rule", "add"}, words...)...).CombinedOutput()
				kit.Check(t, err == nil, "%v: %v, %s", words, err, out)
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
	kit.Must(t, complete(s, &mode.Backend{Family: service.IPv6}, b))
	if b.showSharedMark("used"); shown["shared-mark-IPv6"] != "used" {
		t.Errorf("conditions: %v", shown)
	}
}

// onLoopback adds an address to the loopback interface, or removes it.
func onLoopback(t *testing.T, do func(netlink.Link, *netlink.Addr) error, a netip.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = do(lo, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, Flags: unix.IFA_F_NODAD})
	}
	kit.Need(t, err == nil, "address %s: %v", a, err)
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
				kit.Must(t, err)
				var routes []localRoute
				for _, a := range ours {
					routes = append(routes, localRoute{a, source})
				}
				for _, list := range [][]localRoute{s.routes, routes} {
					slices.SortFunc(list, func(a, b localRoute) int { return a.addr.Compare(b.addr) })
				}
				kit.Check(t, slices.Equal(s.routes, routes),
					"%s, %s: addresses of Services %v, want %v", f, when, s.routes, routes)
				nodePort := s.servers[addressAt(outer, 30999, p.Name.Protocol)] != nil
				kit.Check(t, nodePort != slices.Contains(ours, outer), "%s, %s: a NodePort is answered at %s: %t", f, when, outer, nodePort)
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
			addrs, err := k.NodeAddrs(t.Context())
			kit.Check(t, err == nil && slices.Contains(addrs, source), "after a cleanup the node has %v, %v, want %s", addrs, err, source)
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
			kit.Must(t, err)
		}
		p := portsOf(changingSnapshot(service.IPv6, 0), service.IPv6)[0]
		want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{p})
		b := newKernel(t, service.IPv6, alwaysResync())
		apply(t, b, want)
		a.Flags = unix.IFA_F_NODAD
		for _, err := range []error{netlink.AddrDel(link, a), netlink.AddrAdd(link, a)} {
			kit.Must(t, err)
		}
		if source := b.node.source(service.IPv6); source != generate.NodeAddr[1] {
			t.Errorf("the source was %s, want %s", source, generate.NodeAddr[1])
		}
		apply(t, b, want)
		source := b.node.source(service.IPv6)
		kit.Check(t, a.IP.Equal(source.AsSlice()), "the source is %s, want %s", source, a.IP)
		_ = b.Close()
	})
}

// TestInterruptedLists checks that an interrupted list is repeated, but not forever, and
// that any other error is returned at once.
func TestInterruptedLists(t *testing.T) {
	interrupted := fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
	for name, c := range map[string]struct {
		errs  []error // of the first lists; then the last one
		calls int
		want  error
	}{
		"whole at once":        {[]error{nil}, 1, nil},
		"interrupted twice":    {[]error{interrupted, interrupted, nil}, 3, nil},
		"interrupted for ever": {[]error{interrupted}, maxListAttempts, netlink.ErrDumpInterrupted},
		"refused":              {[]error{unix.EPERM}, 1, unix.EPERM},
		"refused after that":   {[]error{interrupted, unix.EPERM}, 2, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			n, err := retryInterrupted(func() (int, error) {
				err := c.errs[min(calls, len(c.errs)-1)]
				calls++
				return calls, err
			})
			kit.Check(t, n == c.calls && calls == c.calls && errors.Is(err, c.want),
				"%d calls, list %d, %v; want %d calls and %v", calls, n, err, c.calls, c.want)
		})
	}
}

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
			kit.Must(t, err)
			defer handle.Close()
			k := &kernel{family: f, links: links{handle}}
			bridge, own := netip.MustParseAddr(c.bridge), netip.MustParseAddr(c.own)
			addLink(t, "docker0", bridge)
			uplink := addLink(t, "eth0", own)
			if addrs, err := k.NodeAddrs(t.Context()); err != nil || !slices.Equal(addrs, []netip.Addr{bridge, own}) {
				t.Errorf("without a default route: %v, %v", addrs, err)
			}
			_, all, _ := net.ParseCIDR(c.all)
			kit.Must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Dst: all, Gw: net.ParseIP(c.gateway)}))
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
		err := do()
		kit.Need(t, err == nil, "%s: %v", name, err)
	}
	return link
}
