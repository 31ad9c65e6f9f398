// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// TestMeterReportsEachCall creates and deletes a Service. Exactly the calls that reached
// HNS are reported.
func TestMeterReportsEachCall(t *testing.T) {
	b := newTestNode(t, v15, bridgeN)
	var reported []string
	b.restartOn(Metered(b.hns, func(c Call) {
		line := c.Operation
		if c.Balancer != nil {
			line += " " + c.Balancer.Use()
		}
		if c.Err != nil {
			line += " " + c.Class() + " " + c.Cause()
		}
		reported = append(reported, line)
	}))
	for i, endpoints := range [][]string{{"10.244.2.11:80@b"}, {"10.244.2.12:80@b"}, nil} {
		b.converge(snapshot(uint64(i), clusterIP("web", "10.96.0.10", endpoints...)))
	}
	b.hns.down = true
	if _, err := b.round(snapshot(3, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"))); !errors.Is(err, ErrNotRunning) {
		t.Errorf("%v while HNS is down", err)
	}
	want := []string{
		"list", "create_endpoint", "create_load_balancer clusterip", "list",
		"create_endpoint", "change_load_balancer clusterip", "delete_endpoint", "list",
		"delete_load_balancer clusterip", "delete_endpoint", "list", "create_endpoint not_running other",
	}
	if diff := cmp.Diff(want, reported); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, line := range reported {
		var operation string
		if _, err := fmt.Sscan(line, &operation); err != nil || !slices.Contains(Operations, operation) {
			t.Errorf("operation %q is not in the list", operation)
		}
	}
}

// TestMeterNamesErrors checks the class of each code, and kube-proxy's name for it.
func TestMeterNamesErrors(t *testing.T) {
	for code, want := range map[uint32][2]string{
		0x803b0001: {"not_found", "network_not_found"},
		0x80070490: {"not_found", "other"},
		0x803b0013: {"exists", "port_already_exists"},
		0x800700b7: {"exists", "other"},
		0x80004001: {"refused", "not_implemented"},
		0x803b001e: {"refused", "invalid_ip"},
		0x803b002f: {"exists", "invalid_ip"},
		0x803b0007: {"busy", "other"},
		0x6ba:      {"not_running", "other"},
		0x7e:       {"not_installed", "other"},
		0x12345:    {"refused", "other"},
	} {
		c := Call{Err: fmt.Errorf("in vain: %w", codeError("create", code))}
		if got := [2]string{c.Class(), c.Cause()}; got != want {
			t.Errorf("0x%x is %v, want %v", code, got, want)
		}
	}
	c := Call{Err: context.Canceled}
	if c.Class() != "other" || c.Cause() != "other" || (&Call{}).Class()+(&Call{}).Cause() != "" {
		t.Errorf("something else is %s, %s", c.Class(), c.Cause())
	}
	if d := Metered(newFake(v13), func(Call) {}); !errors.Is(d.DeleteLoadBalancer(t.Context(), LoadBalancer{ID: "none"}), ErrNotFound) {
		t.Error("an error is lost on the way")
	}
}

// TestUse checks the purpose of load balancers, including adopted ones.
func TestUse(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.options.ForwardHealthChecks, b.options.RootEndpoint = true, "cbr0"
	b.restart()
	b.pods("10.244.1.11")
	if _, err := b.hns.CreateEndpoint(t.Context(), Endpoint{Name: "cbr0", Network: bridgeN.ID, Addrs: []netip.Addr{addr("10.244.1.2")}}); err != nil {
		t.Fatal(err)
	}
	web := clusterIP("web", "10.96.0.10", "10.244.1.11:80")
	web.HealthCheck = 31000
	web.Frontends = append(web.Frontends, frontend(service.NodePort, "", 30080), frontend(service.ExternalIP, "198.51.100.9", 80), frontend(service.LoadBalancerIP, "203.0.113.5", 80))
	want := []string{"clusterip", "externalip", "healthcheck", "ingressip", "nodeport"}
	for _, situation := range []string{"made", "adopted"} {
		b.converge(snapshot(1, web))
		var got []string
		for _, lb := range b.backend.state.model.balancers {
			got = append(got, lb.Use())
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", situation, diff)
		}
		for id, lb := range b.hns.balancers {
			lb.Kind = 0
			b.hns.balancers[id] = lb
		}
		b.restart()
	}
}
