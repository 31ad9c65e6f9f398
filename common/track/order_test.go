// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
)

// clusterObjects are the objects that exist, as a source has them.
type clusterObjects struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	node     *corev1.Node
	ranges   *networkingv1.ServiceCIDR
}

// In any order of events, the final snapshot depends only on the objects that exist in
// the end, and what did not change keeps its pointer.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := clusterObjects{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}, nil, nil}
		o := Options{NodeName: "a", NodePortsPrimary: true, PodsFromNode: true}
		live := New(o)
		live.Synced()
		last := live.Latest()
		for range rapid.IntRange(10, 60).Draw(t, "steps") {
			w.step(t, live)
			if rapid.IntRange(0, 2).Draw(t, "look") > 0 {
				continue
			}
			next := live.Latest()
			checkShared(t, last, next)
			last = next
		}
		got, want := live.Latest(), w.fromScratch(o)
		checkShared(t, last, got)
		if diff := cmp.Diff(text(want.Latest()), text(got)); diff != "" {
			t.Errorf("snapshot (-from scratch +step by step):\n%s", diff)
		}
		if diff := cmp.Diff(want.Problems(), live.Problems()); diff != "" {
			t.Errorf("problems (-from scratch +step by step):\n%s", diff)
		}
		w.checkLeft(t, live)
	})
}

func text(s *service.Snapshot) string {
	var b bytes.Buffer
	printSnapshot(&b, s)
	return b.String()
}

// fromScratch gives all objects to a new Tracker.
func (c *clusterObjects) fromScratch(o Options) *Tracker {
	t := New(o)
	for _, s := range c.services {
		t.SetService(s)
	}
	for _, s := range c.slices {
		t.SetSlice(s)
	}
	if c.node != nil {
		t.SetNode(c.node)
	}
	if c.ranges != nil {
		t.SetServiceCIDR(c.ranges)
	}
	t.Synced()
	t.Latest()
	return t
}

// checkShared checks that everything in next that equals something in last has the same
// pointer.
func checkShared(t *rapid.T, last, next *service.Snapshot) {
	same := reflect.DeepEqual(last.Node, next.Node)
	if same && last.Node != next.Node {
		t.Errorf("equal nodes are not shared")
	}
	taken := map[service.Address]*service.Port{}
	for _, f := range service.Families {
		same = same && last.Len(f) == next.Len(f)
		for p := range next.Ports(f) {
			if err := checkPort(p, taken); err != "" {
				t.Errorf("port %s: %s", p.Name, err)
			}
			old := last.Port(f, p.Name)
			if old != p {
				same = false
			}
			if old != nil && old != p && reflect.DeepEqual(old, p) {
				t.Errorf("port %s (%s) did not change but its pointer did", p.Name, f)
			}
		}
	}
	if same != (last == next) {
		t.Errorf("same content = %v, same snapshot = %v", same, last == next)
	}
}

// checkLeft checks that the Tracker keeps nothing of deleted objects.
func (c *clusterObjects) checkLeft(t *rapid.T, live *Tracker) {
	for name, s := range live.services {
		if len(s.slices) == 0 && c.services[name.Name] == nil {
			t.Errorf("service %s is still known", name)
		}
	}
	if len(c.slices) == 0 && len(live.claims.endpoints)+len(live.misplaced.listed) > 0 {
		t.Errorf("endpoints without slices: %v, %v", live.claims.endpoints, live.misplaced.listed)
	}
	if len(c.services) == 0 && len(live.claims.holder)+len(live.claims.queue) > 0 {
		t.Errorf("claims without services: %v, %v", live.claims.holder, live.claims.queue)
	}
}

func (c *clusterObjects) step(t *rapid.T, to *Tracker) {
	name := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")
	key := types.NamespacedName{Namespace: "d", Name: name}
	// rapid draws a byte evenly, but not a small number.
	switch what := rapid.Byte().Draw(t, "what") % 12; what {
	case 0, 1, 2:
		c.services[name] = drawService(t, name)
		to.SetService(c.services[name])
	case 3, 4, 5:
		c.slices[name] = drawSlice(t, name)
		to.SetSlice(c.slices[name])
	case 6, 7:
		c.node = drawNode(t)
		to.SetNode(c.node)
	case 8:
		c.ranges = &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{
			CIDRs: drawSome(t, "ranges", "10.96.0.0/24", "fd00:96::/112", "10.1.0.0/30", "10.96.0.1/32", "bad"),
		}}
		to.SetServiceCIDR(c.ranges)
	case 9:
		c.ranges = nil
		to.DeleteServiceCIDR("")
	case 10:
		delete(c.services, name)
		to.DeleteService(key)
	default:
		delete(c.slices, name)
		to.DeleteSlice(key)
	}
}

func drawNode(t *rapid.T) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{}}}
	if z := rapid.SampledFrom([]string{"", "z1", "z2"}).Draw(t, "zone"); z != "" {
		n.Labels[corev1.LabelTopologyZone] = z
	}
	for _, ip := range drawSome(t, "node IPs", "192.168.0.1", "198.51.100.1", "fd00::9", "bad") {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	n.Spec.PodCIDRs = drawSome(t, "pod CIDRs", "10.1.0.0/24", "fd00:1::/64", "bad")
	return n
}

// drawSome returns a random subset of all, in order.
func drawSome(t *rapid.T, label string, all ...string) []string {
	var some []string
	for _, s := range all {
		if rapid.Bool().Draw(t, label) {
			some = append(some, s)
		}
	}
	return some
}

func drawService(t *rapid.T, name string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name}}
	s.CreationTimestamp = metav1.Unix(int64(rapid.IntRange(0, 1).Draw(t, "age")), 0)
	s.Spec.Type = rapid.SampledFrom([]corev1.ServiceType{"LoadBalancer", "LoadBalancer", "NodePort", "ClusterIP", "ExternalName"}).Draw(t, "type")
	s.Spec.ClusterIPs = append([]string{rapid.SampledFrom([]string{"10.96.0.1", "10.96.0.2", "10.1.0.3"}).Draw(t, "cluster IP")}, drawSome(t, "cluster IPs", "fd00:96::1")...)
	s.Spec.ExternalIPs = drawSome(t, "external IPs", "203.0.113.1", "203.0.113.2", "2001:db8::1", "10.96.0.2", "192.0.2.1")
	s.Spec.LoadBalancerSourceRanges = drawSome(t, "ranges", "192.168.0.0/16", "::/0", "bad")
	for _, ip := range drawSome(t, "ingress", "203.0.113.1", "203.0.113.3", "2001:db8::3") {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	s.Spec.HealthCheckNodePort = rapid.SampledFrom([]int32{0, 30080, 30081}).Draw(t, "health check")
	policy := rapid.SampledFrom([]string{"Cluster", "Local"})
	internal := corev1.ServiceInternalTrafficPolicy(policy.Draw(t, "internal"))
	s.Spec.InternalTrafficPolicy = &internal
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(policy.Draw(t, "external"))
	for _, name := range drawSome(t, "ports", "http", "dns", "bad") {
		p := corev1.ServicePort{Name: name, Port: 80, NodePort: 30080}
		if name == "dns" {
			p.Protocol = corev1.ProtocolUDP
		}
		if rapid.Bool().Draw(t, "on a NodePort") {
			p.Port, p.NodePort = 30080, 30082
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	return s
}

func drawSlice(t *rapid.T, name string) *discoveryv1.EndpointSlice {
	owner := rapid.SampledFrom([]string{"x", "y", "x", ""}).Draw(t, "owner")
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "d", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: owner}},
		AddressType: rapid.SampledFrom([]discoveryv1.AddressType{"IPv4", "IPv6"}).Draw(t, "family"),
	}
	for _, name := range drawSome(t, "ports", "http", "dns") {
		port, proto := int32(8080), corev1.ProtocolTCP
		if name == "dns" {
			proto = corev1.ProtocolUDP
		}
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &proto})
	}
	of := []string{"10.1.0.", "10.1.0.", "10.96.0."}
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		of = []string{"fd00:1::", "fd00:1::", "fd00:96::"}
	}
	prefix := rapid.SampledFrom(of).Draw(t, "prefix")
	for i := range rapid.IntRange(0, 3).Draw(t, "endpoints") {
		s.Endpoints = append(s.Endpoints, drawEndpoint(t, fmt.Sprint(prefix, 3-i)))
	}
	for _, bad := range drawSome(t, "bad", "bad") {
		s.Endpoints = append(s.Endpoints, drawEndpoint(t, bad))
	}
	return s
}

func drawEndpoint(t *rapid.T, addr string) discoveryv1.Endpoint {
	flag := rapid.SampledFrom([]*bool{nil, new(bool), ptr(true)})
	e := discoveryv1.Endpoint{
		Addresses: []string{addr},
		Conditions: discoveryv1.EndpointConditions{
			Ready: flag.Draw(t, "ready"), Serving: flag.Draw(t, "serving"), Terminating: flag.Draw(t, "terminating")},
		NodeName: rapid.SampledFrom([]*string{nil, ptr("A "), ptr("b")}).Draw(t, "node"),
		Hints:    &discoveryv1.EndpointHints{},
	}
	for _, z := range drawSome(t, "zones", "z1", "z2") {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range drawSome(t, "nodes", "a", "b") {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return e
}

func ptr[T any](v T) *T { return &v }

func TestUpdateCost(t *testing.T) {
	tracker := New(Options{NodeName: "a"})
	fill10x(tracker, 10_000)
	tracker.Latest()
	var took []time.Duration
	for i := range 200 {
		slice := plainSlice(i, 9+i%2)
		start := time.Now()
		tracker.SetSlice(slice)
		tracker.Latest()
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	each := took[len(took)/2] // some of them are slow on a busy machine
	t.Logf("one endpoint changed at 10,000 Services: %v to the next snapshot", each)
	if each > 5*time.Millisecond {
		t.Errorf("a change costs %v, which cannot be independent of the number of Services", each)
	}
}

// wide returns a Service of many ports, and its slices. Each slice has at most 100 ports
// and as many endpoints, the limit of the API.
func wide(ports, endpoints int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	const most = 100
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "wide"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}},
	}
	var all []*discoveryv1.EndpointSlice
	for first := 0; first < ports; first += most {
		var targets []discoveryv1.EndpointPort
		for i := first; i < min(first+most, ports); i++ {
			name, port, proto := fmt.Sprintf("port-%d", i), int32(8000+i), corev1.ProtocolTCP
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Port: port, Protocol: proto})
			targets = append(targets, discoveryv1.EndpointPort{Name: &name, Port: &port, Protocol: &proto})
		}
		for i := 0; i < endpoints; i += most {
			e := plainSlice(0, min(most, endpoints-i))
			e.Name, e.Ports = fmt.Sprintf("wide-%d-%d", first, i), targets
			e.Namespace, e.Labels = "shop", map[string]string{discoveryv1.LabelServiceName: "wide"}
			for j := range e.Endpoints {
				e.Endpoints[j].Addresses = []string{fmt.Sprintf("10.128.%d.%d", (i+j)/250, (i+j)%250+1)}
				e.Endpoints[j].Hints = nil
			}
			all = append(all, e)
		}
	}
	return s, all
}

// flip sets the readiness of the first endpoint in some of the slices.
func flip(t *Tracker, all []*discoveryv1.EndpointSlice, to bool) {
	for _, s := range all {
		if s.Endpoints[0].Addresses[0] == "10.128.0.1" {
			s.Endpoints[0].Conditions.Ready = &to
			t.SetSlice(s)
		}
	}
}

func BenchmarkFlip(b *testing.B) {
	for _, ports := range []int{1, 500} {
		b.Run(fmt.Sprint(ports, " ports"), func(b *testing.B) { benchmarkFlip(b, ports) })
	}
}

func benchmarkFlip(b *testing.B, ports int) {
	t := New(Options{})
	s, all := wide(ports, 1000)
	t.SetService(s)
	for _, e := range all {
		t.SetSlice(e)
	}
	t.Synced()
	t.Latest()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		flip(t, all, i%2 == 1)
		for p := range t.Latest().Ports(service.IPv4) {
			if n := len(p.Cluster); n != 999+i%2 {
				b.Fatalf("%d endpoints", n)
			}
		}
	}
}

// fill10x gives t n Services with ten endpoints each. It creates every object again, like
// a watch, and keeps none.
func fill10x(t *Tracker, n int) {
	for i := range n {
		t.SetService(plainService(i))
		t.SetSlice(plainSlice(i, 10))
	}
	t.Synced()
}

func plainService(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("ns-%d", i%100), Name: fmt.Sprintf("service-%d", i)},
		Spec: corev1.ServiceSpec{
			ClusterIP:  fmt.Sprintf("10.96.%d.%d", i/250, i%250+1),
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: strings.Clone("http"), Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func plainSlice(i, endpoints int) *discoveryv1.EndpointSlice {
	name, port, proto := strings.Clone("http"), int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("ns-%d", i%100),
			Name:      fmt.Sprintf("service-%d-x7k2p", i),
			Labels:    map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	yes, no := true, false
	for j := range endpoints {
		node, zone, k := fmt.Sprintf("node-%d", j*7%50), fmt.Sprintf("zone-%d", j%3), i*endpoints+j
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+k/65536, k/256%256, k%256)},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return s
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// bytesPerEndpoint measures the memory of a Tracker and its snapshot.
func bytesPerEndpoint(services int) float64 {
	before := heapInUse()
	t := New(Options{NodeName: "node-1"})
	fill10x(t, services)
	s := t.Latest()
	used := heapInUse() - before
	runtime.KeepAlive(s)
	runtime.KeepAlive(t)
	return float64(used) / float64(services*10)
}

func TestMemory(t *testing.T) {
	const services, limit = 10_000, 150
	got := bytesPerEndpoint(services)
	t.Logf("%.0f bytes of heap per endpoint at %d Services of 10", got, services)
	if got > limit {
		t.Errorf("bytes per endpoint = %.0f, want at most %d", got, limit)
	}
}
