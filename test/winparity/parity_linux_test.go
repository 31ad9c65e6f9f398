// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winparity

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/wine"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// namespace is the namespace of all Services.
const namespace = "shop"

// setting is the HNS of both sides.
type setting struct {
	version hns.Version
	network string // type of the network
}

func (s setting) overlay() bool { return s.network == "Overlay" }

// parity is a cluster with one API server and two Windows machines, each of which is
// node-a: on one kube-proxy.exe runs, on the other ours.
type parity struct {
	setting
	lab            *netlab.Lab
	api            *cluster.Cluster
	upstream, ours *side
	now            state // the API server's Services
	round          int
	before         map[string]string // what ours served before the last step
}

func newParity(t *testing.T, s setting, more ...string) *parity {
	t.Helper()
	d := &parity{setting: s, lab: netlab.Start(t, netlab.Config{Clients: []string{"control"}}), now: state{}}
	d.api = cluster.Start(t, cluster.Options{Host: d.lab.Host("control")})
	d.set(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	d.set(t, node(netlab.NodeName, d.lab.Node.IPv4, "10.244.1.0/24"))
	d.set(t, node(netlab.OtherName, d.lab.Other.IPv4, "10.244.2.0/24"))
	kubeconfig, err := d.api.Kubeconfig(cluster.Login{})
	kit.Must(t, err)
	flags := []string{
		"--kubeconfig=" + wine.File(kubeconfig), "--proxy-mode=kernelspace", "--hostname-override=" + netlab.NodeName,
		"--enable-dsr=true", "--network-name=net0", "--cluster-cidr=10.244.0.0/16", "--iptables-min-sync-period=10ms",
		"--bind-address=" + d.lab.Node.IPv4.String(),
	}
	flags = append(flags, more...)
	if s.overlay() {
		flags = append(flags, "--source-vip=10.244.1.2")
	}
	share(t, d.lab.Other, d.lab.Node.IPv4)
	known, err := cluster.UpstreamProxy(t.Context(), os.Stderr)
	kit.Must(t, err)
	d.upstream = newSide(t, d, d.lab.Node, proxy{"kube-proxy.exe", known, flags})
	d.ours = newSide(t, d, d.lab.Other, proxy{"ours", build(t), flags})
	return d
}

// share gives a host the address of another one, on an unconnected interface. The host
// does not answer for it elsewhere.
func share(t *testing.T, h *netlab.Host, ip netip.Addr) {
	t.Helper()
	for _, line := range []string{
		"sysctl -qw net.ipv4.conf.all.arp_ignore=1", "ip link add shared type veth peer name nobody", "ip link set shared up",
		"ip addr add " + ip.String() + "/32 dev shared",
	} {
		words := strings.Fields(line)
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		err := errors.Join(h.Start(cmd), cmd.Wait())
		kit.Need(t, err == nil, "%s: %v", line, err)
	}
}

// interfaces lists those of a host, with their hardware addresses.
func interfaces(t *testing.T, h *netlab.Host) string {
	t.Helper()
	var out strings.Builder
	cmd := exec.CommandContext(t.Context(), "ip", "-o", "link")
	cmd.Stdout = &out
	kit.Must(t, errors.Join(h.Start(cmd), cmd.Wait()))
	return out.String()
}

// build builds our program for Windows.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kube-proxy.exe")
	kit.Must(t, wine.BuildProgram(path, "kubeproxy/cmd/kube-proxy"))
	return path
}

func node(name string, ip netip.Addr, pods string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = pods, []string{pods}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip.String()}}
	return n
}

func (d *parity) set(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	kit.Must(t, d.api.Set(t.Context(), objects...))
}

func (d *parity) sides() []*side { return []*side{d.upstream, d.ours} }

// apply makes the API server's objects those of next, and then changes the marker
// Service. A proxy that has programmed the marker has received all the rest.
func (d *parity) apply(t *testing.T, next state) {
	t.Helper()
	d.round++
	next[marker] = markerOf(d.round)
	for _, name := range sorted(d.now) {
		if old := d.now[name]; next[name] == nil {
			kit.Must(t, d.api.Delete(t.Context(), old.service(), old.slice()))
		}
	}
	for _, name := range sorted(next) {
		if name != marker && !equal(d.now[name], next[name]) {
			d.set(t, next[name].slice())
			d.set(t, next[name].service())
		}
	}
	d.set(t, next[marker].slice())
	d.set(t, next[marker].service())
	d.now = next
}

// awaitMarker returns when both sides have the last change.
func (d *parity) awaitMarker(t *testing.T) {
	t.Helper()
	want := fmt.Sprintf("%s%d", markerVIP, markerPort(d.round))
	for _, s := range d.sides() {
		if s.process == nil {
			continue
		}
		kit.Until(t, s.name+" has the marker "+want, func() bool { return s.programmed()[want] != "" })
	}
}

// compare waits until both sides serve alike, except for known differences, and returns
// the other differences.
func (d *parity) compare(t *testing.T, known differences) string {
	t.Helper()
	var rest string
	for deadline := time.Now().Add(kit.Limit / 2); ; time.Sleep(50 * time.Millisecond) {
		rest = known.unexplained(d.upstream.programmed(), d.ours.programmed())
		if rest == "" || time.Now().After(deadline) {
			return rest
		}
	}
}

// side is one machine: its HNS, its Wine and its proxy.
type side struct {
	proxy
	setting
	other   netip.Addr // of the other node
	hns     *hns.Server
	macs    string // of the interfaces of its host
	wine    *wine.Wine
	process *wine.Process
}

// proxy is a program with its command line.
type proxy struct {
	name, path string
	flags      []string
}

// otherMAC is what an overlay network calls the other node.
const otherMAC = "00-15-5D-00-00-02"

func newSide(t *testing.T, d *parity, host *netlab.Host, p proxy) *side {
	t.Helper()
	l, err := host.Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.Must(t, err)
	s := &side{proxy: p, setting: d.setting, other: d.lab.Other.IPv4}
	s.hns = hns.NewServer(hns.New(hns.Options{Version: d.version, Steady: true}), l)
	t.Cleanup(func() { _ = s.hns.Close() })
	config := hns.NetworkConfig{Name: "net0", Type: d.network, Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	if d.overlay() {
		config.Routes = []hns.Route{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: d.lab.Other.IPv4, MAC: otherMAC}}
	}
	_, err = s.hns.AddNetwork(config)
	kit.Must(t, err)
	s.macs = interfaces(t, host)
	s.wine = wine.Start(t, wine.Options{Host: host, Env: []string{"HNS_SIM_ADDR=" + s.hns.Addr}})
	t.Cleanup(func() {
		if t.Failed() && s.process != nil {
			t.Logf("log of %s:\n%s", s.name, tail(s.process.Log()))
		}
	})
	return s
}

func tail(log string) string {
	const most = 12000
	return log[max(0, len(log)-most):]
}

func (s *side) start(t *testing.T) {
	t.Helper()
	var err error
	if s.process, err = s.wine.Start(wine.Program{Path: s.path, Args: s.flags}); err != nil {
		t.Fatal(err)
	}
}

// stop ends the proxy as Ctrl+C does.
func (s *side) stop(t *testing.T) {
	t.Helper()
	kit.Must(t, s.process.Interrupt())
	select {
	case <-s.process.Ended():
	case <-time.After(kit.Limit / 4): // kube-proxy.exe may hang
		s.process.Kill()
	}
	s.process = nil
}

// kill ends the proxy as a crash does.
func (s *side) kill(t *testing.T) {
	t.Helper()
	s.process.Kill()
	s.hns.DropConnections()
	kit.Until(t, "the last call is over", func() bool { return s.hns.Connections() == 0 })
	s.process = nil
}

// programmed returns the endpoints of the load balancers of HNS, by their frontends.
func (s *side) programmed() map[string]string {
	ips := map[string]string{}
	for _, e := range s.hns.Objects(hns.Endpoint) {
		for _, ip := range e.IPs() {
			ips[e.ID()] = ip.String()
		}
	}
	have := map[string]string{}
	for _, lb := range s.hns.Objects(hns.LoadBalancer) {
		var leads []string
		for _, id := range lb.Endpoints() {
			ip, ok := ips[id]
			if !ok {
				ip = "(deleted endpoint)"
			}
			leads = append(leads, ip)
		}
		slices.Sort(leads)
		for _, p := range lb.Ports() {
			for _, f := range frontendsOf(lb, p) {
				have[f] = fmt.Sprintf("%v on %s, distribution %v", p["InternalPort"], strings.Join(leads, " "), p["DistributionType"])
			}
		}
	}
	return have
}

// frontends returns the frontends of a load balancer.
func frontends(lb hns.Document) []string {
	var list []string
	for _, p := range lb.Ports() {
		list = append(list, frontendsOf(lb, p)...)
	}
	return list
}

// frontendsOf returns the frontends of one port of a load balancer.
func frontendsOf(lb, port hns.Document) []string {
	vips := lb.VIPs()
	if len(vips) == 0 {
		vips = []string{"node"}
	}
	for i, vip := range vips {
		vips[i] = fmt.Sprintf("%v %s:%v", port["Protocol"], vip, port["ExternalPort"])
	}
	return vips
}

// state holds the Services of the API server, by name.
type state map[string]*app

// with returns a state with apps in place of those of their names.
func (s state) with(apps ...app) state {
	next := maps.Clone(s)
	for _, a := range apps {
		next[a.name] = &a
	}
	return next
}

// without returns a state that lacks a Service.
func (s state) without(names ...string) state {
	next := maps.Clone(s)
	for _, name := range names {
		delete(next, name)
	}
	return next
}

func sorted(s state) []string { return slices.Sorted(maps.Keys(s)) }
func equal(a, b *app) bool    { return a != nil && b != nil && reflect.DeepEqual(*a, *b) }

// app is a Service and its endpoints.
type app struct {
	name, clusterIP string
	spec            corev1.ServiceSpec // without addresses
	ingress         string
	target          int32
	annotations     map[string]string
	// pods are addresses: /t is terminating and serving, /d terminating and
	// not serving, /n not ready, /r on the other node though of this one's range, /h on the
	// network of this node, /o no pod, but outside of the cluster.
	pods []string
}

// on returns a with other endpoints.
func (a app) on(pods ...string) app {
	a.pods = pods
	return a
}

// withSpec returns a with a changed specification.
func (a app) withSpec(change func(*corev1.ServiceSpec)) app {
	a.spec = *a.spec.DeepCopy()
	change(&a.spec)
	return a
}

func (a app) service() *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.name}, Spec: *a.spec.DeepCopy()}
	s.Annotations = a.annotations
	s.Spec.ClusterIP, s.Spec.ClusterIPs = a.clusterIP, []string{a.clusterIP}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	if a.ingress != "" {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: a.ingress}}
	}
	return s
}

func (a app) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: a.name + "-1"}}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: a.name}
	s.AddressType = discoveryv1.AddressTypeIPv4
	for _, p := range a.spec.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(a.target)})
	}
	s.Endpoints = []discoveryv1.Endpoint{}
	for _, pod := range a.pods {
		ip, how, _ := strings.Cut(pod, "/")
		e := discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: new(netlab.OtherName)}
		switch {
		case how == "o":
			e.NodeName = nil
		case how == "h", how != "r" && strings.HasPrefix(ip, "10.244.1."):
			e.NodeName = new(netlab.NodeName)
		}
		ready := how == "" || strings.Contains("rho", how)
		e.Conditions = discoveryv1.EndpointConditions{
			Ready: &ready, Serving: new(ready || how == "t"), Terminating: new(how == "t" || how == "d"),
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func ports(names ...string) []corev1.ServicePort {
	var list []corev1.ServicePort
	for _, n := range names {
		p := corev1.ServicePort{Name: n, Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}
		if strings.HasPrefix(n, "udp") {
			p.Protocol = corev1.ProtocolUDP
		}
		list = append(list, p)
	}
	return list
}

// web is a Service of type LoadBalancer with each kind of address.
func web() app {
	a := app{name: "web", clusterIP: "10.96.5.5", ingress: "203.0.113.5", target: 8080}
	a.spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: ports("web"), ExternalIPs: []string{"198.51.100.5"},
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
		SessionAffinity: corev1.ServiceAffinityNone,
	}
	a.spec.Ports[0].NodePort = 30080
	return a
}

func api() app {
	a := app{name: "api", clusterIP: "10.96.5.6", target: 8080}
	a.spec = corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: ports("web")}
	a.spec.Ports[0].NodePort = 30081
	return a
}

func dns() app {
	a := app{name: "dns", clusterIP: "10.96.0.10", target: 53}
	a.spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports("tcp", "udp")}
	return a
}

// marker is a Service whose change shows that a proxy has received all earlier changes.
const (
	marker    = "zz-marker"
	markerVIP = "6 10.96.9.9:"
)

func markerPort(round int) int { return 1000 + round }

func markerOf(round int) *app {
	a := &app{name: marker, clusterIP: "10.96.9.9", target: int32(markerPort(round)), pods: []string{"10.244.2.200"}}
	a.spec = corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: ports("web")}
	a.spec.Ports[0].Port = int32(markerPort(round))
	return a
}

// The reasons of differences, as in docs/windows.md.
const (
	notReady     = "A pod that is not ready"
	lastEndpoint = "The last endpoint left"
	deleted      = "A deleted endpoint in a load balancer"
	targetPort   = "Another target port"
	sourceRanges = "Source ranges"
	// Of nightly lives.
	outage         = "HNS is away during a change"
	endpointFailed = "An endpoint of HNS cannot be created at once"
)

// externals are the addresses of the Service web to which policy Local applies.
var externals = []string{"198.51.100.5:80", "203.0.113.5:80", "node:30080"}

// differences are frontends that kube-proxy serves differently, or not at all, on some
// versions of HNS.
type differences []difference

type difference struct {
	reason   string
	frontend string // the end of a frontend
	ours     string // the endpoints; empty for none
}

// unexplained returns a line for each frontend with an unknown difference.
func (d differences) unexplained(known, ours map[string]string) string {
	keys := maps.Clone(known)
	maps.Copy(keys, ours)
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		want, who := known[key], "kube-proxy.exe has"
		for _, x := range d {
			if strings.HasSuffix(key, x.frontend) {
				want, who = x.ours, "right is"
			}
		}
		if ours[key] != want {
			lines = append(lines, fmt.Sprintf("%s: %s %q, ours %q", key, who, want, ours[key]))
		}
	}
	return strings.Join(lines, "\n")
}

// differ returns differences for frontends that have the endpoints ours, for one reason.
func differ(reason, ours string, frontends ...string) differences {
	var d differences
	for _, f := range frontends {
		d = append(d, difference{reason, f, ours})
	}
	return d
}

// on returns the endpoints of a load balancer in the form of programmed.
func on(target int, ips ...string) string {
	return fmt.Sprintf("%d on %s, distribution <nil>", target, strings.Join(ips, " "))
}

// TestReasonsAreExplained requires a row in docs/windows.md for each reason, and a reason
// for each row.
func TestReasonsAreExplained(t *testing.T) {
	text := kit.ReadFile(t, "../../docs/windows.md")
	_, table, _ := strings.Cut(string(text), "## Differences from kube-proxy.exe")
	table, _, _ = strings.Cut(table, "\n## ")
	used := map[string]bool{}
	for _, s := range slices.Concat(lifecycle(), rareLife()) {
		for _, d := range s.differ {
			used[d.reason] = true
		}
	}
	for reason := range used {
		kit.Check(t, strings.Contains(table, "\n| "+reason+" |"), "docs/windows.md has no row %q", reason)
	}
	rows := strings.Count(table, "\n| ") - 1
	kit.Check(t, rows == len(used), "docs/windows.md has %d rows, for %d reasons", rows, len(used))
}
