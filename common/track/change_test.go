// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// balanced is a Service whose load balancer admits clients of ranges.
func balanced(ranges ...string) *corev1.Service {
	s := plainService(1)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.LoadBalancerSourceRanges = ranges
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	return s
}

func keepVIP(s *corev1.Service) *corev1.Service {
	s.Annotations = map[string]string{annotationKeepVIP: "true"}
	return s
}

func nodeA(zone, addr string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: addr}}},
	}
}

// owned is a slice of Service number i, with the name of a slice of Service 1, on node.
func owned(i int, node string) *discoveryv1.EndpointSlice {
	s := plainSlice(1, 3)
	s.Labels[discoveryv1.LabelServiceName] = plainService(i).Name
	for j := range s.Endpoints {
		s.Endpoints[j].NodeName = &node
	}
	return s
}

type event func(*Tracker)

func setService(s *corev1.Service) event          { return func(t *Tracker) { t.SetService(s) } }
func setSlice(s *discoveryv1.EndpointSlice) event { return func(t *Tracker) { t.SetSlice(s) } }
func setNode(n *corev1.Node) event                { return func(t *Tracker) { t.SetNode(n) } }
func setUnread(n int) event                       { return func(t *Tracker) { t.Unread(n) } }

func setRange(cidr string) event {
	return func(t *Tracker) {
		t.SetServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}})
	}
}

func objectName(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func unready() *discoveryv1.EndpointSlice {
	s := owned(1, "a")
	no := false
	s.Endpoints[0].Conditions.Ready, s.Endpoints[0].Conditions.Serving = &no, &no
	return s
}

// changes are applied on top of base. Service 101 is in the namespace of Service 1.
var changes = map[string]struct{ base, before, after []event }{
	"annotation": {
		[]event{setSlice(plainSlice(1, 3))}, []event{setService(plainService(1))}, []event{setService(keepVIP(plainService(1)))},
	},
	"zone": {
		[]event{setService(plainService(1)), setSlice(plainSlice(1, 3))},
		[]event{setNode(nodeA("zone-0", "192.168.0.1"))}, []event{setNode(nodeA("zone-1", "192.168.0.1"))},
	},
	"address in a range": {
		[]event{setService(balanced("192.168.0.0/24"))},
		[]event{setNode(nodeA("z", "192.168.9.1"))}, []event{setNode(nodeA("z", "192.168.0.1"))},
	},
	"ranges that are all bad": {
		nil, []event{setService(balanced())}, []event{setService(balanced("bad"))},
	},
	"slice of another Service": {
		[]event{setService(plainService(1)), setService(plainService(101))},
		[]event{setSlice(owned(1, "a"))}, []event{setSlice(owned(101, "a"))},
	},
	"from here to there": {
		[]event{setService(balanced())}, []event{setSlice(owned(1, "b"))}, []event{setSlice(owned(1, "c")), setSlice(owned(1, "a"))},
	},
	"one endpoint down": {
		[]event{setService(balanced())}, []event{setSlice(owned(1, "a"))}, []event{setSlice(unready())},
	},
	"headless from now on": {
		nil, []event{setService(plainService(1))},
		[]event{func(t *Tracker) {
			s := plainService(1)
			s.Spec.ClusterIP = corev1.ClusterIPNone
			t.SetService(s)
		}},
	},
	"slices before the Service": {
		nil, []event{setSlice(owned(1, "a"))}, []event{setSlice(owned(1, "a")), setService(plainService(1))},
	},
	"Service deleted": {
		nil, []event{setService(plainService(1))}, []event{func(t *Tracker) { t.DeleteService(objectName(plainService(1))) }},
	},
	"slice deleted": {
		[]event{setService(plainService(1))}, []event{setSlice(owned(1, "a"))},
		[]event{func(t *Tracker) { t.DeleteSlice(objectName(owned(1, "a"))) }},
	},
	"ServiceCIDR": {
		nil, []event{setRange("10.96.0.0/16")}, []event{setRange("10.97.0.0/16")},
	},
	"ServiceCIDR deleted": {
		nil, []event{setRange("10.96.0.0/16")}, []event{func(t *Tracker) { t.DeleteServiceCIDR("") }},
	},
	"address of the host in the only ServiceCIDR": {
		[]event{setRange("10.96.0.0/16")},
		nil, []event{func(t *Tracker) { t.SetHost(Host{Addrs: []netip.Prefix{netip.MustParsePrefix("10.96.0.7/16")}}) }},
	},
	"an object cannot be read": {
		[]event{setService(plainService(1))}, nil, []event{setUnread(1)},
	},
	"all objects can be read": {
		[]event{setService(plainService(1))}, []event{setUnread(1)}, []event{setUnread(0)},
	},
}

// Each change alone is announced and reaches the next snapshot, which equals that of a
// Tracker which saw only the final objects.
func TestChangeIsNoticed(t *testing.T) {
	for name, tt := range changes {
		t.Run(name, func(t *testing.T) {
			live, scratch := New(Options{NodeName: "a"}), New(Options{NodeName: "a"})
			live.Synced()
			for _, e := range append(tt.base, tt.before...) {
				e(live)
			}
			first := text(live.Latest())
			announced := false
			live.Subscribe(Listener{Changed: func() { announced = true }})
			for _, e := range tt.after {
				announced = false
				e(live)
			}
			if !announced {
				t.Error("the last change was not announced")
			}
			for _, e := range append(tt.base, tt.after...) {
				e(scratch)
			}
			scratch.Synced()
			got := text(live.Latest())
			if diff := cmp.Diff(text(scratch.Latest()), got); diff != "" {
				t.Errorf("snapshot (-want +got):\n%s", diff)
			}
			if got == first {
				t.Errorf("the change made no difference:\n%s", got)
			}
			checkSnapshot(t, live.Latest())
		})
	}
}

// A Service whose endpoints differ for policy Local only gets a new Port.
func TestLocalAloneChanges(t *testing.T) {
	yes, no := true, false
	state := func(serving *bool) *discoveryv1.EndpointSlice {
		s := owned(1, "a")
		s.Endpoints = s.Endpoints[:2]
		b := "b"
		s.Endpoints[0].NodeName = &b
		s.Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: serving, Terminating: &yes}
		return s
	}
	tracker := New(Options{NodeName: "a"})
	tracker.SetService(balanced())
	tracker.SetSlice(state(&no))
	tracker.Synced()
	before := tracker.Latest()
	tracker.SetSlice(state(&yes))
	for p := range tracker.Latest().Ports(0) {
		if old := before.Port(p.Family, p.Name); len(p.Local) != 1 || len(old.Local) != 0 || &p.Cluster[0] != &old.Cluster[0] {
			t.Errorf("Local = %v after %v, Cluster shared %v; want one after none, and shared",
				p.Local, old.Local, &p.Cluster[0] == &old.Cluster[0])
		}
	}
}
