// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// TestNodePortsOfKubeProxy takes over what kube-proxy leads to NodePorts.
func TestNodePortsOfKubeProxy(t *testing.T) {
	const last = `-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" `
	for rule, want := range map[string]string{
		last + "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS":                       "[0.0.0.0/0]",
		"! -d 127.0.0.0/8 " + last + "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS": "[0.0.0.0/0]",
		"-d 192.0.2.1/32 " + last + "-j KUBE-NODEPORTS":                               "[192.0.2.1/32]",
		"-d 192.0.2.1/32 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS":              "[192.0.2.1/32]",
		// Not every address in it is the node's.
		"-d 192.0.2.0/24 " + last + "-j KUBE-NODEPORTS":          "[]",
		"-i eth0 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS": "[]",
		"-d 2001:db8::1/128 " + last + "-j KUBE-NODEPORTS":       "[]",
		"-j KUBE-NODEPORTS": "[]",
		last + "-m addrtype --dst-type LOCAL -j KUBE-SVC-AAAAAAAAAA": "[]",
	} {
		b := newBackend(service.IPv4, newFake())
		h := parse("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES "+rule+"\nCOMMIT\n", nil)
		if got := fmt.Sprint(b.nodePortsIn(h)); got != want {
			t.Errorf("%s: %s, want %s", rule, got, want)
		}
	}
}

// TestPendingNodePorts restarts while the node's addresses are not known. The
// addresses that answered NodePorts do so until they are.
func TestPendingNodePorts(t *testing.T) {
	for name, before := range map[string]netip.Prefix{
		"-d 192.0.2.1/32 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS":  netip.MustParsePrefix("192.0.2.1/32"),
		"-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS": netip.MustParsePrefix("0.0.0.0/0"),
	} {
		k := newFake()
		pending := &service.Node{NodePortsPending: [2]bool{true, true}}
		ports := []*service.Port{simplePort(1)}
		ports[0].Frontends = append(ports[0].Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
		apply(t, newBackend(service.IPv4, k), service.New(1, pending, ports))
		if strings.Contains(k.Text(), "-j "+nodePortsChain) {
			t.Fatalf("an unknown node answers NodePorts:\n%s", k.Text())
		}
		apply(t, newBackend(service.IPv4, k), service.New(1, &service.Node{NodePorts: []netip.Prefix{before}}, ports))
		b := newBackend(service.IPv4, k)
		s := service.New(2, pending, ports)
		apply(t, b, s)
		other := *ports[0]
		other.Cluster = nil
		apply(t, b, s.With(3, pending, []service.Change{{Old: ports[0], New: &other}}))
		if !strings.Contains(k.Text(), name) {
			t.Fatalf("NodePorts are closed before the node is known:\n%s", k.Text())
		}
		apply(t, b, service.New(4, &service.Node{}, ports))
		if strings.Contains(k.Text(), "-j "+nodePortsChain) {
			t.Errorf("the node is known and has no address, and NodePorts are answered:\n%s", k.Text())
		}
	}
}
