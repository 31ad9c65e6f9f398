// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// simple returns a snapshot of n Services with two endpoints each.
func simple(n int) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		ports = append(ports, simplePort(i))
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

func simplePort(i int) *service.Port {
	return &service.Port{
		Name: service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Protocol: service.TCP},
		Frontends: []service.Frontend{
			{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80},
			{Kind: service.NodePort, Port: uint16(30000 + i)},
		},
		Cluster: []service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.1.1:8080")}, {Addr: netip.MustParseAddrPort("10.244.1.2:8080")},
		},
	}
}

// TestOneRefusedPortDoesNotBlockOthers refuses everything that concerns one Service.
func TestOneRefusedPortDoesNotBlockOthers(t *testing.T) {
	want := simple(100)
	k := newFake()
	b := newBackend(service.IPv4, k)
	k.Refuse = func(text string) error {
		if strings.Contains(text, "shop/web-042") {
			return errInjected
		}
		return nil
	}
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatalf("Plan: %v", err)
	}
	err = p.Apply(context.Background()).Err
	failed := reconcile.PortErrors(err)
	if len(failed) != 1 || failed[0].Name.Name != "web-042" || !errors.Is(failed[0], errInjected) {
		t.Errorf("Apply = %v, want one failure of web-042", err)
	}
	if got := strings.Count(k.Text(), "shop/web-"); got != 198 {
		t.Errorf("%d entries programmed, want 198", got)
	}
	if k.Restores > 30 {
		t.Errorf("%d restores, want about two per halving", k.Restores)
	}
	k.Refuse = nil
	apply(t, b, want)
	if got := strings.Count(k.Text(), "shop/web-"); got != 200 {
		t.Errorf("%d entries programmed after the retry, want 200", got)
	}
}

// TestRefusedPortKeepsWhatItHad changes a Service and removes another while the kernel
// refuses the change.
func TestRefusedPortKeepsWhatItHad(t *testing.T) {
	k := newFake()
	apply(t, newBackend(service.IPv4, k), simple(3))
	changed := simplePort(1)
	changed.Cluster = changed.Cluster[:1]
	want := service.New(2, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{simplePort(0), changed})
	had := k.Tables[nat][portChainName(clusterPrefix, changed)]
	k.Refuse = func(text string) error {
		if strings.Contains(text, "-A "+portChainName(clusterPrefix, changed)) {
			return errInjected
		}
		return nil
	}
	b := newBackend(service.IPv4, k) // as after a restart
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	if failed := reconcile.PortErrors(p.Apply(context.Background()).Err); len(failed) != 1 || failed[0].Name.Name != "web-001" {
		t.Errorf("failed: %v, want web-001", failed)
	}
	if got := k.Tables[nat][portChainName(clusterPrefix, changed)]; !slices.Equal(got, had) {
		t.Errorf("the refused Service has now %q, had %q", got, had)
	}
	if text := k.Text(); !strings.Contains(text, "shop/web-001") || strings.Contains(text, "shop/web-002") {
		t.Errorf("want web-001 to be there and web-002 to be gone:\n%s", text)
	}
}
