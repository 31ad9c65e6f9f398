// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
)

// TestConditions checks that each condition of a running proxy becomes a finding, of the
// topic that the checks of the node use if there is one.
func TestConditions(t *testing.T) {
	healthy := map[string]health.FamilyReport{"IPv4": {Healthy: true}}
	for situation, test := range map[string]struct {
		report health.Report
		want   []string // topic, subject, severity
	}{
		"all is well":         {health.Report{Healthy: true, Status: healthy}, nil},
		"a failing family":    {health.Report{Status: map[string]health.FamilyReport{"IPv4": {Healthy: true, Failing: true, LastError: "refused"}}}, []string{"proxy-unhealthy IPv4 blocks"}},
		"an unhealthy family": {health.Report{Status: map[string]health.FamilyReport{"IPv6": {Reason: "a change waits"}}}, []string{"proxy-unhealthy IPv6 blocks"}},
		"no forwarding": {health.Report{Conditions: map[string]string{"setting-net.ipv4.ip_forward": "is 0"}, Blocked: []string{"setting-net.ipv4.ip_forward"}},
			[]string{"ip-forward net.ipv4.ip_forward blocks"}},
		"another setting":     {health.Report{Conditions: map[string]string{"setting-net.netfilter.nf_conntrack_max": "stays"}}, []string{"setting net.netfilter.nf_conntrack_max risk"}},
		"two proxies":         {health.Report{Conditions: map[string]string{"other-proxy": "x", "other-rules-IPv4": "y"}}, []string{"other-proxy other-proxy risk", "other-proxy other-proxy risk"}},
		"leftovers":           {health.Report{Conditions: map[string]string{"leftovers-IPv4": "x"}}, []string{"leftovers leftovers-IPv4 risk"}},
		"a shared mark":       {health.Report{Conditions: map[string]string{"shared-mark-IPv4": "x"}}, []string{"shared-mark shared-mark-IPv4 risk"}},
		"a check unanswered":  {health.Report{Conditions: map[string]string{"health-checks": "x"}, Blocked: []string{"health-checks"}}, []string{"proxy-condition health-checks blocks"}},
		"hidden NodePorts":    {health.Report{Conditions: map[string]string{"node-ports": "2 NodePorts"}}, nil}, // which the node's own check lists
		"an unknown one":      {health.Report{Conditions: map[string]string{"some-new": "x"}}, []string{"proxy-condition some-new risk"}},
		"a source that fails": {health.Report{Sources: []health.SourceReport{{Name: "services", Synced: true, Error: "refused"}, {Name: "nodes", Synced: true}}}, []string{"api-server services risk"}},
		"a source unread":     {health.Report{Sources: []health.SourceReport{{Name: "services"}}}, []string{"api-server services risk"}},
		"a source silent":     {health.Report{Sources: []health.SourceReport{{Name: "services", Synced: true, Stale: true}}}, []string{"api-server services risk"}},
	} {
		t.Run(situation, func(t *testing.T) {
			p := &Proxy{Answer: &statusview.Answer{Response: servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Health: test.report}}}}
			seen, err := p.Check(nil).Look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range seen.Findings {
				got = append(got, strings.Join([]string{string(f.Topic), f.Subject, string(f.severity())}, " "))
				if f.What == "" || f.Fix+f.Advice == "" {
					t.Errorf("says nothing: %+v", f)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSilentProxy checks that a proxy which holds the lease and cannot be asked is found,
// and that no proxy is no finding.
func TestSilentProxy(t *testing.T) {
	p := &Proxy{Err: errors.New("refused")}
	for runs, want := range map[bool]int{true: 1, false: 0} {
		seen, err := p.Check(func(context.Context) (lease.Identity, bool) { return lease.Identity{PID: 7}, runs }).Look(t.Context())
		if err != nil || len(seen.Findings) != want || seen.Absent == runs {
			t.Errorf("runs %t: %+v, %v", runs, seen, err)
		}
	}
	if p.String() != "" || p.Services() != nil {
		t.Errorf("says %q and serves %v", p, p.Services())
	}
}

// TestServices checks that ClusterIPs, NodePorts and health checks come through.
func TestServices(t *testing.T) {
	p := &Proxy{Answer: &statusview.Answer{Response: servicestate.Response{Services: []servicestate.Service{{
		Namespace: "shop", Name: "web", HealthCheck: &servicestate.HealthCheck{Port: 31000},
		Ports: []servicestate.Port{
			{Port: "dns", Protocol: "UDP", Family: "IPv6", Frontends: []servicestate.Frontend{{Kind: "ClusterIP", Address: "fd00::1", Port: 53}, {Kind: "NodePort", Port: 30053}}},
		},
	}}}}}
	var got []service.Port
	for x := range p.Services().Ports(service.IPv6) {
		got = append(got, *x)
	}
	want := []service.Port{{Family: service.IPv6, Name: service.PortName{Namespace: "shop", Name: "web", Port: "dns", Protocol: service.UDP}, HealthCheck: 31000,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("fd00::1"), Port: 53}, {Kind: service.NodePort, Port: 30053}}}}
	if len(got) != 1 || got[0].Name != want[0].Name || got[0].HealthCheck != 31000 || !slices.EqualFunc(got[0].Frontends, want[0].Frontends, service.Frontend.Equal) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
