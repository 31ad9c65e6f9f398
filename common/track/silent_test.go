// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// silentCluster has Services of ten endpoints on node-0 to node-9, more or less. See
// plainSlice.
func silentCluster(services int) *Tracker {
	t := New(Options{NodeName: "node-7", SilentEndpoints: SilentOn})
	for i := range services {
		t.SetService(plainService(i))
		t.SetSlice(plainSlice(i, 10))
	}
	t.Synced()
	t.Latest()
	return t
}

// ofSlice returns endpoint j of Service i.
func ofSlice(i, j int) service.Address {
	a := netip.MustParseAddr(plainSlice(i, 10).Endpoints[j].Addresses[0])
	return service.AddressOf(service.TCP, netip.AddrPortFrom(a, 8080))
}

func portName(i int) service.PortName {
	n := nameOf(i)
	return service.PortName{Namespace: n.Namespace, Name: n.Name, Port: "http", Protocol: service.TCP}
}

// A change of what is silent touches the Services that have it, and no others.
func TestSetSilentTouches(t *testing.T) {
	changes := 0
	w := silentCluster(50)
	w.Subscribe(Listener{Changed: func() { changes++ }})
	now := time.Unix(100, 0)
	before := w.Latest()
	other := ofSlice(7, 3)
	other.Port++
	for i, x := range []struct {
		silent []service.Address
		want   []int // Services that change
	}{
		{},
		{silent: []service.Address{ofSlice(7, 3), ofSlice(9, 1)}, want: []int{7, 9}},
		{silent: []service.Address{ofSlice(7, 3), ofSlice(9, 1)}},
		{silent: []service.Address{ofSlice(7, 3)}, want: []int{9}},
		{silent: []service.Address{ofSlice(7, 3), other}},
		{want: []int{7}},
	} {
		all := map[service.Address]time.Time{}
		for _, a := range x.silent {
			all[a] = now
		}
		called := changes
		w.SetSilent(all)
		if got := len(w.dirty); got != len(x.want) || changes-called != min(1, len(x.want)) {
			t.Errorf("step %d: %d Services are dirty, Changed called %d times; want %v", i, got, changes-called, x.want)
		}
		next := w.Latest()
		for k := range 50 {
			same := before.Port(service.IPv4, portName(k)) == next.Port(service.IPv4, portName(k))
			kit.Check(t, same != slices.Contains(x.want, k), "step %d: Service %d is the same: %t", i, k, same)
		}
		before = next
	}
}

// The order of silent endpoints and the operator's choice decide again when they change.
func TestSilentAgain(t *testing.T) {
	w := silentCluster(1)
	w.SetSlice(plainSlice(0, 3))
	a := func(j int) service.Address {
		return service.AddressOf(service.TCP, netip.AddrPortFrom(netip.MustParseAddr(plainSlice(0, 3).Endpoints[j].Addresses[0]), 8080))
	}
	has := func(want ...int) {
		t.Helper()
		var got []netip.AddrPort
		for _, e := range w.Latest().Port(service.IPv4, portName(0)).Cluster {
			got = append(got, e.Addr)
		}
		kit.Need(t, len(got) == len(want), "endpoints %v, want %v", got, want)
		for _, j := range want {
			kit.Check(t, slices.Contains(got, netip.AddrPortFrom(a(j).Addr, 8080)), "endpoints %v, want %v", got, want)
		}
	}
	early, late := time.Unix(1, 0), time.Unix(2, 0)
	w.SetSilent(map[service.Address]time.Time{a(0): early, a(1): late})
	has(1, 2)
	w.SetSilent(map[service.Address]time.Time{a(0): late, a(1): early})
	has(0, 2)
	o := w.options
	o.SilentEndpoints = SilentObserve
	w.Reconfigure(o)
	has(0, 1, 2)
	o.SilentEndpoints = SilentOn
	w.Reconfigure(o)
	has(0, 2)
	s := plainService(0)
	s.Annotations = map[string]string{AnnotationSilent: "off"}
	w.SetService(s)
	has(0, 1, 2)
	w.SetService(plainService(0))
	has(0, 2)
	w.SetSilent(nil)
	has(0, 1, 2)
}

// TestSilentUses has the longest silent of three endpoints of a Service left out, and no more.
func TestSilentUses(t *testing.T) {
	w := New(Options{NodeName: "node-7", SilentEndpoints: SilentOn})
	for i := 3; i < 5; i++ {
		few := plainSlice(i, 10)
		few.Endpoints = few.Endpoints[:3]
		w.SetService(plainService(i))
		w.SetSlice(few)
	}
	w.Synced()
	all := w.SilentUses()
	kit.Check(t, all == nil, "%v without silent endpoints", all)
	elsewhere := ofSlice(3, 0)
	elsewhere.Port++
	w.SetSilent(map[service.Address]time.Time{ofSlice(3, 0): time.Unix(20, 0), ofSlice(3, 1): time.Unix(10, 0), elsewhere: time.Unix(1, 0)})
	uses := func(first, second bool) []SilentUse {
		return []SilentUse{{ofSlice(3, 0), portName(3), first}, {ofSlice(3, 1), portName(3), second}}
	}
	for policy, want := range map[Silent][]SilentUse{SilentOn: uses(false, true), SilentObserve: uses(false, false), SilentOff: nil} {
		w.Reconfigure(Options{SilentEndpoints: policy})
		all := w.SilentUses()
		kit.Check(t, slices.Equal(all, want), "%s: %v, want %v", policy, all, want)
	}
}

func TestPeers(t *testing.T) {
	w := silentCluster(3)
	local := 1 // on node-7
	for range 20 {
		all, alike := w.Peers(ofSlice(1, local), portName(1))
		kit.Need(t, len(all) == 9 && alike && !slices.Contains(all, ofSlice(1, local)),
			"peers of a local endpoint: %v, %t", all, alike)
		all, alike = w.Peers(ofSlice(1, 4), portName(1))
		kit.Need(t, len(all) == 8 && alike && !slices.Contains(all, ofSlice(1, local)) && !slices.Contains(all, ofSlice(1, 4)),
			"peers of a remote endpoint: %v, %t", all, alike)
	}
	w.SetSlice(plainSlice(1, 2))
	a := netip.AddrPortFrom(netip.MustParseAddr(plainSlice(1, 2).Endpoints[0].Addresses[0]), 8080)
	all, alike := w.Peers(service.AddressOf(service.TCP, a), portName(1))
	kit.Check(t, len(all) == 1 && !alike, "peers of the only remote one: %v, %t", all, alike)
	w.SetSlice(plainSlice(0, 100))
	if all, _ := w.Peers(ofSlice(0, 0), portName(0)); len(all) != maxPeers {
		t.Errorf("%d peers of 100", len(all))
	}
	off := plainService(2)
	off.Annotations = map[string]string{AnnotationSilent: "off"}
	for what, none := range map[string]func() ([]service.Address, bool){
		"not an endpoint": func() ([]service.Address, bool) { return w.Peers(ofSlice(2, 4), portName(1)) },
		"another Service": func() ([]service.Address, bool) { return w.Peers(ofSlice(1, 4), portName(9)) },
		"switched off":    func() ([]service.Address, bool) { w.SetService(off); return w.Peers(ofSlice(2, 4), portName(2)) },
		"the only endpoint": func() ([]service.Address, bool) {
			w.SetSlice(plainSlice(0, 1))
			return w.Peers(ofSlice(0, 0), portName(0))
		},
	} {
		all, alike := none()
		kit.Check(t, len(all) == 0 && !alike, "%s: %v, %t", what, all, alike)
	}
}

func TestSameNode(t *testing.T) {
	w := silentCluster(20)
	off := plainService(5)
	off.Annotations = map[string]string{AnnotationSilent: "off"}
	w.SetService(off)
	got, want := w.SameNode(ofSlice(3, 2)), map[service.Address]service.PortName{}
	for i := range 20 {
		if i != 3 && i != 5 {
			want[ofSlice(i, 2)] = portName(i)
		}
	}
	kit.Check(t, fmt.Sprint(got) == fmt.Sprint(want), "got %v, want %v", got, want)
	all := w.SameNode(ofSlice(99, 2))
	kit.Check(t, len(all) == 0, "of an unknown one: %v", all)
	large := silentCluster(1000)
	n := len(large.SameNode(ofSlice(3, 2)))
	kit.Check(t, n >= 400 && n <= maxSameNode, "%d of 1000 on one node", n)
}

// Over UDP a silent endpoint is left out, and its flows are cut: it does not drain.
func TestSilentDatagrams(t *testing.T) {
	w := silentCluster(1)
	s, slice := plainService(0), plainSlice(0, 4)
	s.Spec.Ports[0].Protocol, slice.Ports[0].Protocol = corev1.ProtocolUDP, ptr(corev1.ProtocolUDP)
	for i := range slice.Endpoints {
		slice.Endpoints[i].NodeName = nil
	}
	w.SetService(s)
	w.SetSlice(slice)
	name, silent := portName(0), ofSlice(0, 1)
	name.Protocol, silent.Protocol = service.UDP, service.UDP
	w.SetSilent(map[service.Address]time.Time{silent: time.Unix(10, 0)})
	p := w.Latest().Port(service.IPv4, name)
	kit.Check(t, len(p.Cluster) == 3 && !slices.ContainsFunc(p.Cluster, func(e service.Endpoint) bool { return e.Addr.Addr() == silent.Addr }) && len(p.Draining) <= 0,
		"%v are used, %v drain", p.Cluster, p.Draining)
	all := w.SilentUses()
	kit.Check(t, len(all) == 1 && all[0] == (SilentUse{silent, name, true}), "%v", all)
	same := silent
	same.Protocol = service.TCP // of an address without a node
	if all := w.SameNode(same); len(all) != 1 || all[silent] != name {
		t.Errorf("at one address: %v", all)
	}
}
