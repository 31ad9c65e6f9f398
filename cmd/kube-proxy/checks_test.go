// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/config"
)

// TestChecksThatCannotListen checks the condition for health checks that cannot listen.
// It lasts as long as a Service needs the health check.
func TestChecksThatCannotListen(t *testing.T) {
	c, err := config.Load(&config.Flags{}, config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{mode: "nftables", family: service.IPv4}
	o := newStatusReporter(c, []*backend{b}, "node-a", newSourceStatus(false), klog.Background())
	o.setUnavailable(map[service.Family]string{service.IPv6: "the kernel has no IPv6"})
	o.checks.servers.Listen = refuseListen
	follow := func(ports ...*service.Port) string {
		o.checks.update(service.IPv4, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports))
		return o.health.Report().Conditions["health-checks"]
	}
	const want = "the health check of service shop/web is not answered: "
	if got := follow(checkedPort(service.IPv4, "web", 31000, 1)); !strings.HasPrefix(got, want) {
		t.Errorf("condition %q, want %s... of IPv4 alone", got, want)
	}
	if got := o.services.Unanswered(); len(got) != 1 || got[0].Name != "web" || got[0].Message != "refused" {
		t.Errorf("%+v is not answered, want what is refused to web", got)
	}
	if got := follow(); got != "" {
		t.Errorf("condition %q after the Service left", got)
	}
	if got, want := o.health.Report().Conditions["family-IPv6"], "the kernel has no IPv6"; got != want {
		t.Errorf("condition %q, want %q", got, want)
	}
}
