// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/test/kit"
)

// clusterObjects are the objects that exist, as a source has them.
type clusterObjects struct {
	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	node     *corev1.Node
	ranges   *networkingv1.ServiceCIDR
	silent   map[service.Address]time.Time
}

// In any order of events, the final snapshot depends only on the objects that exist in
// the end, and what did not change keeps its pointer.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := clusterObjects{map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}, nil, nil, nil}
		o := Options{NodeName: "a", NodePortsPrimary: true, PodsFromNode: true, SilentEndpoints: drawSilentPolicy(t)}
		live := New(o)
		live.Synced()
		last := live.Latest()
		left := &departures{to: live}
		for range rapid.IntRange(10, 60).Draw(t, "steps") {
			w.step(t, live)
			left.check(t)
			if rapid.Byte().Draw(t, "other policy")%12 == 0 {
				o.SilentEndpoints = drawSilentPolicy(t)
				live.Reconfigure(o)
			}
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
		w.checkSilent(t, live, got)
		again := &departures{to: want}
		if again.check(t); !slices.Equal(left.known, again.known) {
			t.Errorf("endpoints that left: %v, and from scratch %v", left.known, again.known)
		}
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
	t.SetSilent(c.silent)
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
	switch what := rapid.Byte().Draw(t, "what") % 15; what {
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
	case 10, 11:
		c.silent = drawSilent(t)
		to.SetSilent(c.silent)
	case 12: // readiness alone
		if s := c.slices[name]; s != nil {
			c.slices[name] = s.DeepCopy()
			for i := range s.Endpoints {
				c.slices[name].Endpoints[i].Conditions = drawEndpoint(t, "").Conditions
			}
			to.SetSlice(c.slices[name])
		}
	case 13:
		delete(c.services, name)
		to.DeleteService(key)
	default:
		delete(c.slices, name)
		to.DeleteSlice(key)
	}
}

func drawSilentPolicy(t *rapid.T) Silent {
	return rapid.SampledFrom([]Silent{SilentOn, SilentOn, SilentObserve, SilentOff, ""}).Draw(t, "silent policy")
}

// drawSilent draws from the endpoints that drawSlice makes.
func drawSilent(t *rapid.T) map[service.Address]time.Time {
	all := map[service.Address]time.Time{}
	for _, prefix := range []string{"10.1.0.", "fd00:1::"} {
		for i := 1; i <= 3; i++ {
			a := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprint(prefix, i)), 8080)
			since := rapid.IntRange(-2, 3).Draw(t, "silent since")
			if since >= 0 {
				all[service.AddressOf(service.TCP, a)] = time.Unix(int64(since), 0)
				all[service.AddressOf(service.UDP, a)] = time.Unix(int64(since), 0)
			}
		}
	}
	return all
}

// checkSilent compares each Port with what it would be if nothing was silent.
func (c *clusterObjects) checkSilent(t *rapid.T, live *Tracker, s *service.Snapshot) {
	noisy := clusterObjects{c.services, c.slices, c.node, c.ranges, nil}
	all := noisy.fromScratch(live.options).Latest()
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			q := all.Port(f, p.Name)
			on := live.SilentPolicy(types.NamespacedName{Namespace: p.Name.Namespace, Name: p.Name.Name}) == SilentOn
			c.checkLeftOut(t, p, p.Cluster, q.Cluster, on)
			c.checkLeftOut(t, p, p.Local, q.Local, on)
		}
	}
}

// checkLeftOut checks the rule with other words than the Tracker: each endpoint that is left
// out is silent, and none that stays is silent for longer, unless the half is reached.
func (c *clusterObjects) checkLeftOut(t *rapid.T, p *service.Port, list, all []service.Endpoint, on bool) {
	sinceOf := func(e service.Endpoint) (time.Time, bool) {
		since, silent := c.silent[service.AddressOf(p.Name.Protocol, e.Addr)]
		return since, silent
	}
	var stay, out []time.Time
	for _, e := range all {
		since, silent := sinceOf(e)
		stays := slices.Contains(list, e)
		if !stays && !silent {
			t.Errorf("%s lacks %v, which answers", p.Name, e.Addr)
		}
		switch {
		case stays && silent:
			stay = append(stay, since)
		case !stays:
			out = append(out, since)
		}
	}
	most := len(all) / 2
	if !on || len(stay)+len(out) == len(all) {
		most = 0
	}
	if want := min(most, len(stay)+len(out)); len(out) != want || len(list)+len(out) != len(all) {
		t.Errorf("%s leaves out %d of %d endpoints, want %d", p.Name, len(out), len(all), want)
	}
	for _, a := range stay {
		for _, b := range out {
			if a.Before(b) {
				t.Errorf("%s leaves out one that is silent since %v, and keeps one since %v", p.Name, b, a)
			}
		}
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
	if text := rapid.SampledFrom([]string{"", "", "", "off", "observe", "on", "bad"}).Draw(t, "annotation"); text != "" {
		s.Annotations = map[string]string{AnnotationSilent: text}
	}
	if rapid.Byte().Draw(t, "closes")%3 == 0 {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, AnnotationClose, CloseLeft)
	}
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
	kit.Check(t, each <= 5*time.Millisecond,
		"a change costs %v, which cannot be independent of the number of Services", each)
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
			kit.Need(b, len(p.Cluster) == 999+i%2, "%d endpoints", len(p.Cluster))
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
	kit.Check(t, got <= limit, "bytes per endpoint = %.0f, want at most %d", got, limit)
}

var update = flag.Bool("update", false, "rewrite what the scenarios in testdata expect")

// TestScenarios reads each archive in testdata: a cluster, the operator's settings, if
// any, and the expected snapshot of node-a.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	kit.Need(t, err == nil && len(paths) != 0, "scenarios = %v, %v, want some", paths, err)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			kit.Must(t, err)
			got := runScenario(t, archive)
			if *update {
				archive.Files = append(inputs(archive), txtar.File{Name: "snapshot", Data: []byte(got)})
				kit.Must(t, os.WriteFile(path, txtar.Format(archive), 0o644))
				return
			}
			kit.Same(t, "snapshot (-want +got)", string(part(archive, "snapshot")), got)
		})
	}
}

func inputs(a *txtar.Archive) []txtar.File {
	var in []txtar.File
	for _, f := range a.Files {
		if f.Name != "snapshot" {
			in = append(in, f)
		}
	}
	return in
}

func part(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// choices are Options in the form of a scenario file.
type choices struct {
	NodeIPs           []string
	NodePorts         []string
	NodePortsPrimary  bool
	PodsFromNode      bool
	MasqueradeAll     bool
	IgnoreExternalIPs bool
	SilentEndpoints   Silent
	Silent            []string // addresses with ports, from the one that is silent for longest
	Explain           bool     // show why each endpoint and address is used, or not
}

func (c choices) options() Options {
	o := Options{NodeName: "node-a", PodsFromNode: c.PodsFromNode, MasqueradeAll: c.MasqueradeAll,
		NodePortsPrimary: c.NodePortsPrimary, IgnoreExternalIPs: c.IgnoreExternalIPs, SilentEndpoints: c.SilentEndpoints}
	for _, s := range c.NodeIPs {
		o.NodeIPs = append(o.NodeIPs, netip.MustParseAddr(s))
	}
	for _, s := range c.NodePorts {
		o.NodePorts = append(o.NodePorts, netip.MustParsePrefix(s))
	}
	return o
}

func runScenario(t *testing.T, a *txtar.Archive) string {
	t.Helper()
	var c choices
	kit.Must(t, yaml.UnmarshalStrict(part(a, "options.yaml"), &c))
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	kit.Must(t, os.WriteFile(path, part(a, "cluster.yaml"), 0o644))
	tracker := New(c.options())
	m := source.Manifests{Paths: []string{path}, NodeName: "node-a"}
	kit.Must(t, m.Load(context.Background(), tracker))
	silent := map[service.Address]time.Time{}
	for i, s := range c.Silent {
		for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
			silent[service.AddressOf(p, netip.MustParseAddrPort(s))] = time.Unix(int64(i), 0)
		}
	}
	tracker.SetSilent(silent)
	var b bytes.Buffer
	s := tracker.Latest()
	printSnapshot(&b, s)
	if c.Explain {
		printChoices(&b, tracker, s)
	}
	for _, p := range tracker.Problems() {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	checkSnapshot(t, s)
	return b.String()
}

// printSnapshot writes s in readable form, one fact per line.
func printSnapshot(b *bytes.Buffer, s *service.Snapshot) {
	n := s.Node
	fmt.Fprintf(b, "node %s", n.Name)
	printList(b, "addrs", n.Addrs)
	printList(b, "pods", n.Pods.Prefixes)
	printList(b, "nodeports", n.NodePorts)
	printList(b, "services", n.ServiceCIDRs)
	if n.MasqueradeAll {
		b.WriteString(" masquerade-all")
	}
	if s.Incomplete {
		b.WriteString(" incomplete")
	}
	b.WriteString("\n")
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			printPort(b, p)
		}
	}
}

func printList[T fmt.Stringer](b *bytes.Buffer, name string, list []T) {
	if len(list) > 0 {
		fmt.Fprintf(b, " %s=%v", name, list)
	}
}

func printPort(b *bytes.Buffer, p *service.Port) {
	fmt.Fprintf(b, "%s %s/%s internal=%s external=%s", p.Family, p.Name, p.Name.Protocol, p.Internal, p.External)
	if p.Affinity > 0 {
		fmt.Fprintf(b, " affinity=%v", p.Affinity)
	}
	if p.Rebalance > 0 {
		fmt.Fprintf(b, " rebalance=%v", p.Rebalance)
	}
	if p.KeepVIP {
		b.WriteString(" keep-vip")
	}
	if p.HealthCheck != 0 {
		fmt.Fprintf(b, " health check %d: %d here", p.HealthCheck, p.LocalReady)
	}
	b.WriteString("\n")
	for _, f := range p.Frontends {
		fmt.Fprintf(b, "\t%s", describe(p, f))
		if f.Sources != nil {
			fmt.Fprintf(b, " from %v", f.Sources)
		}
		b.WriteString("\n")
	}
	printEndpoints(b, "cluster", p.Cluster)
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		printEndpoints(b, "local", p.Local)
	}
	if len(p.Draining) > 0 {
		printEndpoints(b, "draining", p.Draining)
	}
}

// printChoices explains the endpoints of each Port, and who else claims its addresses.
func printChoices(b *bytes.Buffer, t *Tracker, s *service.Snapshot) {
	for p := range s.Ports(service.IPv4) {
		c := t.Choice(p.Family, p.Name)
		fmt.Fprintf(b, "choice of %s: %q\n", p.Name, c.Topology)
		for _, x := range c.Candidates {
			fmt.Fprintf(b, "\t%s %s: %t, %s", x.Address, x.State, x.Cluster.Used, x.Cluster.Why)
			if x.ForLocal != nil {
				fmt.Fprintf(b, "; Local %t, %s", x.ForLocal.Used, x.ForLocal.Why)
			}
			fmt.Fprintf(b, " (node %q, zone %q, local %t)\n", x.Node, x.Zone, x.Local)
		}
		for _, f := range p.Frontends {
			if c := t.Claimants(p, f); len(c.Others) > 0 || c.Holder != p.Name.Namespace+"/"+p.Name.Name {
				fmt.Fprintf(b, "\t%s: %s has it; %q\n", describe(p, f), c.Holder, c.Others)
			}
		}
	}
}

func printEndpoints(b *bytes.Buffer, name string, list []service.Endpoint) {
	fmt.Fprintf(b, "\t%s", name)
	if len(list) == 0 {
		b.WriteString(" none")
	}
	for _, e := range list {
		mark := "?"
		switch {
		case e.Local:
			mark = "*"
		case e.Remote:
			mark = ""
		}
		fmt.Fprintf(b, " %s%s", e.Addr, mark)
	}
	b.WriteString("\n")
}

// checkSnapshot checks the guarantees of package service about snapshots.
func checkSnapshot(t *testing.T, s *service.Snapshot) {
	t.Helper()
	taken := map[service.Address]*service.Port{}
	for _, family := range service.Families {
		for p := range s.Ports(family) {
			err := checkPort(p, taken)
			kit.Check(t, err == "", "port %s (%s): %s", p.Name, p.Family, err)
		}
	}
}

func checkPort(p *service.Port, taken map[service.Address]*service.Port) string {
	for _, f := range p.Frontends {
		if f.Port == 0 {
			return "frontend with port 0"
		}
		if f.Kind != service.NodePort && (!f.Addr.IsValid() || service.FamilyOf(f.Addr) != p.Family) {
			return fmt.Sprintf("frontend address %v", f.Addr)
		}
		if other := taken[p.Address(f)]; other != nil {
			return fmt.Sprintf("%s also belongs to %s", describe(p, f), other.Name)
		}
		taken[p.Address(f)] = p
		if f.Sources != nil && f.Kind != service.LoadBalancerIP {
			return describe(p, f) + " has sources"
		}
		for i, x := range f.Sources {
			if x != x.Masked() || service.FamilyOf(x.Addr()) != p.Family || i > 0 && (f.Sources[i-1].Overlaps(x) || x.Addr().Less(f.Sources[i-1].Addr())) {
				return fmt.Sprintf("sources %v", f.Sources)
			}
		}
	}
	if p.Internal == service.PolicyCluster && p.External == service.PolicyCluster && p.Local != nil {
		return "local endpoints without a local policy"
	}
	for _, list := range [][]service.Endpoint{p.Cluster, p.Local} {
		for i, e := range list {
			if !e.Addr.IsValid() || e.Addr.Port() == 0 || service.FamilyOf(e.Addr.Addr()) != p.Family || e.Local && e.Remote {
				return fmt.Sprintf("endpoint %v", e)
			}
			if i > 0 && list[i-1].Addr.Compare(e.Addr) >= 0 {
				return fmt.Sprintf("endpoints %v, %v out of order", list[i-1].Addr, e.Addr)
			}
		}
	}
	if len(p.Frontends) == 0 {
		return "no frontend"
	}
	return ""
}
