// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// listening is m with the listeners of f at the node's address, in a range.
func (m mode) listening(f service.Family) mode {
	m.bound.Ports = userspace.Range{First: 25000, Last: 25099}
	m.bound.Listen[f] = app{}.at(service.NodePort, f).Addr()
	m.flags = append(m.flags[:len(m.flags):len(m.flags)], "--proxy-port-range=25000-25099", "--bind-address="+m.bound.Listen[f].String(), "--metrics-bind-address="+program.MetricsAddr)
	return m
}

// eachBound runs test with listeners at the node's address of each family.
func eachBound(t *testing.T, test func(*testing.T, mode, service.Family)) {
	withUserspace(t, func(t *testing.T, m mode) {
		for _, f := range service.Families {
			t.Run(f.String(), func(t *testing.T) {
				t.Parallel()
				test(t, m.listening(f), f)
			})
		}
	})
}

func TestUserspaceBoundEveryCell(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) { everyCell(t, m.listening(service.IPv4)) })
}

// Listeners are at the node's address if that is configured, and clients reach them only
// through their Service. Other programs of the node at that address are not affected.
func TestUserspaceBound(t *testing.T) {
	eachBound(t, func(t *testing.T, m mode, f service.Family) {
		c := newCluster(t, m)
		web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
		c.save(t, web)
		p := c.start(t)
		c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web))
		for _, port := range []uint16{24999, 25100} {
			if _, err := c.Node.Echo("other", port); err != nil {
				t.Fatal(err)
			}
		}
		for _, proto := range []string{"tcp", "udp"} {
			c.guarded(t, web, f, proto)
		}
		p.Stop(t)
		if out, err := program.Run(t, c.Node, c.command("--cleanup")); err != nil {
			t.Fatalf("cleanup: %v\n%s", err, out)
		}
		if left := c.listing(t); strings.Contains(left, "KUBE-PORTALS") {
			t.Errorf("after the cleanup there is\n%s", left)
		}
		if out, err := program.Run(t, c.Node, exec.Command("ip", "addr")); err != nil || !strings.Contains(out, " "+m.bound.Listen[f].String()+"/") {
			t.Errorf("the node's address is gone: %v\n%s", err, out)
		}
	})
}

// guarded dials where the listener of a is, and what is beside it.
func (c *cluster) guarded(t *testing.T, a app, f service.Family, proto string) {
	t.Helper()
	at := c.listenersOf(t, f, proto)
	if len(at) != 1 || at[0].Addr() != c.mode.bound.Listen[f] || at[0].Port() < 25000 || at[0].Port() > 25099 {
		t.Fatalf("the listeners are at %v", at)
	}
	ask := func(h *netlab.Host, q netlab.Query, want netlab.Outcome) {
		t.Helper()
		if q.Proto = proto; want == netlab.TimedOut {
			q.Timeout = netlab.SilenceTimeout
		}
		if got, err := h.Ask(t.Context(), q); err != nil || got.Outcome != want {
			t.Errorf("%s to %s over %s: %s, %v; want %s", h.Name, q.To, proto, got.Outcome, err, want)
		}
	}
	if proto == "udp" { // the mark distinguishes its late answers from packets of other programs
		out, err := program.Run(t, c.Node, exec.Command("ss", "-Hlune", "sport", "=", fmt.Sprint(at[0].Port())))
		if err != nil || !strings.Contains(out, "fwmark:0x4000") {
			t.Errorf("the listener has no mark: %v\n%s", err, out)
		}
	}
	addrPort := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(at[0].Addr(), port) }
	for _, h := range c.clientHosts() {
		ask(h, netlab.Query{To: at[0]}, netlab.TimedOut)
		ask(h, netlab.Query{To: addrPort(25098)}, netlab.TimedOut)
		ask(h, netlab.Query{To: addrPort(24999)}, netlab.Answered)
		ask(h, netlab.Query{To: addrPort(25100)}, netlab.Answered)
		ask(h, netlab.Query{To: addrPort(24998)}, netlab.Refused)
	}
	// A program of the node has a port of the range for its own connections.
	ask(c.Node, netlab.Query{From: addrPort(25097), To: netip.AddrPortFrom(c.Host("web-3").Addr(at[0].Addr()), target)}, netlab.Answered)
}

// listenersOf returns where rules of f lead over proto.
func (c *cluster) listenersOf(t *testing.T, f service.Family, proto string) []netip.AddrPort {
	t.Helper()
	name := map[service.Family]string{service.IPv4: "iptables-save", service.IPv6: "ip6tables-save"}[f]
	var all []netip.AddrPort
	for line := range strings.Lines(c.iptables(t, "", name, "-t", "nat")) {
		if _, to, found := strings.Cut(line, fmt.Sprintf("-p %s -j DNAT --to-destination ", proto)); found {
			all = append(all, netip.MustParseAddrPort(strings.TrimSpace(to)))
		}
	}
	return all
}

// Listeners move between their own address and the node's over a restart, which
// nobody notices. Their own address goes when nothing leads there.
func TestUserspaceBoundSwitch(t *testing.T) {
	withUserspace(t, func(t *testing.T, own mode) {
		c := newCluster(t, own)
		web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
		c.save(t, web)
		p := c.start(t)
		for _, m := range []mode{own.listening(service.IPv4), own.listening(service.IPv6), own} {
			loads, packets := c.loads(t, web), c.converse(t, "udp", web, 1)
			p.Stop(t)
			c.setMode(t, m)
			p = c.launch(t)
			want := c.awaitProgrammed(t)
			for _, f := range service.Families {
				kit.Until(t, "the listeners' own address where it is needed", func() bool {
					return (c.finds(t, userspace.Leftovers{Family: f}) != "") == !m.bound.Listen[f].IsValid()
				})
			}
			packets.checkAnswered(t)
			lossless(t, loads)
			c.check(t, want, c.cells(c.clientHosts(), web))
			p.Kill()
			p = c.launch(t)
			p.AwaitLog(t, `"Programmed"`, "userspace IPv4")
			p.AwaitLog(t, `"Programmed"`, "userspace IPv6")
			c.check(t, want, c.cells(c.clientHosts(), web))
		}
	})
}
