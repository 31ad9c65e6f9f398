// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestLatency counts each change once, by the round that began after it.
func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLatency(time.Now())
		record := func(name string, at time.Time) {
			l.sliceChanged(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: at.Format(time.RFC3339Nano)}},
				AddressType: discoveryv1.AddressTypeIPv4,
			})
		}
		record("before the start", time.Now().Add(-time.Hour))
		at := time.Now()
		time.Sleep(time.Second)
		record("web", at)
		record("web", at) // again, for another reason
		time.Sleep(time.Second)
		start := time.Now()
		time.Sleep(time.Second)
		record("late", time.Now())
		kit.Same(t, "first round (-want +got)", []time.Duration{3 * time.Second}, l.takeProgrammed(service.IPv4, start, time.Now()))
		got := l.takeProgrammed(service.IPv4, time.Now(), time.Now().Add(time.Second))
		kit.Check(t, len(got) == 1 && got[0] == time.Second, "second round: %v, want the late one's second", got)
		if got := l.takeProgrammed(service.IPv4, time.Now(), time.Now()); got != nil {
			t.Errorf("third round: %v, want nothing", got)
		}
		l.sliceDeleted(types.NamespacedName{Namespace: "shop", Name: "web"})
		kit.Check(t, len(l.seen) == 1, "%d slices are remembered after one left, want 1", len(l.seen))
	})
}

func TestFieldOf(t *testing.T) {
	for path, want := range map[string]string{
		"spec.ports[3].port":                    "spec.ports.port",
		"spec.externalIPs[0]":                   "spec.externalIPs",
		"endpointslice web-1 endpoints[7].x[0]": "endpointslice.endpoints.x",
	} {
		kit.Equal(t, fieldOf(path), want, "fieldOf(%q)", path)
	}
}
