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
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// alwaysResync makes each sync read the kernel state.
func alwaysResync() Options { return Options{MasqueradeBit: 14, SyncPeriod: time.Nanosecond} }

// tampering is one foreign change in the kernel.
type tampering struct {
	do    func(*testing.T, *kernel, service.Address)
	drift string // expected in the drift
}

// tamperByOp is a tampering by one op.
func tamperByOp(o op) func(*testing.T, *kernel, service.Address) {
	return func(t *testing.T, k *kernel, at service.Address) {
		o.key, o.route.addr = at, at.Addr
		if failed := k.Commit(t.Context(), []op{o}); len(failed) > 0 {
			t.Fatalf("%s: %v", o.text(), failed[0])
		}
	}
}

// tamperForwarding changes the forwarding method of a destination from masquerading to
// another one.
func tamperForwarding(a netip.AddrPort) func(*testing.T, *kernel, service.Address) {
	return func(t *testing.T, k *kernel, at service.Address) {
		x := &ipvs.Destination{
			Address: a.Addr().AsSlice(), Port: a.Port(), Weight: 1,
			ConnectionFlags: ipvs.ConnectionFlagDirectRoute, AddressFamily: af(k.family),
		}
		of := &ipvs.Service{
			Address: at.Addr.AsSlice(), Protocol: uint16(at.Protocol), Port: at.Port,
			AddressFamily: af(k.family), Netmask: netmask(k.family),
		}
		kit.Must(t, newMobyHandle(t).UpdateDestination(of, x))
	}
}

func tamperLink(change func(netlink.Link) error) func(*testing.T, *kernel, service.Address) {
	return func(t *testing.T, k *kernel, _ service.Address) {
		l, err := k.links.LinkByName(Device)
		if err == nil {
			err = change(l)
		}
		kit.Must(t, err)
	}
}

func tamperings(f service.Family) map[string]tampering {
	first := []netip.AddrPort{netip.MustParseAddrPort("10.244.1.1:8080"), addrPort6(0)}[f]
	foreign := netip.AddrPortFrom(first.Addr(), 9999)
	return map[string]tampering{
		"a virtual server goes":        {tamperByOp(op{verb: delServer}), "missing: virtual server "},
		"its scheduler changes":        {tamperByOp(op{verb: setServer, server: server{scheduler: "wlc", flags: flagOwned}}), "altered: virtual server "},
		"it stops being ours":          {tamperByOp(op{verb: setServer, server: server{scheduler: "rr"}}), "altered: virtual server "},
		"a destination goes":           {tamperByOp(op{verb: delDest, dest: dest{addr: first}}), "missing: destination " + first.String()},
		"its weight changes":           {tamperByOp(op{verb: setDest, dest: dest{addr: first, weight: 9}}), "has weight 1"},
		"it is to drain":               {tamperByOp(op{verb: setDest, dest: dest{addr: first}}), "has weight 1"},
		"it is to be reached directly": {tamperForwarding(first), "has weight 1"},
		"one comes":                    {tamperByOp(op{verb: addDest, dest: dest{addr: foreign, weight: 1}}), foreign.String()},
		"an address goes":              {tamperByOp(op{verb: delRoute}), "missing: address "},
		"the interface is set down":    {tamperLink(netlink.LinkSetDown), "missing: interface " + Device},
		"the interface goes entirely":  {tamperLink(netlink.LinkDel), "missing: interface " + Device},
	}
}

// TestKernelDrift checks that foreign changes of virtual servers, destinations and
// addresses are found, reported and undone.
func TestKernelDrift(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			want := changingSnapshot(f, 0)
			b, other := newKernel(t, f, alwaysResync()), newKernel(t, f, alwaysResync())
			apply(t, b, want)
			at := addressAt(portsOf(want, f)[0].Frontends[0].Addr, 80, service.TCP)
			for name, m := range tamperings(f) {
				m.do(t, other.driver.(*kernel), at)
				p := planOf(t, b, want)
				if drift := p.Outcome().Drift; !slices.ContainsFunc(drift, func(s string) bool { return strings.Contains(s, m.drift) }) {
					t.Errorf("%s, %s: the drift is %q, want %q", f, name, drift, m.drift)
				}
				if err := p.Apply(t.Context()).Err; err != nil {
					t.Errorf("%s, %s: %v", f, name, err)
				}
				wantConverged(t, b, want)
			}
			_, _ = b.Close(), other.Close()
		}
	})
}

// wantConverged runs two clean syncs, the second of which deletes what the first lets
// drain, and checks that a new process finds nothing to do.
func wantConverged(t fataler, b *Backend, want *service.Snapshot) {
	for range 2 {
		b.lastDrainCheck = time.Time{}
		apply(t, b, want)
	}
	fresh := newKernel(t, b.family, alwaysResync())
	generate.RequireNoChange(t, fresh, want)
	_ = fresh.Close()
}

// TestKernelWeightsAfterRestart checks that a new process restores the weight of
// endpoints that an earlier one let drain.
func TestKernelWeightsAfterRestart(t *testing.T) {
	inNamespace(t, func() {
		three := web(0, 3, service.TCP)
		all := snapshot(three)
		b := newKernel(t, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
		apply(t, b, all)
		apply(t, b, all.With(2, all.Node, []service.Change{{Old: three, New: web(0, 1, service.TCP)}}))
		next := newKernel(t, service.IPv4, alwaysResync())
		wantLines(t, apply(t, next, all),
			"~ destination 10.244.1.2:8080 of 10.96.0.0:80 tcp has weight 1", "~ destination 10.244.1.3:8080 of 10.96.0.0:80 tcp has weight 1")
		wantConverged(t, next, all)
		_, _ = b.Close(), next.Close()
	})
}

// TestKernelExcluded checks that a foreign virtual server in an excluded prefix stays,
// also on the address of a Service, and that this is reported.
func TestKernelExcluded(t *testing.T) {
	inNamespace(t, func() {
		o := alwaysResync()
		o.Exclude = []netip.Prefix{netip.PrefixFrom(generate.NthAddr("10.96.0.0", 1), 32)}
		b, other := newKernel(t, service.IPv4, o), newKernel(t, service.IPv4, o)
		at := addressAt(generate.NthAddr("10.96.0.0", 1), 80, service.TCP)
		tamperByOp(op{verb: addServer, server: server{scheduler: "wlc"}})(t, other.driver.(*kernel), at)
		want := snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
		err := planOf(t, b, want).Apply(t.Context()).Err
		if failed := reconcile.PortErrors(err); len(failed) != 1 || failed[0].Name.Name != "web-1" {
			t.Errorf("Apply = %v, want that web-1 cannot be had", err)
		}
		if err := b.Cleanup(t.Context()); err != nil {
			t.Error(err)
		}
		s, err := other.driver.Read(t.Context())
		kit.Check(t, err == nil && len(s.servers) == 1 && s.servers[at] != nil && s.servers[at].scheduler == "wlc",
			"after a cleanup there is %v, %v, want that of the other program", s.servers, err)
		_, _ = b.Close(), other.Close()
	})
}

// TestKernelIPv6Disabled checks that our interface has IPv6 where the default disables
// it for new interfaces, and again after another process disables it. Where IPv6 is
// disabled altogether, nothing fails.
func TestKernelIPv6Disabled(t *testing.T) {
	inNamespace(t, func() {
		disable := func(on string) {
			kit.Must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+on+"/disable_ipv6", []byte("1"), 0o644))
		}
		disable("default")
		want := changingSnapshot(service.IPv6, 0)
		b := newKernel(t, service.IPv6, alwaysResync())
		apply(t, b, want)
		wantConverged(t, b, want)
		for _, on := range []string{Device, "all"} {
			disable(on)
			p := planOf(t, b, want)
			if drift := p.Outcome().Drift; !slices.Contains(drift, "missing: interface "+Device) {
				t.Errorf("disabled on %s: the drift is %q", on, drift)
			}
			if err := p.Apply(t.Context()).Err; err != nil {
				t.Errorf("disabled on %s: %v", on, err)
			}
			wantConverged(t, b, want)
		}
		_ = b.Close()
	})
}
