// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
	"kubeproxy/test/wine"
)

// node is a Windows node: node-a of a lab, with an overlay network that CNI created, and
// manifests.
type node struct {
	*netlab.Lab
	wine    *wine.Wine
	hns     *hns.Server
	dir     string // of manifests
	process *wine.Process
	foreign map[string]string // foreign load balancers, in the form of programmed
	idle    []string          // ClusterIPs without endpoints
	env     []string          // more variables of the proxy
}

// locals are the pods for which CNI has created endpoints; others of the subnet follow
// later.
var locals = []string{"10.244.1.11", "10.244.1.12"}

func newNode(t *testing.T, o hns.Options) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), foreign: map[string]string{}}
	n.Lab = netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	l, err := n.Node.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.hns = hns.StartAt(t, l, o)
	n.wine = wine.Start(t, wine.Options{Host: n.Node, Env: []string{"HNS_SIM_ADDR=" + n.hns.Addr}})
	n.installNetwork(t)
	for _, object := range nodes() {
		n.write(t, object.Name+".yaml", program.Manifest[any](t, object))
	}
	return n
}

func (n *node) installNetwork(t *testing.T) {
	t.Helper()
	_, err := n.hns.AddNetwork(hns.NetworkConfig{
		Name: "vxlan0", Type: "Overlay", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Routes: []hns.Route{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: n.Other.IPv4, MAC: "00-15-5D-00-00-02"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range locals {
		n.installPod(t, ip)
	}
}

func (n *node) installPod(t *testing.T, ip string) string {
	t.Helper()
	id, err := n.hns.AddPod("vxlan0", "pod-"+ip, netip.MustParseAddr(ip))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// installForeign creates a remote endpoint and a load balancer of another program.
func (n *node) installForeign(t *testing.T) {
	t.Helper()
	e, err := n.hns.AddRemote("vxlan0", netip.MustParseAddr("10.244.2.99"), n.Other.IPv4, "02-11-0a-f4-02-63")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.hns.AddLoadBalancer(hns.Document{
		"HostComputeEndpoints": []any{e}, "FrontendVIPs": []any{"172.30.0.1"},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 1}},
	}); err != nil {
		t.Fatal(err)
	}
	n.foreign["6 172.30.0.1:1"] = "1 on 10.244.2.99"
}

// write replaces a file of the manifests in one step.
func (n *node) write(t *testing.T, name string, text []byte) {
	t.Helper()
	next := filepath.Join(n.dir, name+".next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(n.dir, name)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) save(t *testing.T, apps ...app) {
	t.Helper()
	for _, a := range apps {
		n.write(t, a.name+".yaml", program.Manifest[any](t, a.service(), a.slice()))
	}
}

func (n *node) remove(t *testing.T, a app) {
	t.Helper()
	if err := os.Remove(filepath.Join(n.dir, a.name+".yaml")); err != nil {
		t.Fatal(err)
	}
}

// start starts the proxy, with the manifests unless flags name a kubeconfig.
func (n *node) start(t *testing.T, flags ...string) {
	t.Helper()
	program, err := exe()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--hostname-override=" + netlab.NodeName, "--iptables-min-sync-period=10ms", "--iptables-sync-period=500ms", "-v=2",
		"--cluster-cidr=10.244.0.0/16",
	}
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--kubeconfig") }) {
		args = append(args, "--manifests="+wine.File(n.dir))
	}
	if n.process, err = n.wine.Start(wine.Program{Path: program, Args: append(args, flags...), Env: n.env}); err != nil {
		t.Fatal(err)
	}
}

// stop ends the proxy as Ctrl+C does.
func (n *node) stop(t *testing.T) {
	t.Helper()
	if err := n.process.Interrupt(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.process.Ended():
	case <-time.After(kit.Limit):
		t.Fatal("the proxy does not stop")
	}
	if code, err := n.process.Wait(t.Context()); err != nil || code != 0 {
		t.Errorf("the proxy ended with %d, %v", code, err)
	}
}

// kill ends the proxy as a crash does, and returns when HNS has finished the current
// call.
func (n *node) kill(t *testing.T) {
	t.Helper()
	n.process.Kill()
	n.hns.DropConnections() // Wine may keep the sockets of a killed program open
	kit.Until(t, "the last call is over", func() bool { return n.hns.Connections() == 0 })
}

// programmed returns the load balancers of HNS by their frontends.
func (n *node) programmed() map[string]string {
	ips := map[string]string{}
	for _, e := range n.hns.Objects(hns.Endpoint) {
		for _, ip := range e.IPs() {
			ips[e.ID()] = ip.String()
		}
	}
	have := map[string]string{}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		vip := strings.Join(lb.VIPs(), ",")
		if vip == "" {
			vip = "node"
		}
		var leads []string
		for _, id := range lb.Endpoints() {
			leads = append(leads, ips[id])
		}
		slices.Sort(leads)
		for _, p := range lb.Ports() {
			have[fmt.Sprintf("%v %s:%v", p["Protocol"], vip, p["ExternalPort"])] = fmt.Sprintf("%v on %s", p["InternalPort"], strings.Join(leads, " "))
		}
	}
	return have
}

// awaitProgrammed waits until HNS has exactly the objects of apps and the foreign ones.
func (n *node) awaitProgrammed(t *testing.T, apps ...app) {
	t.Helper()
	want := maps.Clone(n.foreign)
	for _, a := range apps {
		a.adds(want)
	}
	for deadline := time.Now().Add(kit.Limit); ; time.Sleep(20 * time.Millisecond) {
		diff := cmp.Diff(want, n.programmed())
		if diff == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("load balancers (-want +got):\n%s", diff)
		}
	}
	n.awaitNoLeftovers(t)
}

// awaitIdle waits until the proxy is idle: it may have lost the answer to a call that
// succeeded, and try it again.
func (n *node) awaitIdle(t *testing.T) {
	t.Helper()
	before := n.hns.Calls()
	kit.Until(t, "two resyncs without a change", func() bool {
		calls := n.hns.Calls().Sub(before)
		if calls.Writes("") > 0 {
			before = n.hns.Calls()
		}
		return calls.Writes("") == 0 && calls.Lists(hns.LoadBalancer) >= 3
	})
}

// awaitNoLeftovers waits until there are no leftovers.
func (n *node) awaitNoLeftovers(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(kit.Limit); ; time.Sleep(20 * time.Millisecond) {
		litter := n.leftovers()
		if litter == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left over: %s", litter)
		}
	}
}

// leftovers names unused objects of HNS. Remote endpoints with addresses of Services are
// in use.
func (n *node) leftovers() string {
	vips := map[string]bool{}
	for _, vip := range n.idle {
		vips[vip] = true
	}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		for _, vip := range lb.VIPs() {
			vips[vip] = true
		}
	}
	lines := n.hns.DanglingReferences()
	for _, e := range n.hns.Unused() {
		if !slices.ContainsFunc(e.IPs(), func(ip netip.Addr) bool { return vips[ip.String()] }) {
			lines = append(lines, fmt.Sprintf("endpoint %s with %v is not in use", e.ID(), e.IPs()))
		}
	}
	return strings.Join(lines, "\n")
}

// checkIdle waits until two resyncs have passed and fails the test if the proxy changed
// anything meanwhile.
func (n *node) checkIdle(t *testing.T, why string) {
	t.Helper()
	before := n.hns.Calls()
	lists := func() int { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) }
	kit.Until(t, "two resyncs", func() bool { return lists() >= 3 })
	if n := n.hns.Calls().Sub(before); n.Writes("") != 0 {
		t.Errorf("%s: calls that change something where nothing is to be done: %s", why, n)
	}
}
