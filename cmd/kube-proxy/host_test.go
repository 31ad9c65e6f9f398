// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// TestHostWatch starts and stops listeners between polls.
func TestHostWatch(t *testing.T) {
	ssh := track.Socket{Protocol: service.TCP, Addr: netip.MustParseAddrPort("0.0.0.0:22")}
	dns := track.Socket{Protocol: service.UDP, Addr: netip.MustParseAddrPort("0.0.0.0:53")}
	client := track.Socket{Protocol: service.UDP, Addr: netip.MustParseAddrPort("0.0.0.0:40000")}
	own := track.Socket{Protocol: service.TCP, Addr: netip.MustParseAddrPort("127.0.0.1:9")}
	var now []track.Socket
	w := &hostWatch{
		addrs:   func() ([]netip.Addr, error) { return nil, nil },
		sockets: func() ([]track.Socket, error) { return now, nil },
		seen:    map[track.Socket]*socketSeen{},
	}
	for i, step := range []struct{ now, want []track.Socket }{
		{[]track.Socket{dns, dns, own}, []track.Socket{dns}},
		{[]track.Socket{dns, ssh, client}, []track.Socket{ssh, dns}},
		{[]track.Socket{dns}, []track.Socket{ssh, dns}},
		{nil, []track.Socket{ssh, dns}},
		{nil, []track.Socket{ssh, dns}}, {nil, []track.Socket{ssh, dns}}, {nil, []track.Socket{ssh, dns}},
		{[]track.Socket{client}, []track.Socket{ssh, dns, client}},
		{nil, []track.Socket{dns, client}},
		{nil, []track.Socket{client}},
	} {
		now = step.now
		h, err := w.poll()
		if err != nil {
			t.Fatal(err)
		}
		less := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
		if diff := cmp.Diff(step.want, h.Listening, less); diff != "" {
			t.Errorf("look %d (-want +got):\n%s", i, diff)
		}
	}
}

// TestRefusedAddressesAreReported checks that the condition lasts as long as an address
// of a Service is refused.
func TestRefusedAddressesAreReported(t *testing.T) {
	h, _ := newTestSink(t)
	b := &backend{mode: "nftables", family: service.IPv4}
	round := func() string {
		h.reporter.recordRound(b, h.Latest(), reconcile.Result{})
		return h.reporter.health.Report().Conditions["refused-addresses"]
	}
	victim, thief := shopService("victim", "10.96.0.9"), shopService("thief", "10.96.0.10")
	thief.Spec.ExternalIPs, thief.Spec.Ports[0].Port = []string{"10.96.0.9"}, 81
	h.SetService(victim)
	h.SetService(thief)
	h.Synced()
	h.Latest()
	h.reporter.problemFound(h.Problems()[0])
	if got := round(); !strings.Contains(got, "shop/thief: ExternalIP 10.96.0.9:81/tcp is refused: the address is the ClusterIP of service shop/victim") {
		t.Errorf("the condition is %q", got)
	}
	h.DeleteService(types.NamespacedName{Namespace: "shop", Name: "victim"})
	if got := round(); got != "" {
		t.Errorf("the condition is %q when nobody has the address any more", got)
	}
}

// shopService returns a Service with one port.
func shopService(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}
