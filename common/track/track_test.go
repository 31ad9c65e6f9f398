// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
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
	if s := w.Latest(); s != nil || w.changes != 0 {
		t.Errorf("before Synced: Latest = %v, Changed %d times; want neither", s, w.changes)
	}
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
	if w.changes != 2 {
		t.Errorf("Changed called %d times, want 2: for Synced and the slice", w.changes)
	}
	if w.Latest() != before {
		t.Errorf("an endpoint that is not ready made a new snapshot")
	}
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
		if len(w.reports) != s.want {
			t.Errorf("step %d: reports = %q, want %d", i, w.reports, s.want)
		}
	}
	want := `service ns-1/service-1: spec.externalIPs[0]: "bad" is not an IP address`
	if len(w.reports) == 0 || w.reports[0] != want {
		t.Errorf("reports = %q, want %q first", w.reports, want)
	}
	if p := w.Problems(); len(p) > 0 {
		t.Errorf("Problems = %v, want none: the Service is gone", p)
	}
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
}

func TestTooManyEndpoints(t *testing.T) {
	w := newRecordingTracker()
	w.SetService(plainService(0))
	w.SetSlice(plainSlice(0, maxEndpoints+2))
	w.Synced()
	p := w.Latest().Port(service.IPv4, service.PortName{Namespace: "ns-0", Name: "service-0", Port: "http", Protocol: service.TCP})
	if len(p.Cluster) != maxEndpoints {
		t.Errorf("%d endpoints, want %d", len(p.Cluster), maxEndpoints)
	}
	if len(w.reports) != 1 || !strings.Contains(w.reports[0], "has 2 endpoints too many") {
		t.Errorf("reports = %q, want one about 2 endpoints", w.reports)
	}
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
				if s.Generation < last {
					t.Errorf("generation %d after %d", s.Generation, last)
				}
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
		if tracker.Latest() != first {
			t.Errorf("the same objects again made a new snapshot")
		}
		for _, p := range tracker.Problems() {
			_ = fmt.Sprint(p)
		}
	})
}
