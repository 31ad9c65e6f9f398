// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/cluster"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// kubeProxy is the proxy, freshly built for each run of the tests.
var kubeProxy program.Program

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// TestInCluster shares one control plane, whose start takes longest. Each case begins
// with an empty cluster and its own proxy.
func TestInCluster(t *testing.T) {
	w := newFixture(t)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *fixture)
	}{
		{"every type of Service", testTypes},
		{"restart", testRestart},
		{"node", testNode},
		{"node's address", testNodeAddress},
		{"node's CIDR", testNodeCIDR},
		{"node's name", testNodeName},
		{"odd objects", testEdgeCases},
		{"many Services", testMany},
		{"deployment", testDeployment},
		{"deployment for Windows", testWindowsDeployment},
		{"chart", testChart},
		{"mode iptables", testIPTables},
		{"mode userspace", testUserspace},
		{"mode by annotation", testModeAnnotation},
		{"logins", testLogins},
		{"explain", testExplain},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w.clear(t)
			begin := time.Now()
			tc.test(t, w)
			t.Logf("took %s", time.Since(begin).Round(time.Millisecond))
		})
	}
}

// fixture is a lab with a control plane, and the settings of the proxy.
type fixture struct {
	*netlab.Lab
	api          *cluster.Cluster
	kernel       *program.Kernel
	token        string // of the deployment's ServiceAccount
	login        string // kubeconfig of that account
	trackOptions track.Options
	mode         string // as in the log
	flags        []string
	// commands is a folder that comes first in the proxy's PATH.
	commands string
	known    *corev1.Node // latest node-a: a running proxy keeps a deleted Node
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{mode: "nftables"}
	w.Lab = netlab.Start(t, netlab.Config{
		Pods:    []string{"web-1", "web-2", "shopper"},
		Remote:  []string{"web-3", "web-4", "web-5", "web-6", "web-7", "web-8", "web-9", "web-10"},
		Clients: []string{"customer", "control"},
	})
	for _, h := range w.webs(10) {
		_, err := h.Echo("", target)
		kit.Must(t, err)
	}
	w.api = cluster.Start(t, cluster.Options{
		Host: w.Host("control"), Authorization: cluster.RBAC, Flags: []string{"--allow-privileged=true"},
	})
	w.kernel = program.NewKernel(t, w.Node, 0)
	w.deploy(t)
	for _, s := range strings.Split(netlab.ClusterCIDR, ",") {
		w.trackOptions.Pods.Prefixes = append(w.trackOptions.Pods.Prefixes, prefix(s))
	}
	w.trackOptions.NodeName, w.trackOptions.NodePortsPrimary = netlab.NodeName, true
	return w
}

// webs returns the first n hosts that serve.
func (w *fixture) webs(n int) []*netlab.Host {
	var all []*netlab.Host
	for i := range n {
		all = append(all, w.Host(fmt.Sprintf("web-%d", i+1)))
	}
	return all
}

// start starts the proxy, and waits until it has programmed everything.
func (w *fixture) start(t *testing.T, args ...string) *program.Proxy {
	t.Helper()
	p := w.launch(t, args...)
	w.awaitProgrammed(t)
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, w.mode+" "+f.String())
	}
	return p
}

// launch starts the proxy, and removes its rules at the end of the test.
func (w *fixture) launch(t *testing.T, args ...string) *program.Proxy {
	t.Helper()
	return w.run(t, append([]string{"--kubeconfig=" + w.login, "--cluster-cidr=" + netlab.ClusterCIDR}, args...)...)
}

// run is launch without flags for the ranges of Services and pods.
func (w *fixture) run(t *testing.T, args ...string) *program.Proxy {
	t.Helper()
	w.cleanUp(t)
	cmd := kubeProxy.Command(slices.Concat([]string{"--iptables-min-sync-period=10ms"}, w.flags, args)...)
	return program.Start(t, w.Node, program.With(cmd, w.commands))
}

// cleanUp removes the rules at the end of the test.
func (w *fixture) cleanUp(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		out, err := program.Run(t, w.Node, kubeProxy.Command("--cleanup"))
		kit.Check(t, err == nil, "clean up: %v\n%s", err, out)
	})
}

// want reads the API server's objects as the proxy does.
func (w *fixture) want(t *testing.T) *service.Snapshot {
	t.Helper()
	o := w.trackOptions
	if !o.NodePortsPrimary {
		o.NodePorts = service.OrAnyAddress(o.NodePorts)
	}
	tracker := track.New(o)
	services, err := w.api.Client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	parts, err := w.api.Client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	nodes, err := w.api.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	ranges, err := w.api.Client.NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for i := range nodes.Items {
		if nodes.Items[i].Name == netlab.NodeName {
			w.known = &nodes.Items[i]
		}
	}
	if w.known != nil {
		tracker.SetNode(w.known)
	}
	if w.mode != "nftables" && w.mode != "ipvs" { // other modes do not use them
		ranges.Items = nil
	}
	for i := range ranges.Items {
		tracker.SetServiceCIDR(&ranges.Items[i])
	}
	for i := range services.Items {
		tracker.SetService(&services.Items[i])
	}
	for i := range parts.Items {
		tracker.SetSlice(&parts.Items[i])
	}
	tracker.Synced()
	return tracker.Latest()
}

// awaitProgrammed waits until the kernel holds exactly the desired state, and returns a
// Judge of it.
func (w *fixture) awaitProgrammed(t *testing.T) judge.Judge {
	t.Helper()
	want := w.want(t)
	w.kernel.AwaitProgrammed(t, want)
	return judge.Judge{Lab: w.Lab, Want: want, Relayed: w.mode == "userspace"}
}

// set writes objects.
func (w *fixture) set(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	kit.Must(t, w.api.Set(t.Context(), objects...))
}

// remove deletes objects.
func (w *fixture) remove(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	kit.Must(t, w.api.Delete(t.Context(), objects...))
}

// clear deletes all objects but the Service of the API server itself, and restores the
// Node.
func (w *fixture) clear(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	kit.Must(t, w.api.Client.DiscoveryV1().EndpointSlices(space).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	services, err := w.api.Client.CoreV1().Services(space).List(ctx, metav1.ListOptions{})
	kit.Must(t, err)
	services.Items = slices.DeleteFunc(services.Items, func(s corev1.Service) bool { return s.Name == "kubernetes" })
	var old []metav1.Object
	for i := range services.Items {
		old = append(old, &services.Items[i])
	}
	w.remove(t, old...)
	w.remove(t, node())
	w.set(t, node())
	w.known = nil
}

const (
	space  = metav1.NamespaceDefault
	target = 8080 // the port that endpoints listen on
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// newService returns a Service with ClusterIPs in both families, over TCP and UDP,
// changed by edits.
func newService(name string, edits ...func(*corev1.Service)) *corev1.Service {
	both := corev1.IPFamilyPolicyRequireDualStack
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}}
	s.Spec.Selector = map[string]string{"app": name}
	s.Spec.IPFamilyPolicy = &both
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: portName(p), Protocol: p, Port: 80, TargetPort: intstr.FromInt32(target),
		})
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func portName(p corev1.Protocol) string {
	return map[corev1.Protocol]string{"TCP": "web", "UDP": "dns"}[p]
}

// newSlice returns a slice of a Service in one family with ready endpoints on hosts.
func newSlice(of string, f service.Family, hosts ...*netlab.Host) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressType(f.String())}
	s.Namespace, s.Name = space, of+[2]string{"-v4", "-v6"}[f]
	s.Labels = map[string]string{discoveryv1.LabelServiceName: of}
	for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		name, number := portName(p), int32(target)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &number})
	}
	for _, h := range hosts {
		ready, node := true, netlab.OtherName
		if judge.OnNode(h.IPv4) {
			node = netlab.NodeName
		}
		addr := [2]netip.Addr{h.IPv4, h.IPv6}[f].String()
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{addr}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return s
}

// endpoints returns the slices of a Service in both families.
func endpoints(of string, hosts ...*netlab.Host) []metav1.Object {
	return []metav1.Object{newSlice(of, service.IPv4, hosts...), newSlice(of, service.IPv6, hosts...)}
}

// node is node-a as the API returns it at first.
func node() *corev1.Node {
	n := &corev1.Node{}
	n.Name = netlab.NodeName
	n.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
	n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8:2::10"},
	}
	return n
}

// calls returns all addresses of s, as the API server has it, that a pod, a client
// outside and the node can dial.
func (w *fixture) calls(t *testing.T, s *corev1.Service) []judge.Call {
	t.Helper()
	stored, err := w.api.Client.CoreV1().Services(s.Namespace).Get(t.Context(), s.Name, metav1.GetOptions{})
	kit.Must(t, err)
	addrs := map[string][]string{"ClusterIP": stored.Spec.ClusterIPs, "external IP": stored.Spec.ExternalIPs}
	for _, in := range stored.Status.LoadBalancer.Ingress {
		addrs["load-balancer IP"] = append(addrs["load-balancer IP"], in.IP)
	}
	var all []judge.Call
	for _, p := range stored.Spec.Ports {
		for kind, list := range addrs {
			for _, a := range list {
				all = append(all, w.dial(judge.Call{Name: kind + " of " + s.Name}, a, p.Port, p.Protocol)...)
			}
		}
		if p.NodePort == 0 {
			continue
		}
		for _, a := range node().Status.Addresses {
			all = append(all, w.dial(judge.Call{Name: "NodePort of " + s.Name, ToNode: true}, a.Address, p.NodePort, p.Protocol)...)
		}
	}
	return all
}

// dial returns copies of like for each client, with the destination filled in.
func (w *fixture) dial(like judge.Call, to string, port int32, p corev1.Protocol) []judge.Call {
	addr, err := netip.ParseAddr(to)
	if err != nil { // "None"
		return nil
	}
	var all []judge.Call
	for _, h := range []*netlab.Host{w.Host("shopper"), w.Host("customer"), w.Node} {
		like.From, like.To = h, netip.AddrPortFrom(addr, uint16(port))
		like.Proto = map[corev1.Protocol]service.Protocol{corev1.ProtocolTCP: service.TCP, corev1.ProtocolUDP: service.UDP}[cmp.Or(p, corev1.ProtocolTCP)]
		all = append(all, like)
	}
	return all
}

// loads are connections that are made continuously.
type loads struct {
	calls []judge.Call
	run   []*netlab.Load
}

// load connects to all TCP addresses of s, until the test ends them.
func (w *fixture) load(t *testing.T, s *corev1.Service) *loads {
	t.Helper()
	l := &loads{}
	for _, x := range w.calls(t, s) {
		if x.Proto != service.TCP {
			continue
		}
		l.calls = append(l.calls, x)
		l.run = append(l.run, x.From.Load(t.Context(), netlab.LoadConfig{Query: x.Query(), Pause: 10 * time.Millisecond}))
	}
	return l
}

// stop ends the connections and requires that each of them was answered.
func (l *loads) stop(t *testing.T) {
	t.Helper()
	made := 0
	for i, one := range l.run {
		r := one.Stop()
		made += r.Connections
		if r.Lost() > 0 || r.Connections == 0 {
			t.Errorf("%s: %s", l.calls[i], r)
		}
	}
	t.Logf("%d connections were made meanwhile", made)
}

// stage is a change of a Service and of the hosts that serve it.
type stage struct {
	name string
	edit func(*corev1.Service) // applied to the API server's version
	on   []int                 // numbers of the hosts that serve from now on; nil for no change
}

func typed(to corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Type = to }
}

// balanced gives a Service of type LoadBalancer its addresses.
func balanced(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}, {IP: "2001:db8:203::10"}}
}

func asName(s *corev1.Service) {
	s.Status = corev1.ServiceStatus{}
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "shop.example"
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = "", nil, nil, nil
	s.Spec.InternalTrafficPolicy, s.Spec.SessionAffinity = nil, ""
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
}

// stages lead one Service through all types and settings of a Service.
var stages = []stage{
	{name: "a NodePort", edit: typed(corev1.ServiceTypeNodePort)},
	{name: "a load balancer", edit: balanced},
	{name: "external policy Local", edit: func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}},
	{name: "no local endpoint", edit: func(*corev1.Service) {}, on: []int{3, 4}},
	{name: "a local endpoint again", edit: func(*corev1.Service) {}, on: []int{1, 2, 3}},
	{name: "source ranges", edit: func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.100/32", "2001:db8:2::100/128"}
	}},
	{name: "other source ranges", edit: func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "2001:db8:77::/48"}
	}},
	{name: "external IPs", edit: func(s *corev1.Service) {
		s.Spec.LoadBalancerSourceRanges = nil
		s.Spec.ExternalIPs = []string{"198.51.100.7", "2001:db8:51::7"}
	}},
	{name: "policy Cluster again", edit: func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyCluster, 0
	}},
	{name: "a mere name", edit: asName},
	{name: "a ClusterIP again", edit: func(s *corev1.Service) {
		fresh := newService(s.Name)
		fresh.ResourceVersion = s.ResourceVersion
		*s = *fresh
	}},
	{name: "session affinity", edit: func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }},
	{name: "no affinity, internal policy Local", edit: func(s *corev1.Service) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig, s.Spec.InternalTrafficPolicy = corev1.ServiceAffinityNone, nil, &local
	}},
	{name: "no selector, other ports", edit: func(s *corev1.Service) {
		s.Spec.Selector, s.Spec.InternalTrafficPolicy = nil, nil
		s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = 81, 82
		again := s.Spec.Ports[0]
		again.Port = 83
		again.Name = "unserved"
		s.Spec.Ports = append(s.Spec.Ports, again)
	}},
	{name: "one family", edit: func(s *corev1.Service) {
		one := corev1.IPFamilyPolicySingleStack
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.ClusterIPs = &one, s.Spec.IPFamilies[:1], s.Spec.ClusterIPs[:1]
	}},
	{name: "both families, a port less", edit: func(s *corev1.Service) {
		both := corev1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &both, nil
		s.Spec.Ports = s.Spec.Ports[1:]
	}},
	{name: "a load balancer at once", edit: balanced},
}

// testTypes changes one Service in every way while another one carries traffic, of which
// nothing is lost.
func testTypes(t *testing.T, w *fixture) {
	steady := newService("steady", typed(corev1.ServiceTypeNodePort))
	changing := newService("changing")
	w.set(t, append(endpoints("steady", w.webs(4)...), steady)...)
	p := w.start(t)
	traffic := w.load(t, steady)

	w.set(t, append(endpoints("changing", w.webs(3)...), changing)...)
	past := w.calls(t, changing)
	w.awaitProgrammed(t).Check(t, past)
	for _, s := range stages {
		w.step(t, s, changing)
		now := w.calls(t, changing)
		w.awaitProgrammed(t).Check(t, join(past, now)) // former addresses must not answer
		if port := changing.Spec.HealthCheckNodePort; port != 0 {
			w.checkHealth(t, s, port)
		}
		past = now
	}
	w.remove(t, append(endpoints("changing"), changing)...)
	w.awaitProgrammed(t).Check(t, past)
	traffic.stop(t)
	p.Stop(t)
}

// step applies s at the API server.
func (w *fixture) step(t *testing.T, s stage, of *corev1.Service) {
	t.Helper()
	t.Logf("%s becomes %s", of.Name, s.name)
	s.edit(of)
	w.set(t, of)
	if len(s.on) == 0 {
		return
	}
	var hosts []*netlab.Host
	for _, i := range s.on {
		hosts = append(hosts, w.webs(i)[i-1])
	}
	w.set(t, endpoints(of.Name, hosts...)...)
}

// checkHealth sends health checks as a load balancer does. Only nodes with endpoints
// report success.
func (w *fixture) checkHealth(t *testing.T, s stage, port int32) {
	t.Helper()
	want := http.StatusOK
	if s.name == "no local endpoint" {
		want = http.StatusServiceUnavailable
	}
	for _, host := range []string{"192.0.2.10", "[2001:db8:2::10]"} {
		var got int
		kit.Until(t, fmt.Sprintf("%s: status %d of its health check at %s", s.name, want, host), func() bool {
			page, err := program.Fetch(t.Context(), w.Host("customer"), fmt.Sprintf("%s:%d", host, port), "/")
			got = page.Status
			return err == nil && got == want
		})
	}
}

// join returns a, and the calls of b that are not in a.
func join(a, b []judge.Call) []judge.Call {
	known := map[string]bool{}
	var all []judge.Call
	for _, x := range append(a[:len(a):len(a)], b...) {
		if !known[x.String()] {
			known[x.String()] = true
			all = append(all, x)
		}
	}
	return all
}
