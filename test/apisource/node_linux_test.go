// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// lines are what the log says of these topics.
func lines(p *program.Proxy, topic string) (all []string) {
	for line := range strings.Lines(p.Log.String()) {
		if strings.Contains(line, topic) {
			all = append(all, line)
		}
	}
	return all
}

// Late parts of the Node are used when they arrive: the Node itself, its addresses, its
// pod ranges, its zone.
func TestNodeArrivesInParts(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	web, slice := newService("web"), newSlice("web", netip.MustParseAddr("10.244.1.20"), 2)
	for i, zone := range []string{"near", "far"} {
		slice.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	w.set(t, web, slice)
	p := kubeProxy.Start(t, w.lab.Node, "--kubeconfig="+w.kubeconfig(t, cluster.Login{}), "--detect-local-mode=NodeCIDR", "--hostname-override=  Node-A ", "-v=4")
	p.AwaitLog(t, `"Starting"`, `mode="nftables"`, `families="IPv4, IPv6"`, `node="node-a"`, `nodeFrom="--hostname-override"`,
		`pods="sources in the Node's podCIDRs"`, `podsFrom="--detect-local-mode"`)
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	if w.endpoints(t, web) != 2 {
		t.Error("without a zone, want both endpoints")
	}

	bare := &corev1.Node{}
	bare.Name = netlab.NodeName
	w.set(t, bare)
	p.AwaitLog(t, `"The Node is known"`, `nodeIPs="[]"`)
	full := newNode()
	full.Spec.PodCIDRs, full.Spec.PodCIDR = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}, "10.244.1.0/24"
	w.set(t, full)
	p.AwaitLog(t, `"The Node has changed"`, `nodeIPs="[192.0.2.10 2001:db8:2::10]"`)
	p.AwaitLog(t, `"The Node has changed"`, `podCIDRs="[10.244.1.0/24 fd00:10:244:1::/64]"`)
	kit.Until(t, "rules for pods", func() bool { return strings.Contains(w.nft(t, "chain", "mark-unless-pod"), "10.244.1.0/24") })
	full.Labels = map[string]string{corev1.LabelTopologyZone: "far"}
	w.set(t, full)
	kit.Until(t, "the zone's endpoint alone", func() bool { return w.endpoints(t, web) == 1 })
	p.Stop(t)
	if n := len(lines(p, "Warning: the API server has no Node")); n != 0 {
		t.Errorf("%d warnings about a Node that came in time", n)
	}
}

// nft lists something of the IPv4 table.
func (w fixture) nft(t *testing.T, what ...string) string {
	t.Helper()
	out, err := program.Run(t, w.lab.Node, nftCommand(what))
	if err != nil {
		t.Fatalf("nft list %v: %v\n%s", what, err, out)
	}
	return out
}

// endpoints counts what a Service leads to.
func (w fixture) endpoints(t *testing.T, s *corev1.Service) int {
	t.Helper()
	return strings.Count(w.nft(t, "map", "endpoints"), s.Spec.ClusterIP+" . ")
}

// A node that is to go, or is gone, is not healthy for load balancers any
// more, and goes on forwarding.
func TestNodeLeaves(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	node := newNode()
	w.set(t, node, newService("web"))
	p := w.start(t, cluster.Login{})
	status := func(path string) int { return p.Status(t, program.HealthAddr, path) }
	kit.Until(t, "healthy", func() bool { return status("/healthz") == http.StatusOK })
	before := program.Generation(t, w.lab.Node)

	node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	w.set(t, node)
	kit.Until(t, "unhealthy for the taint", func() bool { return status("/healthz") == http.StatusServiceUnavailable })
	node.Spec.Taints = nil
	w.set(t, node)
	kit.Until(t, "healthy again", func() bool { return status("/healthz") == http.StatusOK })
	if err := w.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "unhealthy without the Node", func() bool { return status("/healthz") == http.StatusServiceUnavailable })
	if got := status("/livez"); got != http.StatusOK {
		t.Errorf("/livez = %d, want %d", got, http.StatusOK)
	}
	w.set(t, newNode())
	kit.Until(t, "healthy with a Node again", func() bool { return status("/healthz") == http.StatusOK })
	if now := program.Generation(t, w.lab.Node); now != before {
		t.Errorf("the rules were written %d times, want none", now-before)
	}
}

// A name that no Node has is logged once, after half a minute, with the usual cause.
// Services are forwarded nevertheless.
func TestNoSuchNode(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("web"))
	p := w.start(t, cluster.Login{}, "--hostname-override=node-a.example.com")
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	awaitSlowLog(t, p, "has no Node of this name", `node="node-a.example.com"`, "remedy=", "--hostname-override")
	if n := p.Log.Count("no Node of this name"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
}
