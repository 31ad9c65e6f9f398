// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
)

// refuseListen keeps tests from listening.
func refuseListen(context.Context, string, string) (net.Listener, error) {
	return nil, errors.New("refused")
}

func checkedPort(f service.Family, name string, port uint16, ready int) *service.Port {
	return &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: name, Protocol: service.TCP},
		Family: f, External: service.PolicyLocal, HealthCheck: port, LocalReady: ready,
	}
}

// TestChecksUpdate adds, changes and removes a Service of two families.
func TestChecksUpdate(t *testing.T) {
	node := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/64")}}
	c := newChecks(newCheckServers(Options{Listen: refuseListen}, health.New(health.Options{}), nil), func(string, string) bool { return false }, nil)
	steps := []struct {
		situation string
		ports     []*service.Port
		want      map[uint16]health.Check
	}{
		{"nothing to check", []*service.Port{checkedPort(service.IPv4, "plain", 0, 0)}, map[uint16]health.Check{}},
		{"one family so far", []*service.Port{checkedPort(service.IPv4, "web", 31000, 1)}, map[uint16]health.Check{
			31000: {Namespace: "shop", Name: "web", LocalEndpoints: [2]int{1}, Families: []service.Family{service.IPv4}},
		}},
		{"both, with a count of their own", []*service.Port{checkedPort(service.IPv4, "web", 31000, 1), checkedPort(service.IPv6, "web", 31000, 2)}, map[uint16]health.Check{
			31000: {Namespace: "shop", Name: "web", LocalEndpoints: [2]int{1, 2}, Families: []service.Family{service.IPv4, service.IPv6}},
		}},
		{"the last one here leaves", []*service.Port{checkedPort(service.IPv4, "web", 31000, 0)}, map[uint16]health.Check{
			31000: {Namespace: "shop", Name: "web", Families: []service.Family{service.IPv4}},
		}},
		{"deleted", nil, map[uint16]health.Check{}},
	}
	for i, s := range steps {
		snapshot := service.New(uint64(i), node, s.ports)
		c.update(service.IPv4, snapshot)
		c.update(service.IPv6, snapshot)
		if diff := cmp.Diff(s.want, c.desired.Checks); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.situation, diff)
		}
	}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.IPv6Unspecified()}
	if diff := cmp.Diff(want, c.desired.Addrs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
}

// TestChecksThatCannotListen checks the condition for health checks that cannot listen.
// It lasts as long as a Service needs the health check.
func TestChecksThatCannotListen(t *testing.T) {
	r := newTestReports(Options{Listen: refuseListen, Unavailable: map[service.Family]string{service.IPv6: "the kernel has no IPv6"}})
	follow := func(ports ...*service.Port) string {
		r.checks.update(service.IPv4, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports))
		return r.Health.Report().Conditions["health-checks"]
	}
	const want = "the health check of service shop/web is not answered: "
	if got := follow(checkedPort(service.IPv4, "web", 31000, 1)); !strings.HasPrefix(got, want) {
		t.Errorf("condition %q, want %s... of IPv4 alone", got, want)
	}
	if got := r.Services.Unanswered(); len(got) != 1 || got[0].Service.Name != "web" || got[0].Message != "refused" {
		t.Errorf("%+v is not answered, want what is refused to web", got)
	}
	if got := follow(); got != "" {
		t.Errorf("condition %q after the Service left", got)
	}
	if got, want := r.Health.Report().Conditions["family-IPv6"], "the kernel has no IPv6"; got != want {
		t.Errorf("condition %q, want %q", got, want)
	}
}
