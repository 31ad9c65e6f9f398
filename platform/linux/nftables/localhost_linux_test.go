// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// onLoopback is a node with an SCTP NodePort 30090 and a TCP NodePort 30080, which answer
// at the addresses in nodePorts.
func onLoopback(f service.Family, nodePorts ...string) *service.Snapshot {
	node := &service.Node{Name: "node-a"}
	for _, p := range nodePorts {
		node.NodePorts = append(node.NodePorts, prefix(p))
	}
	var ports []*service.Port
	for protocol, port := range map[service.Protocol]uint16{service.SCTP: 30090, service.TCP: 30080} {
		ports = append(ports, &service.Port{
			Name: service.PortName{Namespace: "shop", Name: "web", Port: protocol.String(), Protocol: protocol}, Family: f,
			Frontends: []service.Frontend{{Kind: service.NodePort, Port: port}},
			Cluster:   []service.Endpoint{{Addr: addrPort([]string{"10.244.1.1:8080", "[fd00:10:244::1]:8080"}[f])}},
		})
	}
	return service.New(1, node, ports)
}

// TestUnrelayed sends SCTP packets to NodePorts of the loopback addresses. Those packets
// are refused and counted, also by the next process, and others are left alone.
func TestUnrelayed(t *testing.T) {
	inNamespace(t, func() {
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Fatalf("lo: %v\n%s", err, out)
		}
		for _, f := range service.Families {
			on, off := onLoopback(f, "127.0.0.0/8", "::1/128"), onLoopback(f, "127.0.0.2/32")
			count := func(want uint64) {
				t.Helper()
				if n, err := Unrelayed(f, Options{}); n != want || err != nil {
					t.Errorf("%s: %d packets counted, %v, want %d", f, n, err, want)
				}
			}
			send := func(port uint16, want bool) {
				t.Helper()
				refused, err := netlab.RefusesSCTP(netip.AddrPortFrom(service.Localhost(f), port))
				if refused != want || err != nil {
					t.Errorf("%s, port %d: refused %t, %v, want %t", f, port, refused, err, want)
				}
			}
			count(0)
			b := newKernel(t, f)
			defer b.Close()
			apply(t, b, on)
			send(30090, true)
			send(30090, true)
			send(30080, false)
			send(30091, false)
			count(2)
			next := newKernel(t, f)
			defer next.Close()
			apply(t, next, on)
			count(2)
			traceUnrelayed(t, next, on)
			apply(t, next, off)
			send(30090, false)
			count(0)
			traceUnrelayed(t, next, off)
		}
	})
}

// traceUnrelayed follows such a packet through the table. Rules for another node are
// named.
func traceUnrelayed(t *testing.T, b *Backend, want *service.Snapshot) {
	t.Helper()
	at := service.Localhost(b.family)
	c := route.Conn{Protocol: service.SCTP, From: at, To: netip.AddrPortFrom(at, 30090), ToNode: true}
	w, err := b.Trace(context.Background(), want, c, netip.Addr.IsLoopback)
	if err != nil {
		t.Fatal(err)
	}
	x := explain.Model{Snapshot: want}.Explain(c)
	x.Compare(w.Path())
	if on := want.Node.LocalhostNodePorts(b.family); x.Verdict != explain.Agree || (w.Action == route.Reject) != on || on != strings.Contains(w.ByDesign, "does not relay sctp") {
		t.Errorf("%s, enabled %t: %s, by design %q, %s %q", b.family, on, w.Action, w.ByDesign, x.Verdict, x.Differences)
	}
	w, err = b.Trace(context.Background(), onLoopback(b.family), c, netip.Addr.IsLoopback)
	if err != nil || (len(w.Faults) > 0) != want.Node.LocalhostNodePorts(b.family) {
		t.Errorf("%s: faults %q, %v, where nodePortAddresses lacks loopback addresses", b.family, w.Faults, err)
	}
}
