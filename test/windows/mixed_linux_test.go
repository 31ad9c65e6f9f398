// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
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
	if err := m.Set(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	own.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	n.write(t, "own.yaml", program.Manifest[any](t, own))
	ranges, err := m.Client.NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(ranges.Items) == 0 {
		t.Fatalf("%d ServiceCIDRs, %v", len(ranges.Items), err)
	}
	for _, r := range ranges.Items {
		r.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}
		n.write(t, r.Name+"-range.yaml", program.Manifest[any](t, r))
	}
	o := track.Options{NodeName: netlab.OtherName, NodePortsPrimary: true}
	o.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	tracker := track.New(o)
	files := source.Manifests{Paths: []string{n.dir}, NodeName: netlab.OtherName}
	if err := files.Load(t.Context(), tracker); err != nil {
		t.Fatalf("the test's own manifests: %v", err)
	}
	return tracker.Latest()
}

// TestMixedCluster programs the same Services on a Windows and a Linux node, from a real
// API server, through changes and outages.
func TestMixedCluster(t *testing.T) {
	m := newMixed(t)
	kubeconfig, err := m.Kubeconfig(cluster.Login{})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := m.Delete(t.Context(), cart.service(), cart.slice()); err != nil {
		t.Fatal(err)
	}
	m.awaitProgrammed(t, less, dns)

	if err := m.APIServer.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.publish(t, web)
	m.awaitProgrammed(t, web, dns)

	m.kill(t)
	m.publish(t, cart)
	if err := m.Delete(t.Context(), dns.service(), dns.slice()); err != nil {
		t.Fatal(err)
	}
	m.start(t, "--kubeconfig="+wine.File(kubeconfig))
	m.awaitProgrammed(t, web, cart)
	m.checkIdle(t, "at the end")
	m.stop(t)
	linux.Stop(t)
}
