// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"net/http"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// awaitHealth waits for the HTTP status of /healthz and /livez.
func awaitHealth(t *testing.T, p *program.Proxy, when string, eligible, alive int) {
	t.Helper()
	kit.Until(t, when+": health", func() bool {
		return p.Status(t, program.HealthAddr, "/healthz") == eligible && p.Status(t, program.HealthAddr, "/livez") == alive
	})
}

// testNode creates the own Node late, changes and deletes it. None of that stops traffic.
func testNode(t *testing.T, w *fixture) {
	here, there := newSlice("near", service.IPv4, w.webs(3)...), newSlice("near", service.IPv6, w.webs(3)...)
	for _, s := range []*discoveryv1.EndpointSlice{here, there} {
		for i := range s.Endpoints {
			zone := []string{"east", "west", "west"}[i]
			s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
	}
	near := newService("near", typed(corev1.ServiceTypeNodePort))
	w.remove(t, node())
	w.set(t, here, there, near)
	p := w.launch(t)
	p.AwaitLog(t, `"Programmed"`, "nftables IPv4")
	p.AwaitLog(t, `"Programmed"`, "nftables IPv6")
	calls := w.calls(t, near)
	w.awaitProgrammed(t).Check(t, calls)
	awaitHealth(t, p, "no Node yet", http.StatusServiceUnavailable, http.StatusOK)

	n := node()
	w.set(t, n) // until then no NodePort answers
	p.AwaitLog(t, `"The Node is known"`)
	w.awaitProgrammed(t).Check(t, calls)
	traffic := w.load(t, near)
	for _, s := range []struct {
		name     string
		edit     func()
		eligible int
	}{
		{"the Node comes", func() {}, http.StatusOK},
		{"its zone comes", func() { n.Labels = map[string]string{corev1.LabelTopologyZone: "west"} }, http.StatusOK},
		{"another zone", func() { n.Labels[corev1.LabelTopologyZone] = "east" }, http.StatusOK},
		{"a zone without endpoints", func() { n.Labels[corev1.LabelTopologyZone] = "north" }, http.StatusOK},
		{"it is to be removed", func() {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, http.StatusServiceUnavailable},
		{"it stays after all", func() { n.Spec.Taints = nil }, http.StatusOK},
	} {
		s.edit()
		w.set(t, n)
		w.awaitProgrammed(t).Check(t, calls)
		awaitHealth(t, p, s.name, s.eligible, http.StatusOK)
	}
	w.remove(t, n)
	awaitHealth(t, p, "it is gone", http.StatusServiceUnavailable, http.StatusOK)
	w.awaitProgrammed(t).Check(t, calls)
	w.set(t, node())
	awaitHealth(t, p, "it is back", http.StatusOK, http.StatusOK)
	traffic.stop(t)
	p.Stop(t)
}

// testNodeAddress changes the address at which NodePorts answer.
func testNodeAddress(t *testing.T, w *fixture) {
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(3)...), web)...)
	p := w.start(t)
	second := netip.MustParseAddr("192.0.2.77")
	if err := w.Node.AddAddr(second); err != nil {
		t.Fatal(err)
	}
	calls := w.calls(t, web)
	at, err := w.api.Client.CoreV1().Services(space).Get(t.Context(), web.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	moved := w.dial(calls[len(calls)-1], second.String(), at.Spec.Ports[0].NodePort, corev1.ProtocolTCP)
	for i := range moved {
		moved[i].ToNode, moved[i].Name = true, "NodePort at the new address"
	}
	w.awaitProgrammed(t).Check(t, moved) // no host has the address yet
	n := node()
	n.Status.Addresses[0].Address = second.String()
	w.set(t, n)
	w.awaitProgrammed(t).Check(t, append(calls, moved...))
	if err := w.Node.DelAddr(second); err != nil {
		t.Fatal(err)
	}
	p.Stop(t)
}

// testNodeCIDR identifies pods by the Node's podCIDRs, which cannot change. A Node with
// other podCIDRs is another Node of the same name.
func testNodeCIDR(t *testing.T, w *fixture) {
	means := w.trackOptions
	defer func() { w.trackOptions = means }()
	w.trackOptions.Pods, w.trackOptions.PodsFromNode = service.LocalPods{}, true
	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(3)...), web)...)
	p := w.run(t, "--kubeconfig="+w.login, "--detect-local-mode=NodeCIDR")
	calls := w.calls(t, web)
	w.awaitProgrammed(t).Check(t, calls)
	for _, cidrs := range [][]string{{"10.244.9.0/24", "fd00:10:244:9::/64"}, {"10.244.1.0/24", "fd00:10:244:1::/64"}} {
		n := node()
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
		w.remove(t, n)
		w.set(t, n)
		w.awaitProgrammed(t).Check(t, calls)
	}
	p.Stop(t)
}

// testNodeName spells the name as a user may.
func testNodeName(t *testing.T, w *fixture) {
	p := w.start(t, "--hostname-override= NODE-A ")
	awaitHealth(t, p, "the Node's name has small letters", http.StatusOK, http.StatusOK)
	var about struct{ Node string }
	if p.JSON(t, "/services", &about); about.Node != netlab.NodeName {
		t.Errorf("node = %q, want %q", about.Node, netlab.NodeName)
	}
	p.Stop(t)
}
