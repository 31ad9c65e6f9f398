// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"kubeproxy/common/service"
)

func TestServiceRoutes(t *testing.T) {
	port := func(name, addr string, kind service.Kind) *service.Port {
		a := netip.MustParseAddr(addr)
		return &service.Port{Name: service.PortName{Namespace: "shop", Name: name}, Family: service.FamilyOf(a), Frontends: []service.Frontend{{Kind: kind, Addr: a, Port: 80}}}
	}
	ports := []*service.Port{
		port("web", "10.96.0.10", service.ClusterIP), port("dns", "10.96.0.9", service.ClusterIP),
		port("six", "fd96::1", service.ClusterIP), port("lb", "203.0.113.1", service.LoadBalancerIP),
	}
	unreachable := errors.New("network is unreachable")
	all := map[string]error{"10.96.0.9": unreachable, "10.96.0.10": unreachable, "fd96::1": unreachable, "203.0.113.1": unreachable}
	for name, tt := range map[string]struct {
		mode   string
		routes map[string]error
		ranges []netip.Prefix
		want   []string
	}{
		"routes":   {"nftables", map[string]error{"203.0.113.1": unreachable}, nil, nil},
		"ipvs":     {"ipvs", all, nil, nil},
		"one lost": {"iptables", map[string]error{"10.96.0.10": unreachable}, nil, []string{"service-route | IPv4 | ip route replace 10.96.0.10/32 dev eth0"}},
		"range not known": {"iptables", map[string]error{"10.96.0.9": unreachable, "10.96.0.10": unreachable}, nil,
			[]string{"service-route | IPv4 | ip route replace 10.96.0.8/30 dev eth0"}},
		"no route": {"nftables", all, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, []string{
			"service-route | IPv4 | ip route replace 10.96.0.0/16 dev eth0", "service-route | IPv6 | ",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(nil)
			n.Modes = mode(tt.mode)
			n.Kernel = &fakeKernel{links: []Link{{Name: "eth0", Global: both(true, false)}}}
			n.Route = func(a netip.Addr) error { return tt.routes[a.String()] }
			n.Services = func(context.Context) (*service.Snapshot, error) {
				return service.New(1, &service.Node{ServiceCIDRs: tt.ranges}, ports), nil
			}
			expect(t, n.serviceRoutes, tt.want)
		})
	}
}

func TestSharedMark(t *testing.T) {
	n := newNode(nil)
	expect(t, n.sharedMark, nil)
	n.SharedMark = func(f service.Family) (string, error) {
		return map[service.Family]string{service.IPv6: "another program"}[f], nil
	}
	expect(t, n.sharedMark, []string{"shared-mark | shared-mark-IPv6 | "})
}
