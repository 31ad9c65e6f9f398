// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// A frontend moves to a Service port of another name, and the kernel rejects the first
// transaction. In the end the table matches the desired state, whichever name sorts
// first.
func TestFrontendMovesAfterRefusal(t *testing.T) {
	for _, name := range []string{"aaa", "zzz"} {
		k := &fake{family: service.IPv4}
		b := &Backend{family: service.IPv4, options: Options{MasqueradeBit: 14}, driver: k}
		p := &service.Port{Family: service.IPv4, External: service.PolicyLocal}
		p.Name = service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP}
		p.Frontends = []service.Frontend{{Kind: service.ExternalIP, Addr: generate.NthAddr("198.51.100.0", 1), Port: 80}}
		p.Cluster = []service.Endpoint{{Addr: addrPort("10.244.1.9:8080"), Local: true}}
		p.Local = p.Cluster
		s := service.New(1, &service.Node{NodePorts: service.AnyAddress(), Name: "node-a"}, []*service.Port{p})
		apply(t, b, s)

		q := *p
		q.Name.Port = name
		next := service.New(2, s.Node, []*service.Port{&q})
		refusals := 1
		k.refuse = func([]op) error {
			if refusals--; refusals < 0 {
				return nil
			}
			return errInjected
		}
		apply(t, b, next)
		b.have = nil // the next Plan reads the table
		if left, err := b.Plan(context.Background(), next); err != nil || !left.Empty() {
			t.Errorf("name %s: %v, and this is still to do:\n%s", name, err, generate.Text(left))
		}
	}
}
