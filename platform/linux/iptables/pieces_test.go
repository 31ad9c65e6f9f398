// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// Until the last piece no packet meets a new chain, and the last piece has no new chain.
func TestPieces(t *testing.T) {
	k := newFake()
	k.Piece = 20
	b := newBackend(service.IPv4, k)
	var ports []*service.Port
	for i := range 40 {
		ports = append(ports, servicePort(i))
	}
	apply(t, b, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports))
	if k.Restores < 5 {
		t.Fatalf("%d texts, want many", k.Restores)
	}
	for i, text := range k.Texts[:len(k.Texts)-1] {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "-I ") || strings.HasPrefix(line, "-X ") {
				t.Errorf("text %d of %d changes what packets meet: %s", i+1, len(k.Texts), line)
			}
		}
		if n := strings.Count(text, "\n-A "); n > 3*k.Piece {
			t.Errorf("text %d has %d rules", i+1, n)
		}
	}
	if last := k.Texts[len(k.Texts)-1]; strings.Contains(last, "\n:") {
		t.Errorf("the last text makes chains:\n%s", last)
	}
	before := k.Restores
	ports[0] = servicePort(100)
	apply(t, b, service.New(2, &service.Node{NodePorts: service.AnyAddress()}, ports))
	if n := k.Restores - before; n != 1 {
		t.Errorf("a change of one Service takes %d texts", n)
	}
}

// A process that dies between two pieces leaves what the next one takes over.
func TestDeathBetweenPieces(t *testing.T) {
	k := newFake()
	k.Piece = 20
	var ports []*service.Port
	for i := range 40 {
		ports = append(ports, servicePort(i))
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	n := 0
	k.Refuse = func(string) error {
		if n++; n > 4 {
			return ErrBusy
		}
		return nil
	}
	p, err := newBackend(service.IPv4, k).Plan(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	if out := p.Apply(context.Background()); out.Err == nil {
		t.Fatal("no error although iptables was busy")
	}
	k.Refuse = nil
	apply(t, newBackend(service.IPv4, k), want)
	fresh := newFake()
	apply(t, newBackend(service.IPv4, fresh), want)
	if got, want := k.Text(), fresh.Text(); got != want {
		t.Errorf("after a death:\n%s\nwithout:\n%s", got, want)
	}
}

// servicePort is Service i with three endpoints.
func servicePort(i int) *service.Port {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: fmt.Sprint("web-", i), Protocol: service.TCP}}
	p.Frontends = []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", i+1)), Port: 80}}
	for j := range 3 {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.244.%d.%d:8080", i, j+1))})
	}
	return p
}
