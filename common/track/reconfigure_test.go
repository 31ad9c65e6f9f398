// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
)

// Reconfigure leads to the same snapshot as these Options from the start, and keeps the
// Ports that they do not affect.
func TestReconfigure(t *testing.T) {
	for name, o := range map[string]Options{
		"pods":                 {Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}},
		"pods from the node":   {PodsFromNode: true},
		"by interface":         {Pods: service.LocalPods{Interface: "br0"}},
		"NodePort addresses":   {NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		"the node's primary":   {NodePortsPrimary: true},
		"masquerade all":       {MasqueradeAll: true},
		"address of the node":  {NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.99")}, NodePortsPrimary: true},
		"in reach of a Source": {NodeIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRecordingTracker()
			feed(w.Tracker)
			before := w.Latest()
			changes := w.changes
			w.Reconfigure(o)
			if w.changes != changes+1 {
				t.Errorf("Changed called %d times, want once", w.changes-changes)
			}
			o.NodeName = "a"
			fresh := New(o)
			feed(fresh)
			if diff := cmp.Diff(contents(fresh), contents(w.Tracker)); diff != "" {
				t.Errorf("(-from the start +reconfigured):\n%s", diff)
			}
			if w.Latest() == before || len(o.NodeIPs) == 0 && !samePorts(before, w.Latest()) {
				t.Error("the same snapshot, or other Ports than before")
			}
			latest := w.Latest()
			w.Reconfigure(o)
			if w.Latest() != latest || w.changes != changes+1 {
				t.Error("the same choices again are a change")
			}
		})
	}
}

// contents describes t's latest snapshot.
func contents(t *Tracker) []string {
	s := t.Latest()
	all := []string{fmt.Sprintf("%+v", *s.Node)}
	for p := range s.Ports(service.IPv4) {
		all = append(all, fmt.Sprintf("%+v", *p))
	}
	return all
}

func samePorts(a, b *service.Snapshot) bool {
	for range service.Diff(a, b, service.IPv4) {
		return false
	}
	return true
}

// feed gives t a node, and a Service with source ranges that depend on the node's
// addresses.
func feed(t *Tracker) {
	n := &corev1.Node{}
	n.Name, n.Spec.PodCIDR = "a", "10.1.0.0/24"
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	t.SetNode(n)
	t.SetService(plainService(1))
	s := plainService(2)
	s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"203.0.113.0/24"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
	t.SetService(s)
	t.SetSlice(plainSlice(1, 3))
	t.SetSlice(plainSlice(2, 3))
	t.Synced()
}
