// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/test/kit"
)

var _ source.Sink = (*Tracker)(nil)

// recordingTracker is a Tracker that counts calls of Changed and keeps reports.
type recordingTracker struct {
	*Tracker
	changes int
	reports []string
}

func newRecordingTracker() *recordingTracker {
	w := &recordingTracker{}
	w.Tracker = New(Options{NodeName: "a"})
	w.Subscribe(Listener{
		Changed: func() { w.changes++ },
		Found: func(all []Problem) {
			for _, p := range all {
				w.reports = append(w.reports, p.String())
			}
		},
	})
	return w
}

func nameOf(i int) types.NamespacedName {
	s := plainService(i)
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

func TestNothingBeforeSynced(t *testing.T) {
	w := newRecordingTracker()
	w.SetService(plainService(1))
	s := w.Latest()
	kit.Check(t, s == nil && w.changes == 0, "before Synced: Latest = %v, Changed %d times; want neither", s, w.changes)
	w.Synced()
	if s := w.Latest(); s == nil || s.Len(service.IPv4) != 1 || w.changes != 1 {
		t.Errorf("after Synced: Latest = %v, Changed %d times; want one port and one call", s, w.changes)
	}
}

// An object with the same meaning causes neither a change nor a new snapshot.
func TestSameMeaning(t *testing.T) {
	for name, again := range map[string]func(*Tracker){
		"service again": func(t *Tracker) { t.SetService(plainService(1)) },
		"service with other labels": func(t *Tracker) {
			s := plainService(1)
			s.Labels, s.ResourceVersion = map[string]string{"a": "b"}, "7"
			t.SetService(s)
		},
		"slice again": func(t *Tracker) { t.SetSlice(plainSlice(1, 3)) },
		"node heartbeat": func(t *Tracker) {
			t.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: " A", ResourceVersion: "8"}})
		},
		"another node": func(t *Tracker) {
			t.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24"}})
		},
		"node deleted":          func(t *Tracker) { t.DeleteNode() },
		"unknown slice deleted": func(t *Tracker) { t.DeleteSlice(nameOf(7)) },
		"unknown service gone":  func(t *Tracker) { t.DeleteService(nameOf(7)) },
		"other external policy of a Service that is not external": func(t *Tracker) {
			s := plainService(1)
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			t.SetService(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRecordingTracker()
			w.SetService(plainService(1))
			w.SetSlice(plainSlice(1, 3))
			w.Synced()
			before, changes := w.Latest(), w.changes
			again(w.Tracker)
			if w.changes != changes || w.Latest() != before {
				t.Errorf("Changed called %d times, new snapshot %v; want neither", w.changes-changes, w.Latest() != before)
			}
		})
	}
}

// A change without effect on forwarding keeps the snapshot.
func TestNoDifference(t *testing.T) {
	w := newRecordingTracker()
	w.SetService(plainService(1))
	w.SetSlice(plainSlice(1, 3))
	w.Synced()
	before := w.Latest()
	s := plainSlice(1, 3)
	down := false
	s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
		Addresses: []string{"10.9.9.9"}, Conditions: discoveryv1.EndpointConditions{Ready: &down}})
	w.SetSlice(s)
	kit.Check(t, w.changes == 2, "Changed called %d times, want 2: for Synced and the slice", w.changes)
	kit.Check(t, w.Latest() == before, "an endpoint that is not ready made a new snapshot")
}

func TestReportOnce(t *testing.T) {
	w := newRecordingTracker()
	w.Synced()
	bad := plainService(1)
	bad.Spec.ExternalIPs = []string{"bad"}
	steps := []struct {
		do   func()
		want int // reports so far
	}{
		{func() { w.SetService(bad) }, 1},
		{func() { w.SetSlice(plainSlice(1, 2)) }, 1},
		{func() { w.SetService(plainService(1)) }, 1},
		{func() { w.SetService(bad) }, 2},
		{func() { w.DeleteService(nameOf(1)) }, 2},
	}
	for i, s := range steps {
		s.do()
		w.Latest()
		kit.Check(t, len(w.reports) == s.want, "step %d: reports = %q, want %d", i, w.reports, s.want)
	}
	want := `service ns-1/service-1: spec.externalIPs[0]: "bad" is not an IP address`
	kit.Check(t, len(w.reports) != 0 && w.reports[0] == want, "reports = %q, want %q first", w.reports, want)
	p := w.Problems()
	kit.Check(t, len(p) == 0, "Problems = %v, want none: the Service is gone", p)
}

// The loser of an address gets it when the winner is deleted, and loses it again to an
// older Service.
func TestAddressChangesHands(t *testing.T) {
	w := newRecordingTracker()
	claim := func(i int, created int64) {
		s := plainService(i)
		s.CreationTimestamp = metav1.Unix(created, 0)
		s.Spec.ExternalIPs = []string{"203.0.113.1"}
		w.SetService(s)
	}
	holder := func() string {
		for p := range w.Latest().Ports(service.IPv4) {
			for _, f := range p.Frontends {
				if f.Kind == service.ExternalIP {
					return p.Name.Name
				}
			}
		}
		return "nobody"
	}
	w.Synced()
	var got []string
	for _, do := range []func(){
		func() { claim(2, 100) },
		func() { claim(1, 100) },
		func() { claim(3, 50) },
		func() { claim(3, 150) }, // created anew
		func() { w.DeleteService(nameOf(1)) },
		func() { w.SetService(plainService(2)) },
		func() { w.DeleteService(nameOf(3)) },
	} {
		do()
		got = append(got, holder())
	}
	want := []string{"service-2", "service-1", "service-3", "service-1", "service-2", "service-3", "nobody"}
	kit.Same(t, "holders (-want +got)", want, got)
}

func TestTooManyEndpoints(t *testing.T) {
	w := newRecordingTracker()
	w.SetService(plainService(0))
	w.SetSlice(plainSlice(0, maxEndpoints+2))
	w.Synced()
	p := w.Latest().Port(service.IPv4, service.PortName{Namespace: "ns-0", Name: "service-0", Port: "http", Protocol: service.TCP})
	kit.Check(t, len(p.Cluster) == maxEndpoints, "%d endpoints, want %d", len(p.Cluster), maxEndpoints)
	kit.Check(t, len(w.reports) == 1 && strings.Contains(w.reports[0], "has 2 endpoints too many"),
		"reports = %q, want one about 2 endpoints", w.reports)
	if cap(w.chooser.candidates) > 0 {
		t.Errorf("memory for %d candidates is kept", cap(w.chooser.candidates))
	}
}

func TestConcurrentUse(t *testing.T) {
	tracker := New(Options{NodeName: "a"})
	tracker.Synced()
	var g sync.WaitGroup
	for range 2 {
		g.Go(func() {
			last := uint64(0)
			for range 500 {
				s := tracker.Latest()
				kit.Check(t, s.Generation >= last, "generation %d after %d", s.Generation, last)
				last = s.Generation
			}
		})
	}
	for i := range 500 {
		tracker.SetService(plainService(i % 20))
		tracker.SetSlice(plainSlice(i%20, i%7))
	}
	g.Wait()
}

func FuzzObjects(f *testing.F) {
	svc, _ := json.Marshal(plainService(1))
	slice, _ := json.Marshal(plainSlice(1, 2))
	f.Add(svc, slice)
	f.Add([]byte(`{"spec":{"type":"LoadBalancer","clusterIPs":["10.0.0.1","::1"],"loadBalancerSourceRanges":["::ffff:1.2.3.4/99"],"ports":[{"port":1,"nodePort":-1}]},"status":{"loadBalancer":{"ingress":[{"ip":"::ffff:1.2.3.4"}]}}}`),
		[]byte(`{"metadata":{"labels":{"kubernetes.io/service-name":""}},"addressType":"IPv6","endpoints":[{"addresses":["::1%x"]},{}]}`))
	f.Fuzz(func(t *testing.T, svc, slice []byte) {
		var s corev1.Service
		var e discoveryv1.EndpointSlice
		if json.Unmarshal(svc, &s) != nil || json.Unmarshal(slice, &e) != nil {
			return
		}
		tracker := New(Options{NodeName: "a"})
		tracker.SetService(&s)
		tracker.SetSlice(&e)
		tracker.Synced()
		first := tracker.Latest()
		checkSnapshot(t, first)
		tracker.SetService(&s)
		tracker.SetSlice(&e)
		kit.Check(t, tracker.Latest() == first, "the same objects again made a new snapshot")
		for _, p := range tracker.Problems() {
			_ = fmt.Sprint(p)
		}
	})
}

// A port's name is in the Service and in its slices. Between the two updates the port has
// no endpoints, and no snapshot may show that.
func TestBatch(t *testing.T) {
	w := newRecordingTracker()
	w.SetService(plainService(1))
	w.SetSlice(plainSlice(1, 3))
	w.Synced()
	before, changes := w.Latest(), w.changes
	renamed, slice := plainService(1), plainSlice(1, 3)
	other := "other"
	renamed.Spec.Ports[0].Name, slice.Ports[0].Name = other, &other
	w.Batch(func() {
		w.SetService(renamed)
		if w.Latest() != before || w.changes != changes {
			t.Errorf("within a batch: another snapshot %v, Changed %d times; want neither", w.Latest() != before, w.changes-changes)
		}
		w.SetSlice(slice)
	})
	kit.Check(t, w.changes == changes+1, "Changed called %d times; want once", w.changes-changes)
	after := w.Latest()
	kit.Check(t, after.Generation == before.Generation+1,
		"generation %d after %d; want the next one", after.Generation, before.Generation)
	for p := range after.Ports(service.IPv4) {
		kit.Check(t, p.Name.Port == other && len(p.Cluster) == 3,
			"port %q with %d endpoints; want %q with 3", p.Name.Port, len(p.Cluster), other)
	}
}

// If Latest was called within a batch, Changed is called after it, even if nothing was
// published before.
func TestBatchIsReported(t *testing.T) {
	w := newRecordingTracker()
	w.Synced()
	changes := w.changes
	w.Batch(func() {
		s := w.Latest()
		kit.Check(t, s == nil, "Latest within the first batch = %v, want nil", s)
	})
	if w.changes != changes+1 || w.Latest() == nil {
		t.Errorf("Changed called %d times, Latest %v; want once and a snapshot", w.changes-changes, w.Latest())
	}
	changes = w.changes
	w.Batch(func() {})
	kit.Check(t, w.changes == changes, "Changed called after a batch without anything in it")
}

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

// TestReady counts what slices list, whether this node uses it or not.
func TestReady(t *testing.T) {
	w := New(Options{NodeName: "a"})
	w.SetService(balanced()) // only for endpoints on its node
	w.SetSlice(owned(1, "b"))
	all := w.Ready()
	w.SetSlice(unready())
	rest := w.Ready()
	kit.Check(t, all == 3 && rest == 2, "%d ready endpoints, then %d; want 3 and 2", all, rest)
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
			kit.Check(t, announced, "the last change was not announced")
			for _, e := range append(tt.base, tt.after...) {
				e(scratch)
			}
			scratch.Synced()
			got := text(live.Latest())
			kit.Same(t, "snapshot (-want +got)", text(scratch.Latest()), got)
			kit.Check(t, got != first, "the change made no difference:\n%s", got)
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

func TestChoice(t *testing.T) {
	tracker := New(Options{NodeName: "a"})
	port := int32(8080)
	tracker.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}},
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyLocal),
		},
	})
	tracker.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.1.1"}, NodeName: new("A"), Zone: new("east")},
			{Addresses: []string{"10.244.2.1"}, NodeName: new("b"), Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
		},
	})
	tracker.Synced()
	tracker.Latest()
	got := tracker.Choice(service.IPv4, service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}).Candidates
	want := []Candidate{
		{
			Listed: Listed{Address: "10.244.1.1:8080", Node: "A", Zone: "east", Local: true, State: "ready"}, Ready: true,
			Cluster: Use{Used: true, Why: "it is ready"}, ForLocal: &Use{Used: true, Why: "it is ready"},
		},
		{
			Listed:  Listed{Address: "10.244.2.1:8080", Node: "b", State: "not ready"},
			Cluster: Use{Why: "it is not ready"}, ForLocal: &Use{Why: "it is not on this node"},
		},
	}
	kit.Same(t, "(-want +got)", want, got)
}

// listedSlice has endpoints 1 to 5: ready, not ready, terminating, ready on this node,
// and terminating on this node.
func listedSlice() *discoveryv1.EndpointSlice {
	s := plainSlice(1, 5)
	yes, no, here, there := true, false, "a", "b"
	for i, c := range []discoveryv1.EndpointConditions{
		{Ready: &yes}, {Ready: &no, Serving: &no}, {Ready: &no, Serving: &yes, Terminating: &yes}, {Ready: &yes}, {Ready: &no, Serving: &yes, Terminating: &yes},
	} {
		s.Endpoints[i].Conditions, s.Endpoints[i].NodeName = c, &there
		if i > 2 {
			s.Endpoints[i].NodeName = &here
		}
	}
	return s
}

// With Options.Listed the snapshot contains addresses of other nodes that get no traffic,
// and nothing else changes. Without it, the snapshot lacks them.
func TestListed(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		t.Run(fmt.Sprint(wanted), func(t *testing.T) {
			tracker := New(Options{NodeName: "a", Listed: wanted})
			tracker.SetService(plainService(1))
			tracker.SetSlice(listedSlice())
			tracker.Synced()
			port := func() *service.Port {
				for p := range tracker.Latest().Ports(service.IPv4) {
					return p
				}
				t.Fatal("no port")
				return nil
			}
			first := port()
			addr := func(i int) string { return listedSlice().Endpoints[i].Addresses[0] }
			want := "[]"
			if wanted {
				want = fmt.Sprintf("[%s %s]", addr(1), addr(2))
			}
			if got := fmt.Sprint(first.Listed); got != want || len(first.Cluster) != 2 {
				t.Errorf("listed %s beside %v, want %s", got, first.Cluster, want)
			}
			gone := listedSlice()
			gone.Endpoints = append(gone.Endpoints[:2:2], gone.Endpoints[3:]...)
			tracker.SetSlice(gone)
			if now := port(); (now == first) == wanted {
				t.Errorf("a terminating endpoint is listed no more: the port is another one: %t", now != first)
			}
			label := gone.DeepCopy()
			label.Labels["x"] = "y"
			before := port()
			tracker.SetSlice(label)
			kit.Check(t, port() == before, "nothing changed, and the port is another one")
		})
	}
}

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
			kit.Check(t, w.changes == changes+1, "Changed called %d times, want once", w.changes-changes)
			o.NodeName = "a"
			fresh := New(o)
			feed(fresh)
			kit.Same(t, "(-from the start +reconfigured)", contents(fresh), contents(w.Tracker))
			kit.Check(t, w.Latest() != before && (len(o.NodeIPs) != 0 || samePorts(before, w.Latest())),
				"the same snapshot, or other Ports than before")
			latest := w.Latest()
			w.Reconfigure(o)
			kit.Check(t, w.Latest() == latest && w.changes == changes+1, "the same choices again are a change")
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

// A Service without endpoints whose slices are for another one, or for none, is told which.
func TestMissed(t *testing.T) {
	label := discoveryv1.LabelServiceName
	for name, test := range map[string]struct {
		change func(*corev1.Service, *discoveryv1.EndpointSlice)
		missed string
		code   Code
	}{
		"all well": {change: func(*corev1.Service, *discoveryv1.EndpointSlice) {}},
		"other port": {
			func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Ports[0].Name = "web" },
			"slice service-1-x7k2p has 2 ready endpoints, on port http/TCP, none named web/TCP", PortMismatch,
		},
		"no label": {
			func(_ *corev1.Service, s *discoveryv1.EndpointSlice) { s.Labels = nil },
			"slice service-1-x7k2p has 2 ready endpoints, and names no Service by the label " + label, SliceWithoutService,
		},
		"label misspelt": {
			func(_ *corev1.Service, s *discoveryv1.EndpointSlice) { s.Name, s.Labels[label] = "x", "servce-1" },
			"slice x has 2 ready endpoints, and names service ns-1/servce-1 by the label " + label + ", which does not exist", SliceWithoutService,
		},
		"headless": {change: func(_ *corev1.Service, s *discoveryv1.EndpointSlice) {
			s.Name, s.Labels = "x", map[string]string{label: "far", corev1.IsHeadlessService: ""}
		}},
		"of another proxy": {change: func(_ *corev1.Service, s *discoveryv1.EndpointSlice) {
			s.Name, s.Labels[label], s.Labels[LabelProxyName] = "x", "far", "mine"
		}},
		"no slice": {change: func(o *corev1.Service, s *discoveryv1.EndpointSlice) {
			o.Spec.Selector, s.Endpoints, s.Labels = map[string]string{"app": "web"}, nil, nil
		}, code: NoSlice},
	} {
		t.Run(name, func(t *testing.T) {
			w := newRecordingTracker()
			s, slice := plainService(1), plainSlice(1, 2)
			test.change(s, slice)
			w.SetService(s)
			w.SetSlice(slice)
			w.Synced()
			port := service.PortName{Namespace: s.Namespace, Name: s.Name, Port: s.Spec.Ports[0].Name, Protocol: service.TCP}
			w.Latest()
			kit.Equal(t, w.Choice(service.IPv4, port).Missed, test.missed, "missed")
			var code Code
			for _, p := range w.Analysis() {
				code = p.Code
			}
			kit.Check(t, code == test.code, "code %q; want %q", code, test.code)
			w.DeleteSlice(types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name})
			w.Latest()
			all := w.Analysis()
			kit.Check(t, test.code == NoSlice || len(all) == 0, "after the slice is gone: %v; want nothing", all)
		})
	}
}
