// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
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
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
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
				err := p.Apply(t.Context()).Err
				kit.Check(t, err == nil, "%s, %s: %v", f, name, err)
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
		failed := reconcile.PortErrors(err)
		kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "web-1", "Apply = %v, want that web-1 cannot be had", err)
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
			drift := p.Outcome().Drift
			kit.Check(t, slices.Contains(drift, "missing: interface "+Device), "disabled on %s: the drift is %q", on, drift)
			err := p.Apply(t.Context()).Err
			kit.Check(t, err == nil, "disabled on %s: %v", on, err)
			wantConverged(t, b, want)
		}
		_ = b.Close()
	})
}

// TestKernelSettings checks that the kernel gets the configured timeouts, and that
// others keep the value that another process set. The same holds for ARP.
func TestKernelSettings(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4, alwaysResync())
		h := newMobyHandle(t)
		kit.Must(t, h.SetConfig(&ipvs.Config{TimeoutTCP: 700 * time.Second, TimeoutTCPFin: 33 * time.Second, TimeoutUDP: 44 * time.Second}))
		apply(t, b, snapshot())
		wantTimeouts(t, h, ipvs.Config{TimeoutTCP: 700 * time.Second, TimeoutTCPFin: 33 * time.Second, TimeoutUDP: 44 * time.Second})
		wantARP(t, "0", "0")
		_ = b.Close()

		o := alwaysResync()
		o.TCP, o.UDP, o.StrictARP = 100*time.Second, 1500*time.Millisecond, true
		b = newKernel(t, service.IPv4, o)
		p := planOf(t, b, snapshot())
		for _, want := range []string{
			"+ setting timeout of TCP = 1m40s", "+ setting timeout of UDP = 1.5s",
			"+ setting net.ipv4.conf.all.arp_ignore = 1", "+ setting net.ipv4.conf.all.arp_announce = 2",
		} {
			if !slices.Contains(lines(p), want) {
				t.Errorf("the plan has no %q:\n%s", want, p.Changes())
			}
		}
		kit.Must(t, p.Apply(t.Context()).Err)
		wantTimeouts(t, h, ipvs.Config{TimeoutTCP: 100 * time.Second, TimeoutTCPFin: 33 * time.Second, TimeoutUDP: 2 * time.Second})
		wantARP(t, "1", "2")
		wantAllSettings(t, b)
		_ = b.Close()
	})
}

// TestKernelIsPrepared checks that a proxy which can make no settings finds them as it needs
// them.
func TestKernelIsPrepared(t *testing.T) {
	inNamespace(t, func() {
		o := alwaysResync()
		o.StrictARP = true
		kit.Must(t, Prepare(t.Context(), o))
		wantARP(t, "1", "2")
		b := newKernel(t, service.IPv4, o)
		wantAllSettings(t, b)
		_ = b.Close()
	})
}

// TestKernelKeepsSettings checks that foreign changes of IPVS settings are found,
// reported and undone. A foreign change of the ARP settings stays.
func TestKernelKeepsSettings(t *testing.T) {
	inNamespace(t, func() {
		o := alwaysResync()
		o.TCP, o.StrictARP = 100*time.Second, true
		b := newKernel(t, service.IPv6, o)
		h := newMobyHandle(t)
		apply(t, b, snapshot())
		for _, s := range o.settings(scopeStartup) {
			kit.Must(t, os.WriteFile(s.path(), []byte("0"), 0o644))
		}
		kit.Must(t, h.SetConfig(&ipvs.Config{TimeoutTCP: 5 * time.Second}))
		p := planOf(t, b, snapshot())
		want := []string{
			"altered: setting net.ipv4.vs.conntrack = 1", "altered: setting net.ipv4.vs.expire_nodest_conn = 1",
			"altered: setting net.ipv4.vs.expire_quiescent_template = 1", "altered: setting timeout of TCP = 1m40s",
		}
		drift := p.Outcome().Drift
		kit.Check(t, slices.Equal(drift, want), "the drift is %q, want %q", drift, want)
		kit.Must(t, p.Apply(t.Context()).Err)
		all, err := b.driver.MissingSettings(t.Context(), scopeRunning)
		kit.Check(t, len(all) == 0 && err == nil, "settings are lacking: %q, %v", all, err)
		wantARP(t, "0", "0")
		if p := planOf(t, b, snapshot()); !p.Empty() || len(p.Outcome().Drift) > 0 {
			t.Errorf("and then there is more to do, %q:\n%s", p.Outcome().Drift, p.Changes())
		}
		_ = b.Close()
	})
}

// TestRefusedSetting checks that a setting that cannot be set is reported once.
func TestRefusedSetting(t *testing.T) {
	k := &kernel{refused: map[string]bool{}}
	for _, s := range k.options.settings(scopeRunning) {
		k.refused[s.file] = true
	}
	all, err := k.MissingSettings(t.Context(), scopeRunning)
	kit.Check(t, len(all) == 0 && err == nil, "settings are lacking: %q, %v", all, err)
	err = k.ApplySettings(t.Context(), scopeRunning)
	kit.Check(t, err == nil, "%v", err)
}

func wantTimeouts(t *testing.T, h *ipvs.Handle, want ipvs.Config) {
	t.Helper()
	c, err := h.GetConfig()
	kit.Must(t, err)
	if *c != want {
		t.Errorf("the kernel's timeouts are %+v, want %+v", *c, want)
	}
}

func wantARP(t *testing.T, ignore, announce string) {
	t.Helper()
	for file, want := range map[string]string{"net/ipv4/conf/all/arp_ignore": ignore, "net/ipv4/conf/all/arp_announce": announce} {
		have, err := (setting{file: file}).current()
		kit.Check(t, err == nil && have == want, "%s is %s, %v, want %s", file, have, err, want)
	}
}

// wantAllSettings checks that all settings are in place.
func wantAllSettings(t *testing.T, b *Backend) {
	t.Helper()
	all, err := b.driver.MissingSettings(t.Context(), scopeStartup)
	kit.Check(t, len(all) == 0 && err == nil, "settings are lacking: %q, %v", all, err)
}

// TestKernelDrains checks that a connection to a removed endpoint continues, and that
// the endpoint is deleted when the connection ends or DrainTimeout has passed.
func TestKernelDrains(t *testing.T) {
	inNamespace(t, func() {
		for name, end := range map[string]func(net.Conn, *time.Duration){
			"the connection ends": func(c net.Conn, _ *time.Duration) { c.(*net.TCPConn).SetLinger(0); c.Close() },
			"the time is over":    func(_ net.Conn, passed *time.Duration) { *passed = DrainTimeout },
		} {
			passed := time.Duration(0)
			b := newKernel(t, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: 2 * DrainTimeout})
			b.now = func() time.Time { return time.Now().Add(passed) }
			at := netip.AddrPortFrom(generate.NodeAddr[0], 8080)
			echo := listen(t, at)
			full := web(0, 0, service.TCP)
			full.Cluster = []service.Endpoint{{Addr: at}}
			first := snapshot(full)
			apply(t, b, first)
			c, err := net.Dial("tcp", netip.AddrPortFrom(full.Frontends[0].Addr, 80).String())
			kit.Need(t, err == nil, "%s: %v", name, err)
			wantEcho(t, c)
			none := first.With(2, first.Node, []service.Change{{Old: full, New: web(0, 0, service.TCP)}})
			apply(t, b, none)
			b.lastDrainCheck = time.Time{}
			wantLines(t, apply(t, b, none))
			wantEcho(t, c)
			end(c, &passed)
			for deadline := time.Now().Add(time.Minute); len(b.drainingDests) > 0 && time.Now().Before(deadline); {
				b.lastDrainCheck = time.Time{}
				apply(t, b, none)
			}
			if s, err := b.driver.Read(t.Context()); err != nil || len(s.servers) > 0 || len(b.drainingDests) > 0 {
				t.Errorf("%s: the kernel still has %v, %v; %v drain", name, s.servers, err, b.drainingDests)
			}
			c.Close()
			echo.Close()
			_ = b.Close()
		}
	})
}

// listen echoes lines on an address.
func listen(t *testing.T, at netip.AddrPort) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", at.String())
	kit.Must(t, err)
	go netlab.Serve(l, func(c net.Conn) { _, _ = io.Copy(c, c) })
	return l
}

func wantEcho(t *testing.T, c net.Conn) {
	t.Helper()
	err := c.SetDeadline(time.Now().Add(15 * time.Second))
	if err == nil {
		_, err = fmt.Fprintln(c, "hello")
	}
	if err == nil {
		_, err = bufio.NewReader(c).ReadString('\n')
	}
	kit.Check(t, err == nil, "the connection does not go on: %v", err)
}

// flow is a UDP client and the server that receives its datagrams.
type flow struct {
	client net.Conn
	server net.PacketConn
}

func dialUDP(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", to.String())
	kit.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func listenUDP(t *testing.T, at netip.AddrPort) net.PacketConn {
	t.Helper()
	s, err := net.ListenPacket("udp", at.String())
	kit.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// wantReceived checks that the next datagram that the server receives is the next one of
// the client.
func (f flow) wantReceived(t *testing.T, words string) {
	t.Helper()
	received := make([]byte, 64)
	n := 0
	err := f.server.SetReadDeadline(time.Now().Add(15 * time.Second))
	if err == nil {
		_, err = f.client.Write([]byte(words))
	}
	if err == nil {
		n, _, err = f.server.ReadFrom(received)
	}
	if err != nil || string(received[:n]) != words {
		t.Errorf("the flow does not go on: heard is %q, %v; want %q", received[:n], err, words)
	}
}

// TestKernelDrainsUDP checks that a draining virtual server keeps its UDP flows, which
// have no end of their own, until DrainTimeout, and gets no new ones. Then it is deleted
// with its conntrack entries, and no others.
func TestKernelDrainsUDP(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4, alwaysResync())
		at := netip.AddrPortFrom(generate.NodeAddr[0], 8080)
		dns := web(0, 0, service.UDP)
		dns.Cluster = []service.Endpoint{{Addr: at}}
		apply(t, b, snapshot(dns))
		// With 1, some kernels delete conntrack entries themselves.
		kit.Must(t, os.WriteFile((setting{file: "net/ipv4/vs/expire_nodest_conn"}).path(), []byte("0\n"), 0o644))
		to, foreign := netip.AddrPortFrom(dns.Frontends[0].Addr, 80), netip.AddrPortFrom(generate.OtherNodeAddr[0], 80)
		old := flow{dialUDP(t, to), listenUDP(t, at)}
		other := flow{dialUDP(t, foreign), listenUDP(t, foreign)}
		old.wantReceived(t, "hello")
		other.wantReceived(t, "hello")
		for _, lasted := range []time.Duration{0, DrainTimeout - time.Minute} {
			wantDrained(t, lasted, "virtual servers: 1, open connections: 1, for 1h0m0s at most")
			_, _ = dialUDP(t, to).Write([]byte("nobody hears me")) // some kernels return an error
			old.wantReceived(t, lasted.String())
			n := flowsTo(t, to)
			kit.Check(t, n != 0, "after %s no flow is tracked", lasted)
		}
		wantDrained(t, DrainTimeout, "")
		_, err := old.client.Write([]byte("hello"))
		kit.Check(t, err != nil, "the address of the Service still leads somewhere")
		n := flowsTo(t, to)
		kit.Check(t, n == 0, "in the end %d flows are tracked", n)
		other.wantReceived(t, "still here")
		if n := flowsTo(t, foreign); n != 1 {
			t.Errorf("of others %d flows are tracked, want one", n)
		}
		wantNoLeftovers(t, b)
		_ = b.Close()
	})
}

// wantDrained drains the leftovers as if draining had begun elapsed ago.
func wantDrained(t *testing.T, elapsed time.Duration, want string) {
	t.Helper()
	var since time.Time
	if elapsed > 0 {
		since = time.Now().Add(-elapsed)
	}
	remaining, err := (Leftovers{Family: service.IPv4}).Drain(t.Context(), since)
	kit.Check(t, err == nil && remaining == want, "after %s there stays %q, %v; want %q", elapsed, remaining, err, want)
}

func wantNoLeftovers(t *testing.T, b *Backend) {
	t.Helper()
	if what, err := (Leftovers{Family: b.family}).Find(t.Context()); what != "" || err != nil {
		t.Errorf("there is %q, %v; want nothing", what, err)
	}
	_, err := b.driver.(*kernel).links.LinkByName(Device)
	var none netlink.LinkNotFoundError
	kit.Check(t, errors.As(err, &none), "interface %s: %v; want none", Device, err)
}

// flowsTo counts the conntrack entries to an address.
func flowsTo(t *testing.T, to netip.AddrPort) int {
	t.Helper()
	n := 0
	err := conntrack.Netlink{}.Dump(t.Context(), conntrack.Filter{Family: service.IPv4, Protocol: service.UDP, Port: to.Port()}, func(f conntrack.Flow) {
		if f.Dst == to {
			n++
		}
	})
	kit.Check(t, err == nil, "%v", err)
	return n
}

// TestKernelLeftoversWithoutIPVS finds and removes routes on a kernel that has no IPVS
// any more.
func TestKernelLeftoversWithoutIPVS(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			apply(t, b, changingSnapshot(f, 0))
			_ = b.Close()
		}
		kit.Must(t, newMobyHandle(t).Flush())
		for _, f := range service.Families {
			r := Leftovers{Family: f, list: "/proc/none"}
			if what, err := r.Find(t.Context()); !strings.HasPrefix(what, "5 addresses of Services, ") || !strings.Contains(what, "chains of this proxy") || !strings.HasSuffix(what, ", 15 ipsets") || err != nil {
				t.Errorf("%s: %q, %v are left", f, what, err)
			}
			stays, err := r.Drain(t.Context(), time.Time{})
			kit.Check(t, stays == "" && err == nil, "%s: %q stays, %v", f, stays, err)
			if what, err := r.Find(t.Context()); what != "" || err != nil {
				t.Errorf("%s: %q, %v are left in the end", f, what, err)
			}
		}
		_, err := netlink.LinkByName(Device)
		kit.Check(t, err != nil, "there is still %s", Device)
	})
}
