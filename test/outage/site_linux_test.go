// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/program"
)

// kubeProxy is the program under test.
var kubeProxy program.Program

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// site is a network with a control plane, two pods that serve, and hosts on the LAN as
// nodes. Each node has the rules of its own proxy, and reaches the pods.
type site struct {
	*netlab.Lab
	*cluster.Cluster

	saving sync.Mutex // while it is held, nothing is saved
}

// newSite returns a site whose nodes have the given names.
func newSite(t *testing.T, o cluster.Options, nodes ...string) *site {
	t.Helper()
	s := &site{Lab: netlab.Start(t, netlab.Config{Pods: []string{"web-1", "web-2"}, Clients: append([]string{"control"}, nodes...)})}
	for _, name := range nodes {
		for _, setting := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} { // else traffic counts as blocked
			kit.Must(t, s.Host(name).Do(func() error { return os.WriteFile("/proc/sys/net/"+setting, []byte("1"), 0) }))
		}
	}
	o.Host = s.Host("control")
	s.Cluster = cluster.Start(t, o)
	for _, h := range s.webs() {
		_, err := h.Echo("", target)
		kit.Must(t, err)
	}
	var all []metav1.Object
	for _, name := range nodes {
		all = append(all, nodeObject(s.Host(name)))
	}
	kit.Must(t, s.Set(t.Context(), all...))
	return s
}

func (s *site) webs() []*netlab.Host { return []*netlab.Host{s.Host("web-1"), s.Host("web-2")} }

// node is a host with a proxy.
type node struct {
	*program.Proxy
	site   *site
	host   *netlab.Host
	kernel *program.Kernel
	rules  *nftmonitor.Listener

	guarded atomic.Pointer[[2][]byte] // addresses as the kernel writes them
	touched atomic.Int32              // changes with one of these
}

// join makes a host a node, without a proxy yet.
func (s *site) join(t *testing.T, name string) *node {
	t.Helper()
	n := &node{site: s, host: s.Host(name)}
	n.kernel = program.NewKernel(t, n.host, 0)
	var err error
	if n.rules, err = nftmonitor.Listen(n.host, n.observe); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.rules.Close() })
	return n
}

// start starts the node's proxy without waiting for it.
func (n *node) start(t *testing.T, l cluster.Login, args ...string) {
	t.Helper()
	n.launch(t, n.flags(t, l, args...), nil)
}

// flags are those of a proxy with login l.
func (n *node) flags(t *testing.T, l cluster.Login, args ...string) []string {
	t.Helper()
	kubeconfig, err := n.site.Kubeconfig(l)
	kit.Must(t, err)
	return append([]string{
		"--kubeconfig=" + kubeconfig, "--hostname-override=" + n.host.Name, "--cluster-cidr=" + netlab.ClusterCIDR,
	}, args...)
}

func (n *node) launch(t *testing.T, args, env []string) {
	t.Helper()
	cmd := kubeProxy.Command(args...)
	cmd.Env = append(os.Environ(), env...)
	n.Proxy = program.Start(t, n.host, cmd)
}

// want is the desired state of the node according to the API server.
func (n *node) want(t *testing.T) *service.Snapshot {
	t.Helper()
	o := track.Options{NodeName: n.host.Name, NodePortsPrimary: true}
	for cidr := range strings.SplitSeq(netlab.ClusterCIDR, ",") {
		o.Pods.Prefixes = append(o.Pods.Prefixes, netip.MustParsePrefix(cidr))
	}
	tracker := track.New(o)
	api, all := n.site.Client, metav1.ListOptions{}
	services, err := api.CoreV1().Services("").List(t.Context(), all)
	kit.Must(t, err)
	for i := range services.Items {
		tracker.SetService(&services.Items[i])
	}
	slices, err := api.DiscoveryV1().EndpointSlices("").List(t.Context(), all)
	kit.Must(t, err)
	for i := range slices.Items {
		tracker.SetSlice(&slices.Items[i])
	}
	ranges, err := api.NetworkingV1().ServiceCIDRs().List(t.Context(), all)
	kit.Must(t, err)
	for i := range ranges.Items {
		tracker.SetServiceCIDR(&ranges.Items[i])
	}
	own, err := api.CoreV1().Nodes().Get(t.Context(), n.host.Name, metav1.GetOptions{})
	kit.Must(t, err)
	tracker.SetNode(own)
	tracker.Synced()
	return tracker.Latest()
}

// awaitProgrammed waits until the kernel holds exactly the desired state, which may
// change meanwhile.
func (n *node) awaitProgrammed(t *testing.T) {
	t.Helper()
	lacks := ""
	for deadline := time.Now().Add(kit.Limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if lacks = n.kernel.Diff(t, n.want(t)); lacks == "" {
			return
		}
	}
	t.Fatalf("after %s the kernel of %s lacks:\n%s", kit.Limit, n.host.Name, lacks)
}

// healthy waits until the proxy reports that it is healthy.
func (n *node) healthy(t *testing.T) {
	t.Helper()
	kit.Until(t, n.host.Name+" is healthy", func() bool { return n.Status(t, program.HealthAddr, "/healthz") == 200 })
}

// report is the content and the status of /healthz.
func (n *node) report(t *testing.T) (r health.Report, status int) {
	t.Helper()
	page := n.Fetch(t, program.HealthAddr, "/healthz")
	err := json.Unmarshal(page.Body, &r)
	kit.Need(t, err == nil, "/healthz: %v\n%s", err, page.Body)
	return r, page.Status
}

// source is the part of /healthz about one kind of objects.
func (n *node) source(t *testing.T, kind string) health.SourceReport {
	t.Helper()
	r, _ := n.report(t)
	for _, s := range r.Sources {
		if s.Name == kind {
			return s
		}
	}
	t.Fatalf("/healthz knows no source %q: %+v", kind, r.Sources)
	return health.SourceReport{}
}

// guard counts, from now on, changes of the rules that contain an address of a.
func (n *node) guard(a app) {
	n.guarded.Store(&[2][]byte{a.addr().Addr().AsSlice(), a.addr6().AsSlice()})
}

func (n *node) observe(x nftmonitor.Event) {
	all := n.guarded.Load()
	if all != nil && (bytes.Contains(x.Data, all[0]) || bytes.Contains(x.Data, all[1])) {
		n.touched.Add(1)
	}
}

// counts counts the kernel's notifications about the node's rules so far.
func (n *node) counts(t *testing.T) nftmonitor.Counts {
	t.Helper()
	tally, err := n.rules.Counts()
	kit.Need(t, err == nil, "listen to the rules of %s: %v", n.host.Name, err)
	return tally
}

// load connects to a continuously, from the node itself.
func (n *node) load(t *testing.T, a app) *netlab.Load {
	t.Helper()
	l := n.host.Load(context.WithoutCancel(t.Context()), netlab.LoadConfig{Query: netlab.Query{Proto: "tcp", To: a.addr()}, Workers: 1})
	kit.Until(t, "a first answer of "+a.name, func() bool { return l.Report().Outcomes[netlab.Answered] > 0 })
	return l
}

// lossless stops a load and requires that each of its connections was answered.
func lossless(t *testing.T, l *netlab.Load) {
	t.Helper()
	r := l.Stop()
	if r.Lost() > 0 || r.Connections == 0 {
		t.Errorf("%d connections lost: %s", r.Lost(), r)
	}
	t.Logf("meanwhile: %s", r)
}

// answers returns whether a serves, as seen from the node.
func (n *node) answers(t *testing.T, a app) bool {
	t.Helper()
	answer, err := n.host.Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.addr()})
	kit.Must(t, err)
	return answer.Outcome == netlab.Answered
}

const (
	space  = metav1.NamespaceDefault
	target = 8080 // where servers listen
)

// app is a Service with a ClusterIP of its own in each family, and its endpoints.
type app struct {
	name   string
	number int // of its addresses
	// on holds the addresses of the endpoints, alternating between the families.
	on []netip.Addr
}

// newApp returns an app with endpoints on hosts.
func newApp(name string, number int, hosts ...*netlab.Host) app {
	a := app{name: name, number: number}
	return a.moved(hosts...)
}

func (a app) moved(hosts ...*netlab.Host) app {
	a.on = nil
	for _, h := range hosts {
		a.on = append(a.on, h.IPv4, h.IPv6)
	}
	return a
}

// addr is the ClusterIP for IPv4 with the Service's port.
func (a app) addr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(100 + a.number>>8), byte(a.number)}), 80)
}

func (a app) addr6() netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%x", 0x1000+a.number))
}

func (a app) service() *corev1.Service {
	both := corev1.IPFamilyPolicyRequireDualStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: a.name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &both, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ClusterIP: a.addr().Addr().String(), ClusterIPs: []string{a.addr().Addr().String(), a.addr6().String()},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// slices returns an EndpointSlice for each family.
func (a app) slices() []*discoveryv1.EndpointSlice {
	var all []*discoveryv1.EndpointSlice
	for _, kind := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		name, port, proto := "http", int32(target), corev1.ProtocolTCP
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: space, Name: a.name + map[discoveryv1.AddressType]string{"IPv4": "-4", "IPv6": "-6"}[kind],
				Labels: map[string]string{discoveryv1.LabelServiceName: a.name},
			},
			AddressType: kind,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
		}
		for _, ip := range a.on {
			if ip.Is4() != (kind == discoveryv1.AddressTypeIPv4) {
				continue
			}
			yes := true
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			})
		}
		all = append(all, s)
	}
	return all
}

func (a app) objects() []metav1.Object {
	all := []metav1.Object{a.service()}
	for _, s := range a.slices() {
		all = append(all, s)
	}
	return all
}

// save writes apps to the API server.
func (s *site) save(ctx context.Context, apps ...app) error {
	var all []metav1.Object
	for _, a := range apps {
		all = append(all, a.objects()...)
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	return s.Set(ctx, all...)
}

// remove deletes apps.
func (s *site) remove(ctx context.Context, apps ...app) error {
	var all []metav1.Object
	for _, a := range apps {
		all = append(all, a.objects()...)
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	return s.Delete(ctx, all...)
}

// nodeObject is the Node of h.
func nodeObject(h *netlab.Host) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: h.Name},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: h.IPv4.String()},
			{Type: corev1.NodeInternalIP, Address: h.IPv6.String()},
		}},
	}
}

func testHealthPort(t *testing.T, s *site)  { testPort(t, s.join(t, "health"), "health", "10256") }
func testMetricsPort(t *testing.T, s *site) { testPort(t, s.join(t, "metrics"), "metrics", "10249") }

// testPort occupies the listen address of a proxy.
func testPort(t *testing.T, n *node, server, port string) {
	taken, err := n.host.Listen(t.Context(), "tcp", "0.0.0.0:"+port)
	kit.Must(t, err)
	defer taken.Close()
	out, err := program.Run(t, n.host, kubeProxy.Command(n.flags(t, cluster.Login{}, "--bind-address-hard-fail=true")...))
	wantExit(t, err, 1)
	for _, word := range []string{server + " server", port, "address already in use"} {
		kit.Check(t, strings.Contains(out, word),
			"with --bind-address-hard-fail the proxy says nothing of %q:\n%s", word, out)
	}

	n.start(t, cluster.Login{})
	n.awaitProgrammed(t)
	n.AwaitLog(t, "Not served", "address already in use", port)
	kit.Must(t, taken.Close())
	kit.Until(t, "the address is served", func() bool { return n.Status(t, "127.0.0.1:"+port, "/healthz") == 200 })
	n.AwaitLog(t, "Serving after all", port)
	n.healthy(t)
}

func wantExit(t *testing.T, err error, want int) {
	t.Helper()
	var exit *exec.ExitError
	got := errors.As(err, &exit)
	kit.Check(t, got && exit.ExitCode() == want, "the proxy ended with %v, want exit status %d", err, want)
}

// TestBadKubeconfig checks that the start fails if no API server can ever be reached.
func TestBadKubeconfig(t *testing.T) {
	t.Parallel()
	lab := netlab.Start(t, netlab.Config{})
	for name, tc := range map[string]struct {
		text string // empty: there is no file
		want []string
	}{
		"missing":     {"", []string{"no such file", "kubeconfig"}},
		"no YAML":     {"clusters: [", []string{"yaml", "kubeconfig"}},
		"other kind":  {"apiVersion: v1\nkind: Service\n", []string{"Service", "kubeconfig"}},
		"empty":       {"apiVersion: v1\nkind: Config\n", []string{"names no cluster", "kubeconfig"}},
		"no context":  {"apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: c, cluster: {server: https://192.0.2.1}}]\n", []string{"context"}},
		"bad address": {kubeconfigFor("https://192.0.2.1:port"), []string{"192.0.2.1:port"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if tc.text != "" {
				kit.WriteFile(t, path, tc.text)
			}
			out, err := program.Run(t, lab.Node, kubeProxy.Command("--kubeconfig="+path))
			wantExit(t, err, 1)
			for _, word := range tc.want {
				kit.Check(t, strings.Contains(out, word), "the proxy says nothing of %q:\n%s", word, out)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		out, err := program.Run(t, lab.Node, kubeProxy.Command())
		wantExit(t, err, 1)
		kit.Check(t, strings.Contains(out, "--kubeconfig"), "the proxy does not say what it wants:\n%s", out)
	})
	t.Run("nobody there", func(t *testing.T) { testNoAPIServer(t, lab) })
}

func kubeconfigFor(server string) string {
	return `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "` + server + `"}}]
users: [{name: u, user: {token: t}}]
`
}

// testNoAPIServer checks that the start does not fail if the API server is down: it may
// start later.
func testNoAPIServer(t *testing.T, lab *netlab.Lab) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kit.WriteFile(t, path, kubeconfigFor("https://192.0.2.11:6443"))
	p := kubeProxy.Start(t, lab.Node, "--kubeconfig="+path)
	p.AwaitLog(t, "connection refused", "192.0.2.11:6443")
	p.AwaitLog(t, "Still reading and programming for the first time")
	status := p.Status(t, program.HealthAddr, "/healthz")
	kit.Check(t, status == 503, "/healthz has status %d, want 503", status)
	p.Stop(t)
}

// apiFault is a fault of the requests of the node of that name.
type apiFault struct {
	name  string
	fault cluster.Fault
}

func apiFaults() []apiFault {
	return []apiFault{
		{"error", cluster.Fault{Status: http.StatusInternalServerError}},
		{"overload", cluster.Fault{Status: http.StatusServiceUnavailable, RetryAfter: time.Second}},
		{"throttle", cluster.Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Second}},
		{"refused", cluster.Fault{Status: http.StatusUnauthorized}},
		{"reset", cluster.Fault{Cut: truncatedLength, Reset: true}},
		{"truncated", cluster.Fault{Cut: truncatedLength}},
		{"halves", cluster.Fault{Status: http.StatusInternalServerError, Only: "endpointslices"}},
	}
}

// truncatedLength is less than the size of any list or event of a Service, so that none
// gets through a watch.
const truncatedLength = 200

// minFaults is how many spoiled requests show that the proxy retries.
func (x apiFault) minFaults() int {
	if x.fault.Only != "" {
		return 2
	}
	return 4
}

// test spoils the requests of a proxy when it starts, and again when it runs. It creates
// one Service during the fault, which silent watches must miss, and one when all is well.
func (x apiFault) test(t *testing.T, s *site, number int) {
	meanwhile := newApp("with-"+x.name, number, s.webs()...)
	after := newApp("after-"+x.name, number+1, s.webs()...)
	front, err := s.NewFaultProxy(t.Context())
	kit.Must(t, err)
	t.Cleanup(func() { _ = front.Close() })
	n := s.join(t, x.name)
	front.SetFault(x.fault)
	n.start(t, cluster.Login{Server: front.URL})
	kit.Until(t, "requests are spoiled", func() bool { return front.FaultCount() >= x.minFaults() })
	n.neverProgrammed(t)
	checkWrites(t, "before anything was read", n.counts(t), nftmonitor.Counts{})
	front.SetFault(cluster.Fault{})
	n.awaitProgrammed(t)
	n.healthy(t)

	load := n.load(t, newApp("web", 1))
	spoiled := front.FaultCount()
	before := n.cutOff(t, front, x.fault)
	kit.Must(t, s.save(t.Context(), meanwhile))
	kit.Until(t, "requests are spoiled again", func() bool { return front.FaultCount() >= spoiled+x.minFaults() })
	r, status := n.report(t)
	kit.Check(t, status == http.StatusOK && r.Healthy, "/healthz has status %d, want 200: %+v", status, r)
	kit.Until(t, "the failure is known", func() bool { return n.source(t, "endpointslices").Error != "" })
	if x.fault.Only == "" { // else what can be read is programmed
		checkWrites(t, "during the outage", n.counts(t).Since(before), nftmonitor.Counts{})
	}
	front.SetFault(cluster.Fault{})
	kit.Must(t, s.save(t.Context(), after))
	n.awaitProgrammed(t)
	kit.Until(t, "the failure is over", func() bool { return n.source(t, "endpointslices").Error == "" })
	lossless(t, load)
	n.checkLogSize(t)
}

// cutOff spoils the requests of a node that has programmed everything, and returns the
// notifications about its rules until then. Other parts write nothing meanwhile, as it
// would be programmed after the count.
func (n *node) cutOff(t *testing.T, front *cluster.FaultProxy, how cluster.Fault) nftmonitor.Counts {
	t.Helper()
	n.site.saving.Lock()
	defer n.site.saving.Unlock()
	n.awaitProgrammed(t)
	reported := n.counts(t)
	front.SetFault(how)
	return reported
}

// checkLogSize requires that the log does not repeat itself without end.
func (n *node) checkLogSize(t *testing.T) {
	t.Helper()
	const most = 8
	lines := n.Log.Count(`"err"`) + n.Log.Count("err=")
	t.Logf("%d lines with an error", lines)
	kit.Check(t, lines <= most, "%d lines with an error, want at most %d", lines, most)
}

// testSlow delays every response to a proxy.
func testSlow(t *testing.T, s *site) {
	front, err := s.NewFaultProxy(t.Context())
	kit.Must(t, err)
	t.Cleanup(func() { _ = front.Close() })
	n := s.join(t, "slow")
	front.SetFault(cluster.Fault{Delay: 2 * time.Second})
	n.start(t, cluster.Login{Server: front.URL})
	n.AwaitLog(t, "Still reading and programming for the first time")
	n.awaitProgrammed(t)
	n.healthy(t)
	if a, err := n.host.Ask(t.Context(), netlab.Query{Proto: "tcp", To: newApp("web", 1).addr()}); err != nil || a.Outcome != netlab.Answered {
		t.Errorf("the Service: %s, %v", a.Outcome, err)
	}
}
