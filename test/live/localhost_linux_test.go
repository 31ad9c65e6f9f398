// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestLocalhostNodePorts checks that NodePorts answer on 127.0.0.1 and ::1 in every mode
// if nodePortAddresses contains localhost.
func TestLocalhostNodePorts(t *testing.T) {
	t.Parallel()
	all := switchableModes()
	delete(all, "ipvs") // see below
	for _, name := range []string{"iptables-legacy", "iptables-nft"} {
		m := all[name]
		m.flags, m.localhost = append(m.flags, "--iptables-localhost-nodeports=true"), true
		all[name] = m
		m.flags, m.userspace = slices.Concat(m.flags, []string{"--proxy-mode=userspace"}), true
		all["userspace-"+name] = m
	}
	for name, m := range all {
		t.Run(name, func(t *testing.T) { localhostNodePorts(t, m) })
	}
}

func TestIPVSLocalhostNodePorts(t *testing.T) { withIPVS(t, localhostNodePorts) }

func localhostNodePorts(t *testing.T, m mode) {
	m.flags = slices.Concat(m.flags, []string{"--nodeport-addresses=primary,localhost"})
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
	local := app{name: "local", number: 11, plain: true, external: "Local"}.on(c.Host("web-3"))
	sticky := app{name: "sticky", number: 12, plain: true, sticky: 600}.on(c.webs()...)
	c.save(t, web, local, sticky)
	p := c.launch(t)
	c.awaitLoopback(t, web, netlab.Answered)
	c.awaitLoopback(t, local, netlab.Answered) // the node reaches every endpoint
	c.awaitLoopback(t, sticky, netlab.Answered)
	for _, f := range service.Families {
		q := netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(service.Localhost(f), sticky.nodePort())}
		first, err := c.Node.Ask(t.Context(), q)
		for range 5 {
			next, err2 := c.Node.Ask(t.Context(), q)
			if err != nil || err2 != nil || next.Backend != first.Backend {
				t.Errorf("%s: %s and then %s, %v, %v", q.To, first.Backend, next.Backend, err, err2)
			}
		}
	}
	a, err := c.Host("customer").Ask(t.Context(), netlab.Query{Proto: "tcp", To: web.at(service.NodePort, service.IPv4)})
	if err != nil || a.Outcome != netlab.Answered {
		t.Errorf("on the node's address: %s, %v", a.Outcome, err)
	}
	c.save(t, app{name: "web", number: 10, plain: true})
	c.awaitLoopback(t, web, netlab.Refused)
	c.save(t, web)
	c.awaitLoopback(t, web, netlab.Answered)
	c.checkPortInUse(t, p)
	if m.proxyMode() == "nftables" {
		c.checkUnrelayed(t, p)
	}
	if m.proxyMode() != "iptables" { // which sets it itself, with a guard rule
		if out, err := program.Run(t, c.Node, exec.Command("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")); err != nil {
			t.Fatalf("sysctl: %v\n%s", err, out)
		}
	}
	c.checkLocalhostClosed(t, web)
	p.Stop(t)
}

// awaitLoopback waits until connections to NodePorts of a on both loopback addresses have
// the outcome want.
func (c *cluster) awaitLoopback(t *testing.T, a app, want netlab.Outcome) {
	t.Helper()
	for _, f := range service.Families {
		for _, proto := range []string{"tcp", "udp"} {
			q := netlab.Query{Proto: proto, To: netip.AddrPortFrom(service.Localhost(f), a.nodePort())}
			kit.Until(t, proto+" at "+q.To.String()+" to be "+want.String(), func() bool {
				got, err := c.Node.Ask(t.Context(), q)
				return err == nil && got.Outcome == want
			})
		}
	}
}

// checkPortInUse starts a program on a NodePort of ::1, where every mode has a listener.
// The program keeps the port, status reports it, and when it ends, the NodePort answers.
func (c *cluster) checkPortInUse(t *testing.T, p *program.Proxy) {
	t.Helper()
	late := app{name: "late", number: 13, plain: true}.on(c.webs()...)
	var l net.Listener
	at := netip.AddrPortFrom(netip.IPv6Loopback(), late.nodePort())
	err := c.Node.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c.save(t, late)
	p.AwaitLog(t, "shop/late", "address already in use by another program of the node")
	_ = l.Close()
	c.awaitLoopback(t, late, netlab.Answered)
}

// checkUnrelayed sends SCTP packets to a NodePort of the loopback addresses. They are
// refused and counted.
func (c *cluster) checkUnrelayed(t *testing.T, p *program.Proxy) {
	t.Helper()
	const counter = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total"
	late := app{name: "late", number: 14}
	s := late.service()
	s.Spec.Ports = []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolSCTP, NodePort: int32(late.nodePort())}}
	c.write(t, "late.yaml", program.Manifest[any](t, s))
	for _, f := range service.Families {
		labels := []string{"ip_family", f.String(), "protocol", "SCTP"}
		if n, found := p.Metric(t, counter, labels...); n != 0 || !found {
			t.Errorf("%s: %v packets counted at first, found %t, want 0", f, n, found)
		}
		to, sent := netip.AddrPortFrom(service.Localhost(f), late.nodePort()), 0
		kit.Until(t, "SCTP at "+to.String()+" to be refused", func() bool {
			refused := false
			err := c.Node.Do(func() (err error) {
				refused, err = netlab.RefusesSCTP(to)
				return err
			})
			if refused {
				sent++
			}
			return err == nil && sent == 3
		})
		kit.Until(t, "3 packets of "+f.String()+" to be counted", func() bool {
			n, _ := p.Metric(t, counter, labels...)
			return n == 3
		})
	}
}
