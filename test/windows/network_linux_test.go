// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
	"kubeproxy/test/wine"
)

// networkCase is the state of HNS at the start of a proxy, with the expected result.
type networkCase struct {
	// networks are those that CNI has created, pods and remotes the endpoints in them.
	networks []hns.NetworkConfig
	pods     map[string]string // address to network
	remotes  map[string]string // the same for remote endpoints
	refuse   hns.Code          // the answer of HNS to every call
	flags    []string
	env      string
	// ready is whether the proxy programs Services; if not, health contains the reason.
	ready   bool
	wantLog []string // in the log if it is ready, else in health, too
}

func overlay(name string) hns.NetworkConfig {
	return hns.NetworkConfig{Name: name, Type: "Overlay", Subnets: []netip.Prefix{podSubnet}, Routes: []hns.Route{{
		Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: netip.MustParseAddr("192.0.2.11"), MAC: "00-15-5D-00-00-02",
	}}}
}

func bridge(name, kind string) hns.NetworkConfig {
	return hns.NetworkConfig{Name: name, Type: kind, Subnets: []netip.Prefix{netip.MustParsePrefix("10.245.1.0/24")}}
}

var podSubnet = netip.MustParsePrefix("10.244.1.0/24")

func networkCases() map[string]networkCase {
	vxlan, other := []hns.NetworkConfig{overlay("vxlan0")}, bridge("cbr0", "L2Bridge")
	nat := bridge("nat", "NAT")
	tunnel := hns.NetworkConfig{Name: "azure", Type: "L2Tunnel", Subnets: []netip.Prefix{netip.MustParsePrefix("10.246.1.0/24")}}
	both := []hns.NetworkConfig{overlay("vxlan0"), other, nat}
	pod := map[string]string{"10.244.1.11": "vxlan0"}
	return map[string]networkCase{
		"the only one": {networks: []hns.NetworkConfig{overlay("vxlan0"), nat}, ready: true, wantLog: []string{
			`Network \"vxlan0\" (Overlay) is for Services: it has the podCIDR of the Node`, `Network \"nat\" is not for Services: its type is NAT`,
			"Source VIP: reserved 10.244.1.", "kube-proxy-source-vip",
		}},
		"the one of pods":                 {networks: both, pods: pod, ready: true, wantLog: []string{`(Overlay) is for Services: endpoints of pods are in it`, `Network \"cbr0\" is not for Services: no pod uses it`}},
		"KUBE_NETWORK":                    {networks: both, env: "vxlan0", ready: true, wantLog: []string{"KUBE_NETWORK names it"}},
		"named":                           {networks: both, env: "cbr0", flags: []string{"--network-name=VXLAN0"}, ready: true, wantLog: []string{"--network-name or winkernel.networkName names it"}},
		"two that could be":               {networks: []hns.NetworkConfig{other, tunnel}, wantLog: []string{`"azure" (L2Tunnel, 0 endpoints of pods), "cbr0" (L2Bridge, 0 endpoints of pods)`, "--network-name"}},
		"none yet":                        {wantLog: []string{"waiting for a network", "no network at all", "--network-name"}},
		"only one of Docker's":            {networks: []hns.NetworkConfig{nat}, wantLog: []string{"waiting for a network", `"nat" (NAT)`}},
		"unknown":                         {networks: both, flags: []string{"--network-name=azure"}, wantLog: []string{`"azure"`, "--network-name", `"cbr0" (L2Bridge)`, `"vxlan0" (Overlay)`}},
		"unsupported":                     {networks: both, flags: []string{"--network-name=nat"}, wantLog: []string{`"nat"`, "is of type NAT: want Overlay, L2Bridge or L2Tunnel"}},
		"a given source VIP":              {networks: vxlan, flags: []string{"--source-vip=10.244.1.77"}, ready: true, wantLog: []string{"Source VIP: reserved 10.244.1.77"}},
		"one outside":                     {networks: vxlan, flags: []string{"--source-vip=10.9.0.1"}, wantLog: []string{"--source-vip", "10.9.0.1 is in no subnet", "10.244.1.0/24"}},
		"the gateway":                     {networks: vxlan, flags: []string{"--source-vip=10.244.1.1"}, wantLog: []string{"10.244.1.1 is reserved", "or leave it out"}},
		"the broadcast":                   {networks: vxlan, flags: []string{"--source-vip=10.244.1.255"}, wantLog: []string{"10.244.1.255 is reserved", "or leave it out"}},
		"a pod's":                         {networks: vxlan, pods: pod, flags: []string{"--source-vip=10.244.1.11"}, wantLog: []string{"10.244.1.11 is taken", "pod-10.244.1.11", "or leave it out"}},
		"of the wrong family":             {networks: vxlan, flags: []string{"--source-vip=fd00:10:244:1::77"}, wantLog: []string{"--source-vip", "fd00:10:244:1::77 is an IPv6 address: want an IPv4 address", "10.244.1.0/24"}},
		"the network's":                   {networks: vxlan, flags: []string{"--source-vip=10.244.1.0"}, wantLog: []string{"10.244.1.0 is reserved", "or leave it out"}},
		"a pod's elsewhere":               {networks: vxlan, remotes: map[string]string{"10.244.1.99": "vxlan0"}, flags: []string{"--source-vip=10.244.1.99"}, wantLog: []string{"10.244.1.99 is taken by remote endpoint", "or leave it out"}},
		"an unknown one, in KUBE_NETWORK": {networks: both, env: "azure", wantLog: []string{`network "azure", which the environment variable KUBE_NETWORK names`, `"vxlan0" (Overlay)`}},
		"access denied":                   {networks: vxlan, refuse: 0x80070005, wantLog: []string{"access is denied", "administrator"}},
		"HNS down":                        {networks: vxlan, refuse: hns.ServerUnavailable, wantLog: []string{"HNS is not running"}},
	}
}

// TestNetworkSelection starts the proxy on nodes of many kinds. If the network cannot be
// used, log and health contain the remedy.
func TestNetworkSelection(t *testing.T) {
	n := newNode(t, hns.Options{})
	web := app{"web", 10, []string{"10.244.2.11"}}
	n.save(t, web)
	for name, p := range networkCases() {
		t.Run(name, func(t *testing.T) {
			n.install(t, p)
			n.start(t, p.flags...)
			defer n.kill(t)
			if p.ready {
				n.awaitProgrammed(t, web)
				n.await(t, "health", func() bool { return n.health(t).Status == http.StatusOK })
			} else {
				n.await(t, "bad health with its reason", func() bool {
					return n.health(t).Status == http.StatusServiceUnavailable && has(n.fetch(t, "/services"), p.wantLog...)
				})
				if made := n.hns.Calls(); made.Writes("") != 0 {
					t.Errorf("calls that change something: %s", made)
				}
			}
			n.await(t, fmt.Sprintf("%q in the log", p.wantLog), func() bool { return has(n.process.Log(), p.wantLog...) })
		})
	}
}

// install resets HNS and creates the objects of p.
func (n *node) install(t *testing.T, p networkCase) {
	t.Helper()
	n.hns.Reset()
	n.env = nil
	if p.env != "" {
		n.env = []string{"KUBE_NETWORK=" + p.env}
	}
	if err := os.RemoveAll(filepath.Join(n.wine.Prefix(), "drive_c", "ProgramData", "kube-proxy")); err != nil {
		t.Fatal(err)
	}
	for _, network := range p.networks {
		if _, err := n.hns.AddNetwork(network); err != nil {
			t.Fatal(err)
		}
	}
	for ip, network := range p.pods {
		if _, err := n.hns.AddPod(network, "pod-"+ip, netip.MustParseAddr(ip)); err != nil {
			t.Fatal(err)
		}
	}
	for ip, network := range p.remotes {
		if _, err := n.hns.AddRemote(network, netip.MustParseAddr(ip), n.Other.IPv4, "02-11-00-00-00-01"); err != nil {
			t.Fatal(err)
		}
	}
	if p.refuse != hns.OK {
		if err := n.hns.Inject(hns.Fault{Function: "Hcn*", Code: p.refuse}); err != nil {
			t.Fatal(err)
		}
	}
}

// has returns whether text contains all of words, whether or not quotes are escaped.
func has(text string, words ...string) bool {
	text = strings.ReplaceAll(text, `\"`, `"`)
	for _, w := range words {
		if !strings.Contains(text, strings.ReplaceAll(w, `\"`, `"`)) {
			return false
		}
	}
	return true
}

// health is the proxy's health report; the zero Response while it does not answer.
func (n *node) health(t *testing.T) program.Response {
	t.Helper()
	page, err := program.Fetch(t.Context(), n.Node, program.HealthAddr, "/healthz")
	if err != nil {
		return program.Response{}
	}
	return page
}

// await polls, and prints health and the log if it fails.
func (n *node) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !kit.Soon(ok) {
		page := n.health(t)
		t.Fatalf("waited in vain for %s; health: %d %s\n%s", what, page.Status, page.Body, n.process.Tail())
	}
}

// TestNetworkComesLater starts the proxy before the network plugin.
func TestNetworkComesLater(t *testing.T) {
	n := newNode(t, hns.Options{})
	web := app{"web", 10, []string{"10.244.1.11", "10.244.2.11"}}
	n.save(t, web)
	n.install(t, networkCase{})
	n.start(t)
	n.await(t, "a reason in health", func() bool { return has(n.fetch(t, "/services"), "waiting for a network", `"waiting":true`) })
	if page, err := program.Fetch(t.Context(), n.Node, program.HealthAddr, "/livez"); err != nil || page.Status != http.StatusOK || n.health(t).Status != http.StatusServiceUnavailable {
		t.Errorf("/livez meanwhile: %v, %d, want 200, and /healthz 503", err, page.Status)
	}
	n.await(t, "metrics meanwhile", func() bool {
		page, err := program.Fetch(t.Context(), n.Node, program.MetricsAddr, "/metrics")
		return err == nil && page.Status == http.StatusOK
	})
	n.installNetwork(t)
	n.awaitProgrammed(t, web)
	n.await(t, "good health", func() bool { return n.health(t).Status == http.StatusOK })
	n.stop(t)
}

// TestNoHNS runs the proxy on a system without HNS's libraries: the container feature is
// missing.
func TestNoHNS(t *testing.T) {
	n := newNode(t, hns.Options{})
	for _, dll := range []string{"computenetwork.dll", "vmcompute.dll"} {
		if err := os.Remove(filepath.Join(n.wine.Prefix(), "drive_c", "windows", "system32", dll)); err != nil {
			t.Fatal(err)
		}
	}
	n.start(t)
	n.await(t, "a remedy in health", func() bool { return has(n.fetch(t, "/services"), "HNS is not installed", "Containers") })
	path, err := exe()
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--cleanup --hostname-override=node-a", "--init-only --hostname-override=node-a", "hns-state"} {
		code, output, err := n.wine.Run(t.Context(), wine.Program{Path: path, Args: strings.Fields(flag)})
		if err != nil || code != 1 || !has(output, "HNS is not installed", "Containers") || strings.Contains(output, "goroutine") {
			t.Errorf("%s: exit code %d, %v\n%s", flag, code, err, output)
		}
	}
	n.stop(t)
}

// TestIncompleteHNS has libraries that lack functions, as on editions of Windows without
// containers, where hcsshim panics.
func TestIncompleteHNS(t *testing.T) {
	n := newNode(t, hns.Options{})
	system := filepath.Join(n.wine.Prefix(), "drive_c", "windows", "system32")
	other, err := os.ReadFile(filepath.Join(system, "bcryptprimitives.dll")) // which has none of them
	if err != nil {
		t.Fatal(err)
	}
	for _, dll := range []string{"computenetwork.dll", "vmcompute.dll"} {
		// The file may be shared with other prefixes, so it is replaced instead of
		// overwritten.
		path := filepath.Join(system, dll)
		if err := errors.Join(os.Remove(path), os.WriteFile(path, other, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	n.start(t)
	n.await(t, "a remedy in health", func() bool { return has(n.fetch(t, "/services"), "HNS is not installed, or is too old", "Containers") })
	if code, output := n.run(t, "--cleanup", "--hostname-override=node-a"); code != 1 || !has(output, "too old", "Containers") || strings.Contains(output, "goroutine") {
		t.Errorf("--cleanup: exit code %d\n%s", code, output)
	}
	n.stop(t)
}
