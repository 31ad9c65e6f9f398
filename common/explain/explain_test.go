// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// TestExplain asks the questions of testdata/questions.txt about the objects in
// testdata/cluster.yaml, and compares the answers with testdata/answers.txt.
func TestExplain(t *testing.T) {
	m, pods := modelOf(t, filepath.Join("testdata", "cluster.yaml"))
	questions, err := os.ReadFile(filepath.Join("testdata", "questions.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(questions)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] == "#" {
			continue
		}
		q := Query{Source: words[0], Destination: words[1], Pod: pods.Find}
		if len(words) > 2 {
			q.Interface = words[2]
		}
		fmt.Fprintf(&out, "== %s\n", strings.Join(words, " "))
		x, _, err := m.Answer(q)
		if err != nil {
			fmt.Fprintf(&out, "error: %v\n\n", err)
			continue
		}
		if err := (View{}).Print(&out, x); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out)
	}
	golden(t, filepath.Join("testdata", "answers.txt"), out.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		kit.WriteFile(t, path, got)
	}
	kit.CompareGolden(t, path, got)
	for line := range strings.Lines(got) {
		if n := len([]rune(line)); n > 101 && !strings.HasPrefix(line, "error") {
			t.Errorf("%d columns: %s", n-1, line)
		}
	}
}

func modelOf(t *testing.T, path string) (Model, *Pods) {
	t.Helper()
	o := track.Options{
		NodeName: "node-a", NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}},
	}
	tracker := track.New(o)
	pods := NewPods(tracker)
	files := source.Manifests{Paths: []string{path}, NodeName: "node-a"}
	if err := files.Load(context.Background(), pods); err != nil {
		t.Fatal(err)
	}
	return Model{Tracker: tracker, Snapshot: tracker.Latest()}, pods
}

// In random clusters the chosen endpoints and what they see of the client are those of
// route.Decide, and the reason of each endpoint fits its state.
func TestExplainAgreesWithDecide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		for range 20 {
			c, ok := drawConn(t, m.Snapshot)
			if !ok {
				return
			}
			x, v := m.Explain(c), route.Decide(m.Snapshot, c)
			var want, got []string
			for _, e := range v.Endpoints {
				want = append(want, fmt.Sprintf("%s %v", e.Addr, v.Masquerades(e)))
			}
			for _, e := range x.Endpoints {
				if e.Chosen {
					got = append(got, fmt.Sprintf("%s %v", e.Address, e.Client == "masqueraded"))
				}
				checkReason(t, e)
			}
			slices.Sort(want)
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" || x.Action != v.Action.String() {
				t.Fatalf("%+v: action %s, want %s; endpoints (-decide +explain):\n%s", c, x.Action, v.Action, diff)
			}
		}
	})
}

// checkReason compares the reason of e with its state.
func checkReason(t *rapid.T, e Endpoint) {
	switch {
	case e.Why == "":
		t.Errorf("endpoint %s: no reason", e.Address)
	case strings.Contains(e.Why, "not on this node") && e.Local,
		e.Why == "it is not ready" && e.State == "ready",
		e.Why == "it is ready" && e.State != "ready" && e.State != "serving" && e.State != "terminating",
		strings.Contains(e.Why, "no more") && e.State != "terminating":
		t.Errorf("endpoint %s is %s, local %v, and the reason is %q", e.Address, e.State, e.Local, e.Why)
	}
}

// TestPolicyThatChanged explains with a snapshot that is older than the Service.
func TestPolicyThatChanged(t *testing.T) {
	tracker, port := track.New(track.Options{NodeName: "a"}), int32(8080)
	set := func(policy corev1.ServiceInternalTrafficPolicy) {
		tracker.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "s"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}, InternalTrafficPolicy: &policy},
		})
	}
	set(corev1.ServiceInternalTrafficPolicyLocal)
	tracker.SetSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "d", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}, NodeName: new("a")}},
	})
	tracker.Synced()
	m := Model{Tracker: tracker, Snapshot: tracker.Latest()}
	set(corev1.ServiceInternalTrafficPolicyCluster)
	x := m.Explain(route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("10.244.1.9"), Interface: "veth", To: netip.MustParseAddrPort("10.96.0.1:80")})
	if len(x.Endpoints) != 1 || x.Endpoints[0].Why != "it is ready" {
		t.Errorf("endpoints %+v; want the one that is ready", x.Endpoints)
	}
}

func drawModel(t *rapid.T) Model {
	o := track.Options{NodeName: "a", NodePorts: service.AnyAddress(), NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}
	if rapid.Bool().Draw(t, "pods are recognized") {
		o.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	}
	o.MasqueradeAll = rapid.Bool().Draw(t, "masqueradeAll")
	tracker := track.New(o)
	tracker.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "zone")}}})
	for i := range 3 {
		tracker.SetService(drawService(t, i))
		tracker.SetSlice(drawSlice(t, i))
	}
	tracker.Synced()
	return Model{Tracker: tracker, Snapshot: tracker.Latest()}
}

func drawService(t *rapid.T, i int) *corev1.Service {
	policy := func(name string) string { return rapid.SampledFrom([]string{"Cluster", "Local"}).Draw(t, name) }
	internal := corev1.ServiceInternalTrafficPolicy(policy("internal"))
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("s", i)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: fmt.Sprintf("10.96.0.%d", i+1),
			Ports:                    []corev1.ServicePort{{Port: 80, NodePort: int32(30000 + i)}},
			InternalTrafficPolicy:    &internal,
			ExternalTrafficPolicy:    corev1.ServiceExternalTrafficPolicy(policy("external")),
			LoadBalancerSourceRanges: rapid.SampledFrom([][]string{nil, {"203.0.113.0/24"}, {"10.244.0.0/16"}}).Draw(t, "ranges"),
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: fmt.Sprintf("198.51.100.%d", i+1)}}}},
	}
}

func drawSlice(t *rapid.T, i int) *discoveryv1.EndpointSlice {
	port := int32(8080)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("s", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", i)}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	hints := rapid.Bool().Draw(t, "hints")
	for j := range rapid.IntRange(0, 4).Draw(t, "endpoints") {
		condition := func(name string) *bool {
			return rapid.SampledFrom([]*bool{nil, new(true), new(false)}).Draw(t, name)
		}
		e := discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.244.%d.%d", i, j+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: condition("ready"), Serving: condition("serving"), Terminating: condition("terminating")},
			NodeName:   new(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node")),
		}
		if hints && rapid.IntRange(0, 5).Draw(t, "hint") > 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "for")}}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// drawConn dials one of the frontends, or something else.
func drawConn(t *rapid.T, s *service.Snapshot) (route.Conn, bool) {
	var all []netip.AddrPort
	for p := range s.Ports(service.IPv4) {
		for _, f := range p.Frontends {
			if f.Kind == service.NodePort {
				f.Addr = s.Node.Addrs[0]
			}
			all = append(all, netip.AddrPortFrom(f.Addr, f.Port))
		}
	}
	if len(all) == 0 {
		return route.Conn{}, false
	}
	all = append(all, netip.MustParseAddrPort("10.96.0.1:81"), netip.MustParseAddrPort("192.0.2.10:22"))
	c := route.Conn{
		Protocol:  service.TCP,
		From:      rapid.SampledFrom([]netip.Addr{s.Node.Addrs[0], netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("203.0.113.9")}).Draw(t, "from"),
		To:        rapid.SampledFrom(all).Draw(t, "to"),
		Interface: "eth0",
	}
	if c.From == s.Node.Addrs[0] {
		c.Interface = ""
	}
	c.ToNode = c.To.Addr() == s.Node.Addrs[0]
	return c, true
}
