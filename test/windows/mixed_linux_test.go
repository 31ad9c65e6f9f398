// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"flag"
	"fmt"
	"net/netip"
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
		if lists := n.hns.Calls().Lists(kind); lists != 1 {
			t.Errorf("%s listed %d times, want once", kind, lists)
		}
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
