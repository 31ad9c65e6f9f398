// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// leftSlice returns the slice of Service 1 or 2, with endpoints of which the last one terminates.
func leftSlice(i int, endpoints ...string) *discoveryv1.EndpointSlice {
	port, yes := int32(8080), true
	s := plainSlice(i, 0)
	s.AddressType, s.Ports, s.Endpoints = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Port: &port}}, nil
	for k, a := range endpoints {
		e := discoveryv1.Endpoint{Addresses: []string{a}}
		if k == len(endpoints)-1 {
			e.Conditions.Terminating = &yes
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// TestLeft checks which endpoints left, of one Service that asks for the end of connections
// and one that does not, and which changes count as departures.
func TestLeft(t *testing.T) {
	w := newRecordingTracker()
	asks := plainService(2)
	w.SetService(plainService(1))
	w.SetService(asks)
	w.SetSlice(leftSlice(1, "10.0.0.1", "10.0.0.2", "10.0.0.3"))
	w.SetSlice(leftSlice(2, "10.0.0.1", "10.0.0.2"))
	connection := func(i int, endpoint string) Connection {
		name := nameOf(i)
		return Connection{service.PortName{Namespace: name.Namespace, Name: name.Name}, service.AddressOf(service.TCP, netip.MustParseAddrPort(endpoint))}
	}
	asked := []Connection{
		connection(1, "10.0.0.1:8080"), connection(2, "10.0.0.2:8080"), connection(1, "10.0.0.2:8080"), connection(2, "10.0.0.3:8080"),
		connection(1, "10.0.0.1:8081"), connection(9, "10.0.0.1:8080"), {service.PortName{}, service.AddressOf(service.TCP, netip.MustParseAddrPort("10.9.9.9:8080"))},
	}
	if _, _, settled := w.Left(asked); settled {
		t.Error("settled before all was read")
	}
	w.Synced()
	w.Batch(func() {
		_, _, settled := w.Left(asked)
		kit.Check(t, !settled, "settled in a batch")
	})
	seen := w.Departures(service.IPv4)
	for _, step := range []struct {
		name   string
		do     func()
		counts bool
		want   []Leaving
	}{
		{"all are there", func() {}, false, []Leaving{Stays, Stays, Stays, Stays, LeftAll, Stays, LeftAll}},
		{"one more", func() { w.SetSlice(leftSlice(1, "10.0.0.1", "10.0.0.4", "10.0.0.2", "10.0.0.3")) }, false, nil},
		{"a Service asks", func() {
			asks.Annotations = map[string]string{AnnotationClose: CloseLeft}
			w.SetService(asks)
		}, true, []Leaving{Stays, Stays, Stays, LeftService, LeftAll, Stays, LeftAll}},
		{"one leaves one", func() { w.SetSlice(leftSlice(1, "10.0.0.1", "10.0.0.3")) }, true, []Leaving{Stays, Stays, Stays, LeftService, LeftAll, Stays, LeftAll}},
		{"one leaves all", func() { w.SetSlice(leftSlice(2, "10.0.0.1")) }, true, []Leaving{Stays, LeftService, LeftAll, LeftService, LeftAll, Stays, LeftAll}},
		{"one does not serve", func() {
			x := leftSlice(1, "10.0.0.1", "10.0.0.3")
			x.Endpoints[1].Conditions.Ready, x.Endpoints[1].Conditions.Serving = new(bool), new(bool)
			w.SetSlice(x)
		}, true, []Leaving{Stays, LeftService, LeftAll, LeftService, LeftAll, Stays, LeftAll}},
		{"it is asked for in its own Service", func() { asked[3] = connection(1, "10.0.0.3:8080") }, false, []Leaving{Stays, LeftService, LeftAll, NotServing, LeftAll, Stays, LeftAll}},
		{"another one ceases to serve when it begins", func() {
			x := leftSlice(1, "10.0.0.1", "10.0.0.3")
			x.Endpoints[0].Conditions.Ready, x.Endpoints[0].Conditions.Serving = new(bool), new(bool)
			w.SetSlice(x)
		}, true, nil},
		{"it serves again", func() { w.SetSlice(leftSlice(1, "10.0.0.1", "10.0.0.3")); asked[3] = connection(2, "10.0.0.3:8080") }, false, nil},
		{"a slice goes", func() { w.DeleteSlice(types.NamespacedName{Namespace: nameOf(1).Namespace, Name: leftSlice(1).Name}) }, true, []Leaving{Stays, LeftService, LeftAll, LeftService, LeftAll, Stays, LeftAll}},
		{"a Service goes", func() { w.DeleteService(nameOf(2)) }, false, []Leaving{Stays, LeftAll, LeftAll, LeftAll, LeftAll, Stays, LeftAll}},
	} {
		step.do()
		now := w.Departures(service.IPv4)
		kit.Check(t, (now != seen) == step.counts, "%s: departures %d, and before %d", step.name, now, seen)
		seen = now
		got, _, settled := w.Left(asked)
		kit.Check(t, step.want == nil || settled && slices.Equal(got, step.want),
			"%s: %v, %t; want %v", step.name, got, settled, step.want)
	}
}

// departures follows which of the endpoints that drawSlice makes have left.
type departures struct {
	to    *Tracker
	known []Leaving
	count [2]uint64
}

// check requires that the Tracker counted a departure if an endpoint left or ceased to serve.
func (d *departures) check(t *rapid.T) {
	var all []Connection
	for _, prefix := range []string{"10.1.0.", "10.96.0.", "fd00:1::", "fd00:96::"} {
		for i := range 6 * 3 {
			a := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprint(prefix, 1+i%3)), 8080)
			proto := []service.Protocol{service.TCP, service.UDP}[i/3%2]
			name := service.PortName{Namespace: "d", Name: []string{"x", "y", "z"}[i/6]}
			all = append(all, Connection{name, service.AddressOf(proto, a)})
		}
	}
	known, _, settled := d.to.Left(all)
	if !settled {
		t.Fatal("not settled")
	}
	count := [2]uint64{d.to.Departures(service.IPv4), d.to.Departures(service.IPv6)}
	for i, was := range d.known {
		if f := all[i].Endpoint.Family; was < LeftAll && known[i] > was && count[f] == d.count[f] {
			t.Errorf("%+v became %d and was %d, and no departure was counted", all[i], known[i], was)
		}
	}
	d.known, d.count = known, count
}
