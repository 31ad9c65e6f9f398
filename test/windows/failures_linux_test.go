// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
	"kubeproxy/test/wine"
)

// fetch returns a page of the metrics server.
func (n *node) fetch(t *testing.T, path string) string {
	t.Helper()
	page, err := program.Fetch(t.Context(), n.Node, program.MetricsAddr, path)
	if err != nil {
		return err.Error()
	}
	return string(page.Body)
}

// run runs the program to its end beside the proxy.
func (n *node) run(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	path, err := exe()
	if err == nil {
		code, output, err = n.wine.Run(t.Context(), wine.Program{Path: path, Args: args})
	}
	kit.Must(t, err)
	return code, output
}

// TestOneServiceFails occupies the node port of a Service by a program of the node. HNS
// refuses one load balancer, the rest works, and status, metrics and health report it.
// The proxy recovers without a resync, of which there is none here.
func TestOneServiceFails(t *testing.T) {
	n := newNode(t, hns.Options{})
	web, cart, _ := shop()
	n.hns.Hold(6, int(cart.nodePort()))
	n.save(t, web, cart)
	n.start(t, "--iptables-sync-period=1h")
	n.await(t, "all but one load balancer", func() bool { return len(n.programmed()) == 3 })
	n.await(t, "the failure in health", func() bool {
		return has(string(n.health(t).Body), `"failedPorts":1`) && has(n.fetch(t, "/services"), "a program of this node listens there", "Get-NetTCPConnection")
	})
	kit.Equal(t, n.health(t).Status, http.StatusOK, "one Service of two fails, and health")
	for path, words := range map[string][]string{
		"/services": {`"name":"cart","state":"failed"`, `"name":"web","state":"programmed"`, "0x803b0013"},
		"/metrics": {`kubeproxy_failed_service_ports{backend="kernelspace",ip_family="IPv4"} 1`, `kubeproxy_services{state="failed"} 1`,
			`kubeproxy_hns_call_failures_total{class="exists",operation="create_load_balancer"}`,
			`kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total{error="port_already_exists",ip_family="IPv4",lb_type="nodeport"}`,
			`kubeproxy_hns_call_duration_seconds_count{operation="list"}`},
	} {
		n.await(t, fmt.Sprintf("%q in %s", words, path), func() bool { return has(n.fetch(t, path), words...) })
	}
	code, output := n.run(t, "status", "shop/cart")
	kit.Check(t, code != 0 && has(output, "0x803b0013"), "status shop/cart: exit code %d\n%s", code, output)
	n.hns.Release(6, int(cart.nodePort()))
	n.awaitProgrammed(t, web, cart)
	n.await(t, "good health", func() bool { return has(string(n.health(t).Body), `"failedPorts":0`) })
	n.stop(t)
}

// TestHNSUnavailable stops HNS. The proxy must not take that for an empty HNS, health
// reports it, and nothing is recreated when it is back.
func TestHNSUnavailable(t *testing.T) {
	n := newNode(t, hns.Options{})
	web, _, _ := shop()
	n.save(t, web)
	n.start(t)
	n.awaitProgrammed(t, web)
	n.awaitIdle(t) // all answers have arrived
	n.hns.Stop(hns.ServerUnavailable)
	before := n.hns.Calls()
	n.await(t, "the outage in health", func() bool {
		return has(n.fetch(t, "/services"), "HNS is not running: Start-Service hns starts it (0x6ba)")
	})
	n.hns.Start(hns.Everything)
	n.await(t, "good health", func() bool {
		return n.health(t).Status == http.StatusOK && !has(n.fetch(t, "/services"), "not running")
	})
	n.awaitProgrammed(t, web)
	calls := n.hns.Calls().Sub(before)
	kit.Check(t, calls.Writes("") == 0, "HNS was away and is back with all it had: %s", calls)
	n.stop(t)
}

// TestStateFiles starts with state files that are damaged or belong to another node. The
// proxy recognizes its objects by their properties, and leaves foreign load balancers
// alone.
func TestStateFiles(t *testing.T) {
	n := newNode(t, hns.Options{})
	n.installForeign(t)
	web, cart, _ := shop()
	n.save(t, web, cart)
	path := filepath.Join(n.wine.Prefix(), "drive_c", "ProgramData", "kube-proxy", "hns-state.json")
	n.start(t)
	n.awaitProgrammed(t, web, cart)
	n.stop(t)
	for text, words := range map[string]string{
		`{"version":1,"node`: "The state file is damaged",
		`{"version":1,"node":"node-z","loadBalancers":{},"endpoints":{}}`: `The state file is of node "node-z", not of "node-a"`,
		`{"version":99}`: "The state file has version 99",
	} {
		kit.WriteFile(t, path, text)
		before := n.hns.Calls()
		n.start(t)
		n.await(t, words, func() bool { return has(n.process.Log(), words) })
		n.checkIdle(t, words)
		calls := n.hns.Calls().Sub(before)
		kit.Check(t, calls.Writes("") == 0, "%s: %s, want no call that changes something", words, calls)
		n.stop(t)
	}
	n.clean(t)
}

// TestRenderKnowsTheNode passes the output of hns-state to render: it prints no changes
// for a node in the desired state, and names what is missing.
func TestRenderKnowsTheNode(t *testing.T) {
	n := newNode(t, hns.Options{})
	n.installForeign(t)
	web, cart, dns := shop()
	n.save(t, web, cart)
	n.start(t)
	n.awaitProgrammed(t, web, cart)
	n.stop(t)
	before := n.hns.Calls()
	code, text := n.run(t, "hns-state")
	calls := n.hns.Calls().Sub(before)
	kit.Check(t, code == 0 && calls.Writes("") == 0, "hns-state: exit code %d, %s\n%s", code, calls, text)
	path := filepath.Join(t.TempDir(), "state.json")
	kit.WriteFile(t, path, text)
	render := []string{"render", "--proxy-mode=kernelspace", "--hostname-override=node-a", "--manifests=" + wine.File(n.dir), "--hns-state=" + wine.File(path)}
	var output string
	if code, output = n.run(t, render...); code != 0 || strings.Contains(output, "\n+ ") || strings.Contains(output, "\n- ") || !has(output, "tcp 10.96.0.10:80") {
		t.Errorf("render on a node that is as it should be: exit code %d\n%s", code, output)
	}
	n.save(t, dns)
	n.remove(t, cart)
	if code, output = n.run(t, render...); code != 0 || !has(output, "+ loadbalancer tcp 10.96.0.30:80", "- loadbalancer tcp 10.96.0.20:80") || strings.Contains(output, "172.30.0.1") {
		t.Errorf("render of a change: exit code %d\n%s", code, output)
	}
}

// TestInitOnly selects the network and reserves the source VIP, and exits.
func TestInitOnly(t *testing.T) {
	n := newNode(t, hns.Options{})
	// The Node is unknown without an API server.
	args := []string{"--init-only", "--hostname-override=node-a", "--bind-address=" + n.Node.IPv4.String()}
	if code, output := n.run(t, append(args, "--dry-run")...); code != 0 || !has(output, "+ endpoint kube-proxy-source-vip") {
		t.Errorf("dry run: exit code %d\n%s", code, output)
	}
	for range 2 { // the second time everything exists
		code, output := n.run(t, args...)
		kit.Check(t, code == 0 && has(output, "(Overlay) is for Services", "Source VIP: "),
			"exit code %d\n%s", code, output)
	}
	made := n.hns.Calls()
	kit.Check(t, made.Writes("") == 1 && made.Writes(hns.Endpoint) == 1, "%s, want one endpoint made", made)
}

// TestOtherSystemsModes checks that the modes of Linux are refused.
func TestOtherSystemsModes(t *testing.T) {
	n := newNode(t, hns.Options{})
	for _, mode := range []string{"iptables", "ipvs", "nftables", "userspace"} {
		code, output := n.run(t, "--proxy-mode="+mode, "--manifests="+wine.File(n.dir))
		kit.Check(t, code != 0 && has(output, "--proxy-mode", mode, "kernelspace"),
			"%s: exit code %d\n%s", mode, code, output)
	}
}

// TestHangingHNS lets a call to HNS hang. Health and log report it, a stop waits for the
// call for a limited time, and the next process continues from there.
func TestHangingHNS(t *testing.T) {
	n := newNode(t, hns.Options{})
	web, cart, _ := shop()
	n.save(t, web)
	n.start(t)
	n.awaitProgrammed(t, web)
	n.hns.Delay("HcnCreateLoadBalancer", 10*time.Minute)
	n.save(t, cart)
	n.await(t, "the call in health", func() bool {
		return has(n.fetch(t, "/services"), "HNS has not answered for 10s (create load balancer tcp ", "Restart-Service hns")
	})
	n.await(t, "the call in the log", func() bool { return has(n.process.Log(), "Warning: HNS has not answered for 10s") })
	n.stop(t)
	log := n.process.Log()
	kit.Check(t, has(log, "HNS has not answered", "Stopped; the rules stay in force"), "log:\n%s", log)
	n.hns.ClearFaults()
	n.start(t)
	n.awaitProgrammed(t, web, cart)
	n.checkIdle(t, "after HNS hung")
	n.stop(t)
}

// TestLongRound has a slow HNS and many changes: the proxy is not healthy yet, but live,
// as it makes progress.
func TestLongRound(t *testing.T) {
	n := newNode(t, hns.Options{})
	var apps []app
	for i := range 30 {
		apps = append(apps, app{fmt.Sprintf("app-%d", i), 100 + i, []string{"10.244.1.11"}})
	}
	n.save(t, apps...)
	n.hns.Delay("HcnCreateLoadBalancer", 150*time.Millisecond)
	n.start(t)
	n.await(t, "a long round", func() bool {
		page, err := program.Fetch(t.Context(), n.Node, program.HealthAddr, "/livez")
		return err == nil && page.Status == http.StatusOK && has(string(page.Body), `"reason":"nothing was ever programmed","busy":true`)
	})
	if got := n.health(t); got.Status != http.StatusServiceUnavailable {
		t.Errorf("in the middle of the first round, health is %d: %s", got.Status, got.Body)
	}
	n.awaitProgrammed(t, apps...)
	n.stop(t)
}

// TestDynamicPorts has more Services than the default number of dynamic ports on Windows
// can serve without direct server return. HNS returns the same code as for ports in use
// by programs. The proxy reports the shortage and the remedy, which works. See
// https://learn.microsoft.com/troubleshoot/windows-server/networking/default-dynamic-port-range-tcpip-chang
func TestDynamicPorts(t *testing.T) {
	const usual, block, more = 16384, 64, 4
	n := newNode(t, hns.Options{})
	n.hns.LimitPorts(usual)
	var all []app
	for i := range usual/block + more {
		all = append(all, app{name: fmt.Sprintf("app-%d", i), number: 1 + i, pods: []string{"10.244.2.11"}})
	}
	n.write(t, "all.yaml", manyAppsManifest(t, all))
	n.start(t)
	n.awaitLoadBalancers(t, len(all)-more)
	n.await(t, "the condition", func() bool {
		return has(string(n.health(t).Body), "4 load balancers over IPv4 and TCP are missing", "64 dynamic ports", "--enable-dsr")
	})
	_, status := n.run(t, "status")
	if !has(status, "dynamic-ports", "load balancers over IPv4 and TCP are missing", "--enable-dsr", "netsh int ipv4 set dynamicportrange tcp") {
		t.Errorf("status says\n%s", status)
	}
	if body := n.fetch(t, "/services"); !has(body, "no 64 dynamic TCP ports of the node are left") || strings.Contains(body, "listens there") {
		t.Errorf("/services does not say why")
	}
	// The slower a listing is, the longer is the pause until the next one.
	before := n.hns.Calls()
	for i := range 2 {
		kit.Until(t, fmt.Sprintf("resync %d", i+1), func() bool { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) > i })
	}
	calls := n.hns.Calls().Sub(before)
	kit.Check(t, calls["HcnCreateLoadBalancer"] <= more, "HNS is asked in vain again and again: %s", calls)
	n.stop(t)
	n.start(t, "--enable-dsr")
	n.awaitLoadBalancers(t, len(all))
	n.await(t, "the end of the condition", func() bool { return !strings.Contains(string(n.health(t).Body), "dynamic ports") })
	n.stop(t)
}

// TestRefusedCreates makes HNS refuse new load balancers while the endpoints of a Service
// change, on a version that cannot modify load balancers. The Service keeps all of its
// load balancers but one, and its page says why.
func TestRefusedCreates(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 13, Minor: 3}})
	web, cart, _ := shop()
	n.save(t, web, cart)
	n.start(t)
	n.awaitProgrammed(t, web, cart)
	kit.Must(t, n.hns.Inject(hns.Fault{Function: "HcnCreateLoadBalancer", Code: hns.InvalidParameter}))
	less := web.on(web.pods[0])
	before := n.hns.Calls()
	n.save(t, less)
	kit.Until(t, "four refused load balancers", func() bool {
		if have := len(n.programmed()); have < 3 {
			t.Fatalf("%d of 4 load balancers left: %v", have, n.programmed())
		}
		return n.hns.Calls().Sub(before)["HcnCreateLoadBalancer"] >= 4
	})
	n.await(t, "the reason", func() bool {
		body := n.fetch(t, "/services")
		return strings.Contains(body, "what was there before is refused as well") || strings.Contains(body, "as before, and is tried again in a while")
	})
	n.hns.ClearFaults()
	n.awaitProgrammed(t, less, cart)
	n.stop(t)
}

// mixed is a cluster with a Windows and a Linux node.
type mixed struct {
	*node
	*cluster.Cluster
	kernel *program.Kernel // of the Linux node
}

func newMixed(t *testing.T) *mixed {
	t.Helper()
	m := &mixed{node: newNode(t, hns.Options{})}
	m.Cluster = cluster.Start(t, cluster.Options{Host: m.Host("control")})
	m.idle = []string{"10.96.0.1"} // the API server's own
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	m.set(t, namespace)
	for _, n := range nodes() {
		m.set(t, n)
	}
	m.kernel = program.NewKernel(t, m.Other, 0)
	return m
}

func (m *mixed) set(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	kit.Must(t, m.Set(t.Context(), objects...))
}

func (m *mixed) publish(t *testing.T, apps ...app) {
	t.Helper()
	for _, a := range apps {
		m.set(t, a.service())
		m.set(t, a.slice())
	}
}

// awaitProgrammed waits until both nodes have programmed apps.
func (m *mixed) awaitProgrammed(t *testing.T, apps ...app) {
	t.Helper()
	m.node.awaitProgrammed(t, apps...)
	m.kernel.AwaitProgrammed(t, m.snapshot(t, apps))
}

// snapshot is what the Linux node should forward.
func (m *mixed) snapshot(t *testing.T, apps []app) *service.Snapshot {
	t.Helper()
	n := &node{dir: t.TempDir()}
	for _, o := range nodes() {
		n.write(t, o.Name+".yaml", program.Manifest[any](t, o))
	}
	n.save(t, apps...)
	own, err := m.Client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	kit.Must(t, err)
	own.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	n.write(t, "own.yaml", program.Manifest[any](t, own))
	ranges, err := m.Client.NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	kit.Need(t, err == nil && len(ranges.Items) != 0, "%d ServiceCIDRs, %v", len(ranges.Items), err)
	for _, r := range ranges.Items {
		r.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}
		n.write(t, r.Name+"-range.yaml", program.Manifest[any](t, r))
	}
	o := track.Options{NodeName: netlab.OtherName, NodePortsPrimary: true}
	o.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	tracker := track.New(o)
	files := source.Manifests{Paths: []string{n.dir}, NodeName: netlab.OtherName}
	kit.Must(t, files.Load(t.Context(), tracker))
	return tracker.Latest()
}

// TestMixedCluster programs the same Services on a Windows and a Linux node, from a real
// API server, through changes and outages.
func TestMixedCluster(t *testing.T) {
	m := newMixed(t)
	kubeconfig, err := m.Kubeconfig(cluster.Login{})
	kit.Must(t, err)
	web, cart, dns := shop()
	m.publish(t, web, cart)
	m.start(t, "--kubeconfig="+wine.File(kubeconfig))
	linux := kubeProxy.Start(t, m.Other, "--kubeconfig="+kubeconfig, "--hostname-override="+netlab.OtherName, "--iptables-min-sync-period=10ms", "--cluster-cidr=10.244.0.0/16")
	m.awaitProgrammed(t, web, cart)

	m.publish(t, dns)
	less := web.on(web.pods[1:]...)
	m.publish(t, less)
	m.awaitProgrammed(t, less, cart, dns)

	m.hns.Restart(hns.Everything)
	kit.Must(t, m.Delete(t.Context(), cart.service(), cart.slice()))
	m.awaitProgrammed(t, less, dns)

	kit.Must(t, m.APIServer.Restart(t.Context()))
	m.publish(t, web)
	m.awaitProgrammed(t, web, dns)

	m.kill(t)
	m.publish(t, cart)
	kit.Must(t, m.Delete(t.Context(), dns.service(), dns.slice()))
	m.start(t, "--kubeconfig="+wine.File(kubeconfig))
	m.awaitProgrammed(t, web, cart)
	m.checkIdle(t, "at the end")
	m.stop(t)
	linux.Stop(t)
}

// serviceCount is how many Services TestManyServices has. Users have reported that 2000
// Services, with 5000 remote endpoints, took other proxies 22 minutes to 3 hours.
var serviceCount = flag.Int("services", 40, "how many Services TestManyServices has")

// callTakes is how long HNS takes for each call in TestManyServices.
const callTakes = 20 * time.Millisecond

// TestManyServices programs many Services on an empty and slow HNS: no object is created
// twice, and a kind is listed once and not for each object.
func TestManyServices(t *testing.T) {
	n := newNode(t, hns.Options{})
	network := overlay("vxlan0")
	network.Routes[0].Prefix = netip.MustParsePrefix("10.244.128.0/17")
	n.install(t, networkCase{networks: []hns.NetworkConfig{network}})
	services, endpoints := manyApps(*serviceCount)
	n.write(t, "all.yaml", manyAppsManifest(t, services[1:]))
	n.write(t, "first.yaml", manyAppsManifest(t, services[:1]))
	n.hns.Delay("Hcn*", callTakes)
	begin := time.Now()
	n.start(t, "--iptables-sync-period=1h")
	n.awaitLoadBalancers(t, len(services))
	calls := n.hns.Calls()
	t.Logf("%d Services, %d endpoints elsewhere, %v for each call: %v; %s", len(services), endpoints, callTakes, time.Since(begin).Round(time.Second), calls)
	// On an overlay a ClusterIP is an endpoint, too, and so is the source VIP.
	if most := endpoints + 2*len(services) + 1; calls.Writes("") > most {
		t.Errorf("%d calls that change something, for %d objects", calls.Writes(""), most)
	}
	n.removeEndpoint(t, services[0])
	n.stop(t)
	for _, kind := range []hns.Kind{hns.LoadBalancer, hns.Endpoint} {
		lists := n.hns.Calls().Lists(kind)
		kit.Check(t, lists == 1, "%s listed %d times, want once", kind, lists)
	}
}

// awaitLoadBalancers waits until there are that many load balancers. It has no time limit
// while their number grows.
func (n *node) awaitLoadBalancers(t *testing.T, all int) {
	t.Helper()
	for at := 0; at < all; {
		before := n.hns.Calls()
		kit.Until(t, fmt.Sprintf("more than %d of %d load balancers", at, all), func() bool {
			return n.hns.Calls().Sub(before).Writes("") > 100 || len(n.hns.Objects(hns.LoadBalancer)) == all
		})
		at = len(n.hns.Objects(hns.LoadBalancer))
	}
}

// removeEndpoint removes one endpoint of many from a.
func (n *node) removeEndpoint(t *testing.T, a app) {
	t.Helper()
	before := n.hns.Calls()
	n.write(t, "first.yaml", manyAppsManifest(t, []app{a.on(a.pods[1:]...)}))
	var leads int
	kit.Until(t, "one endpoint less", func() bool {
		for _, lb := range n.hns.Objects(hns.LoadBalancer) {
			if lb.VIPs()[0] == "10.96.0.1" {
				leads = len(lb.Endpoints())
			}
		}
		return leads == len(a.pods)-1
	})
	if calls := n.hns.Calls().Sub(before); calls.Writes("") > 4 {
		t.Errorf("one endpoint of %d left: %s, want at most 4 calls that change something", len(a.pods), calls)
	}
}

// manyApps returns a number of Services and of the endpoints that they share: two and a
// half for each, and each has three. The first has a hundred.
func manyApps(services int) (all []app, endpoints int) {
	pool := max(100, services*5/2)
	for i := range services {
		a := app{name: fmt.Sprintf("app-%d", i), number: 1 + i}
		several := 3
		if i == 0 {
			several = 100
		}
		for k := range several {
			a.pods = append(a.pods, remoteIP((i*5/2+k)%pool))
		}
		all = append(all, a)
	}
	used := map[string]bool{}
	for _, a := range all {
		for _, pod := range a.pods {
			used[pod] = true
		}
	}
	return all, len(used)
}

// manyAppsManifest has apps with ClusterIPs only, of which there may be many.
func manyAppsManifest(t *testing.T, apps []app) []byte {
	t.Helper()
	var objects []any
	for _, a := range apps {
		s, vip := a.service(), netip.AddrFrom4([4]byte{10, 96, byte(a.number / 250), byte(a.number % 250)}).String()
		s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, vip, []string{vip}
		s.Spec.Ports[0].NodePort = 0
		objects = append(objects, s, a.slice())
	}
	return program.Manifest[any](t, objects...)
}

// remoteIP is the address of a pod on the other node.
func remoteIP(i int) string {
	return netip.AddrFrom4([4]byte{10, 244, byte(128 + i/250), byte(1 + i%250)}).String()
}
