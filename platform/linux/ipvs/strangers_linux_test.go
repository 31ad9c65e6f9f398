// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/world"
)

// always has the kernel asked in each round.
func always() Options { return Options{MasqueradeBit: 14, SyncPeriod: time.Nanosecond} }

// meddling is one thing that a stranger does in the kernel.
type meddling struct {
	do   func(*testing.T, *kernel, key)
	says string // in the drift
}

// step is a meddling that is one step.
func step(o op) func(*testing.T, *kernel, key) {
	return func(t *testing.T, k *kernel, at key) {
		o.key, o.route.addr = at, at.addr
		if failed := k.Commit(t.Context(), []op{o}); len(failed) > 0 {
			t.Fatalf("%s: %v", o.text(), failed[0])
		}
	}
}

// direct has a destination reached without masquerading.
func direct(a netip.AddrPort) func(*testing.T, *kernel, key) {
	return func(t *testing.T, k *kernel, at key) {
		x := &ipvs.Destination{
			Address: a.Addr().AsSlice(), Port: a.Port(), Weight: 1,
			ConnectionFlags: ipvs.ConnectionFlagDirectRoute, AddressFamily: af(k.family),
		}
		of := &ipvs.Service{
			Address: at.addr.AsSlice(), Protocol: uint16(at.proto), Port: at.port,
			AddressFamily: af(k.family), Netmask: netmask(k.family),
		}
		if err := library(t).UpdateDestination(of, x); err != nil {
			t.Fatal(err)
		}
	}
}

func link(change func(netlink.Link) error) func(*testing.T, *kernel, key) {
	return func(t *testing.T, k *kernel, _ key) {
		l, err := k.links.LinkByName(Device)
		if err == nil {
			err = change(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func meddlings(f service.Family) map[string]meddling {
	first := []netip.AddrPort{netip.MustParseAddrPort("10.244.1.1:8080"), addrPort6(0)}[f]
	stray := netip.AddrPortFrom(first.Addr(), 9999)
	return map[string]meddling{
		"a virtual server goes":        {step(op{verb: delServer}), "missing: virtual server "},
		"its scheduler changes":        {step(op{verb: setServer, server: server{scheduler: "wlc", flags: flagOurs}}), "altered: virtual server "},
		"it stops being ours":          {step(op{verb: setServer, server: server{scheduler: "rr"}}), "altered: virtual server "},
		"a destination goes":           {step(op{verb: delDest, dest: dest{addr: first}}), "missing: destination " + first.String()},
		"its weight changes":           {step(op{verb: setDest, dest: dest{addr: first, weight: 9}}), "has weight 1"},
		"it is to drain":               {step(op{verb: setDest, dest: dest{addr: first}}), "has weight 1"},
		"it is to be reached directly": {direct(first), "has weight 1"},
		"one comes":                    {step(op{verb: addDest, dest: dest{addr: stray, weight: 1}}), stray.String()},
		"an address goes":              {step(op{verb: delRoute}), "missing: address "},
		"the interface is set down":    {link(netlink.LinkSetDown), "missing: interface " + Device},
		"the interface goes entirely":  {link(netlink.LinkDel), "missing: interface " + Device},
	}
}

// What a stranger does to virtual servers, destinations and addresses is found,
// told and undone.
func TestKernelDrift(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			want := rounds(f, 0)
			b, stranger := newKernel(t, f, always()), newKernel(t, f, always())
			apply(t, b, want)
			at := key{portsOf(want, f)[0].Frontends[0].Addr, 80, service.TCP}
			for name, m := range meddlings(f) {
				m.do(t, stranger.driver.(*kernel), at)
				p := planOf(t, b, want)
				if drift := p.Drift(); !slices.ContainsFunc(drift, func(s string) bool { return strings.Contains(s, m.says) }) {
					t.Errorf("%s, %s: the drift is %q, want %q", f, name, drift, m.says)
				}
				if err := p.Apply(t.Context()); err != nil {
					t.Errorf("%s, %s: %v", f, name, err)
				}
				wantNothingLeft(t, b, want)
			}
			_, _ = b.Close(), stranger.Close()
		}
	})
}

// wantNothingLeft does clean rounds, the second of which removes what the first
// has drain, and wants a process that knows nothing to find nothing to do.
func wantNothingLeft(t fataler, b *Backend, want *service.Snapshot) {
	for range 2 {
		b.looked = time.Time{}
		apply(t, b, want)
	}
	fresh := newKernel(t, b.family, always())
	world.Adopted(t, fresh, want)
	_ = fresh.Close()
}

// A process that starts gives endpoints their weight that an earlier one had
// drain.
func TestKernelWeightsAfterRestart(t *testing.T) {
	inNamespace(t, func() {
		three := web(0, 3, service.TCP)
		all := snapshot(three)
		b := newKernel(t, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
		apply(t, b, all)
		apply(t, b, all.With(2, all.Node, []service.Change{{Old: three, New: web(0, 1, service.TCP)}}))
		next := newKernel(t, service.IPv4, always())
		wantLines(t, apply(t, next, all),
			"~ destination 10.244.1.2:8080 of 10.96.0.0:80 tcp has weight 1", "~ destination 10.244.1.3:8080 of 10.96.0.0:80 tcp has weight 1")
		wantNothingLeft(t, next, all)
		_, _ = b.Close(), next.Close()
	})
}

// In an excluded prefix, a virtual server of somebody else stays, on the
// address of a Service, too, which is told.
func TestKernelExcluded(t *testing.T) {
	inNamespace(t, func() {
		o := always()
		o.Exclude = []netip.Prefix{netip.PrefixFrom(world.Nth("10.96.0.0", 1), 32)}
		b, stranger := newKernel(t, service.IPv4, o), newKernel(t, service.IPv4, o)
		at := key{world.Nth("10.96.0.0", 1), 80, service.TCP}
		step(op{verb: addServer, server: server{scheduler: "wlc"}})(t, stranger.driver.(*kernel), at)
		want := snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
		err := planOf(t, b, want).Apply(t.Context())
		if failed := reconcile.Failed(err); len(failed) != 1 || failed[0].Name.Name != "web-1" {
			t.Errorf("Apply = %v, want that web-1 cannot be had", err)
		}
		if err := b.Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		s, err := stranger.driver.Read(t.Context())
		if err != nil || len(s.servers) != 1 || s.servers[at] == nil || s.servers[at].scheduler != "wlc" {
			t.Errorf("after a cleanup there is %v, %v, want the stranger's own", s.servers, err)
		}
		_, _ = b.Close(), stranger.Close()
	})
}

// Where new interfaces are to have no IPv6, ours has it, and again when somebody
// takes it. Where IPv6 is disabled altogether, nothing fails.
func TestKernelIPv6Disabled(t *testing.T) {
	inNamespace(t, func() {
		disable := func(on string) {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+on+"/disable_ipv6", []byte("1"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		disable("default")
		want := rounds(service.IPv6, 0)
		b := newKernel(t, service.IPv6, always())
		apply(t, b, want)
		wantNothingLeft(t, b, want)
		for _, on := range []string{Device, "all"} {
			disable(on)
			p := planOf(t, b, want)
			if drift := p.Drift(); !slices.Contains(drift, "missing: interface "+Device) {
				t.Errorf("disabled on %s: the drift is %q", on, drift)
			}
			if err := p.Apply(t.Context()); err != nil {
				t.Errorf("disabled on %s: %v", on, err)
			}
			wantNothingLeft(t, b, want)
		}
		_ = b.Close()
	})
}
