// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/health/servicecheck"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/config"
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
	c := newChecks(&servicecheck.Servers{Listen: refuseListen}, func(string, string) bool { return false })
	steps := []struct {
		situation string
		ports     []*service.Port
		want      map[uint16]servicecheck.Check
	}{
		{"nothing to check", []*service.Port{checkedPort(service.IPv4, "plain", 0, 0)}, map[uint16]servicecheck.Check{}},
		{"one family so far", []*service.Port{checkedPort(service.IPv4, "web", 31000, 1)}, map[uint16]servicecheck.Check{
			31000: {Namespace: "shop", Name: "web", LocalEndpoints: 1, Families: []service.Family{service.IPv4}},
		}},
		{"both, of which one counts more", []*service.Port{checkedPort(service.IPv4, "web", 31000, 1), checkedPort(service.IPv6, "web", 31000, 2)}, map[uint16]servicecheck.Check{
			31000: {Namespace: "shop", Name: "web", LocalEndpoints: 2, Families: []service.Family{service.IPv4, service.IPv6}},
		}},
		{"the last one here leaves", []*service.Port{checkedPort(service.IPv4, "web", 31000, 0)}, map[uint16]servicecheck.Check{
			31000: {Namespace: "shop", Name: "web", Families: []service.Family{service.IPv4}},
		}},
		{"deleted", nil, map[uint16]servicecheck.Check{}},
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

// TestLatency counts each change once, by the round that began after it.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLatency(time.Now())
		tell := func(name string, at time.Time) {
			l.sliceChanged(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}},
				AddressType: discoveryv1.AddressTypeIPv4,
			})
		}
		tell("before the start", time.Now().Add(-time.Hour))
		at := time.Now()
		time.Sleep(time.Second)
		tell("web", at)
		tell("web", at) // again, for another reason
		time.Sleep(time.Second)
		start := time.Now()
		time.Sleep(time.Second)
		tell("late", time.Now())
		if diff := cmp.Diff([]time.Duration{3 * time.Second}, l.takeProgrammed(service.IPv4, start, time.Now())); diff != "" {
			t.Errorf("first round (-want +got):\n%s", diff)
		}
		if got := l.takeProgrammed(service.IPv4, time.Now(), time.Now().Add(time.Second)); len(got) != 1 || got[0] != time.Second {
			t.Errorf("second round: %v, want the late one's second", got)
		}
		if got := l.takeProgrammed(service.IPv4, time.Now(), time.Now()); got != nil {
			t.Errorf("third round: %v, want nothing", got)
		}
		l.sliceDeleted(types.NamespacedName{Namespace: "shop", Name: "web"})
		if len(l.seen) != 1 {
			t.Errorf("%d slices are remembered after one left, want 1", len(l.seen))
		}
	})
}

func TestSourceStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSourceStatus(true)
		c.recordContact("services")
		c.recordError(errors.New("refused"))
		time.Sleep(staleAfter + time.Second)
		c.recordContact("endpointslices")
		got := map[string][2]bool{}
		for _, s := range c.report() {
			got[s.Name] = [2]bool{s.Synced, s.Stale}
			if s.Err != "" {
				t.Errorf("%s: error %q outlives a sign of life", s.Name, s.Err)
			}
		}
		want := map[string][2]bool{"services": {true, true}, "endpointslices": {true, false}, "nodes": {false, false}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("synced, stale (-want +got):\n%s", diff)
		}
	})
}

// TestOptionalSources checks that an optional kind is no source until it was read. After
// that its latest error counts.
func TestOptionalSources(t *testing.T) {
	c := newSourceStatus(true)
	refused := &source.ReadError{Kind: "servicecidrs", Err: errors.New("refused")}
	hidden := &source.ReadError{Kind: "servicecidrs", Optional: true, Err: errors.New("hidden")}
	shown := func() string {
		for _, s := range c.report() {
			if s.Name == "servicecidrs" {
				return s.Err
			}
		}
		return "no source"
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { c.recordError(refused) }, "watch servicecidrs at the API server: refused"},
		{func() { c.recordError(hidden) }, "no source"},
		{func() { c.recordContact("servicecidrs") }, ""},
		{func() { c.recordError(refused) }, "watch servicecidrs at the API server: refused"},
		{func() { c.recordError(hidden) }, "watch servicecidrs at the API server: hidden"},
	} {
		if step.do(); shown() != step.want {
			t.Errorf("step %d: %q, want %q", i, shown(), step.want)
		}
	}
}

// TestSourceFaultsByObject breaks two manifests and repairs them one by one.
func TestSourceFaultsByObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSourceStatus(false)
		shown := func() string {
			s := c.report()[0]
			return fmt.Sprintf("%s %d %q", s.Name, s.Faults, s.Err)
		}
		for i, step := range []struct {
			object, err, want string
		}{
			{"a.yaml", "bad a", `manifests 1 "bad a"`},
			{"b.yaml", "bad b", `manifests 2 "bad b"`},
			{"a.yaml", "worse a", `manifests 2 "worse a"`},
			{"a.yaml", "", `manifests 1 "bad b"`},
			{"b.yaml", "", `manifests 0 ""`},
		} {
			f := source.Fault{Object: step.object}
			if step.err != "" {
				f.Err = errors.New(step.err)
			}
			c.recordFault(manifestSource, f)
			if shown() != step.want {
				t.Errorf("step %d: %s, want %s", i, shown(), step.want)
			}
			time.Sleep(time.Second)
		}
		begin := time.Now()
		c.recordFault(manifestSource, source.Fault{Object: "a.yaml", Err: errors.New("bad a")})
		time.Sleep(time.Minute)
		if since := c.recordFault(manifestSource, source.Fault{Object: "a.yaml"}); !since.Equal(begin) {
			t.Errorf("over since %v, want %v", since, begin)
		}
	})
}

// TestManifestsGoStale leaves the manifests unread for two periods.
func TestManifestsGoStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSourceStatus(false)
		const poll = 10 * time.Second
		c.manifestsRead(poll)
		c.setSynced()
		time.Sleep(2 * poll)
		if s := c.report()[0]; s.Stale || !s.Synced || s.LastContact.IsZero() {
			t.Errorf("after two periods: %+v, want it not stale yet", s)
		}
		time.Sleep(time.Second)
		if s := c.report()[0]; !s.Stale {
			t.Errorf("after more than two periods: %+v, want it stale", s)
		}
		c.manifestsRead(poll)
		if s := c.report()[0]; s.Stale {
			t.Errorf("after it was looked at again: %+v, want it not stale", s)
		}
	})
}

func TestFieldOf(t *testing.T) {
	for path, want := range map[string]string{
		"spec.ports[3].port":                    "spec.ports.port",
		"spec.externalIPs[0]":                   "spec.externalIPs",
		"endpointslice web-1 endpoints[7].x[0]": "endpointslice.endpoints.x",
	} {
		if got := fieldOf(path); got != want {
			t.Errorf("fieldOf(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestStatusReporterStartsUnhealthy(t *testing.T) {
	b := &backend{mode: "nftables", family: service.IPv4}
	c, err := config.Load(&config.Flags{}, config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	o := newStatusReporter(c, []*backend{b}, "node-a", newSourceStatus(false), klog.Background())
	if o.health.Serving() {
		t.Error("healthy before the first round")
	}
}
