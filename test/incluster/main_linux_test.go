// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/cluster"
	"kubeproxy/test/judge"
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
		if _, err := h.Echo("", target); err != nil {
			t.Fatal(err)
		}
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
		if out, err := program.Run(t, w.Node, kubeProxy.Command("--cleanup")); err != nil {
			t.Errorf("clean up: %v\n%s", err, out)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	parts, err := w.api.Client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := w.api.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := w.api.Client.NetworkingV1().ServiceCIDRs().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := w.api.Set(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
}

// remove deletes objects.
func (w *fixture) remove(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	if err := w.api.Delete(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
}

// clear deletes all objects but the Service of the API server itself, and restores the
// Node.
func (w *fixture) clear(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if err := w.api.Client.DiscoveryV1().EndpointSlices(space).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	services, err := w.api.Client.CoreV1().Services(space).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
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
