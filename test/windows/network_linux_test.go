// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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
				made := n.hns.Calls()
				kit.Check(t, made.Writes("") == 0, "calls that change something: %s", made)
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
	kit.Must(t, os.RemoveAll(filepath.Join(n.wine.Prefix(), "drive_c", "ProgramData", "kube-proxy")))
	for _, network := range p.networks {
		_, err := n.hns.AddNetwork(network)
		kit.Must(t, err)
	}
	for ip, network := range p.pods {
		_, err := n.hns.AddPod(network, "pod-"+ip, netip.MustParseAddr(ip))
		kit.Must(t, err)
	}
	for ip, network := range p.remotes {
		_, err := n.hns.AddRemote(network, netip.MustParseAddr(ip), n.Other.IPv4, "02-11-00-00-00-01")
		kit.Must(t, err)
	}
	if p.refuse != hns.OK {
		kit.Must(t, n.hns.Inject(hns.Fault{Function: "Hcn*", Code: p.refuse}))
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
		kit.Must(t, os.Remove(filepath.Join(n.wine.Prefix(), "drive_c", "windows", "system32", dll)))
	}
	n.start(t)
	n.await(t, "a remedy in health", func() bool { return has(n.fetch(t, "/services"), "HNS is not installed", "Containers") })
	path, err := exe()
	kit.Must(t, err)
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
	kit.Must(t, err)
	for _, dll := range []string{"computenetwork.dll", "vmcompute.dll"} {
		// The file may be shared with other prefixes, so it is replaced instead of
		// overwritten.
		path := filepath.Join(system, dll)
		kit.Must(t, errors.Join(os.Remove(path), os.WriteFile(path, other, 0o600)))
	}
	n.start(t)
	n.await(t, "a remedy in health", func() bool { return has(n.fetch(t, "/services"), "HNS is not installed, or is too old", "Containers") })
	if code, output := n.run(t, "--cleanup", "--hostname-override=node-a"); code != 1 || !has(output, "too old", "Containers") || strings.Contains(output, "goroutine") {
		t.Errorf("--cleanup: exit code %d\n%s", code, output)
	}
	n.stop(t)
}

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

// kind is a node whose network is of one kind, and how the proxy runs there.
type kind struct {
	network hns.NetworkConfig
	version hns.Version
	flags   []string
}

func kinds() map[string]kind {
	four, six := podSubnet, netip.MustParsePrefix("fd00:10:244:1::/64")
	forward := []string{"--enable-dsr", "--forward-healthcheck-vip", "--root-hnsendpoint-name=cbr0"}
	return map[string]kind{
		"overlay":      {overlay("vxlan0"), hns.Version{Major: 13, Minor: 3}, []string{"--source-vip=10.244.1.77"}},
		"overlay-2019": {overlay("vxlan0"), hns.Version{Major: 9, Minor: 5}, []string{"--enable-dsr"}},
		"l2bridge":     {hns.NetworkConfig{Name: "cbr0", Type: "L2Bridge", Subnets: []netip.Prefix{four, six}}, hns.Version{Major: 15, Minor: 5}, forward},
		"l2tunnel":     {hns.NetworkConfig{Name: "azure", Type: "L2Tunnel", Subnets: []netip.Prefix{four}}, hns.Version{Major: 13, Minor: 3}, forward[:1]},
	}
}

// TestNetworkTypes programs the same Services on networks of each kind. The resulting
// objects of HNS are in testdata in a readable form.
func TestNetworkTypes(t *testing.T) {
	shop := kit.ReadFile(t, "testdata/shop.yaml")
	for name, k := range kinds() {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, hns.Options{Version: k.version})
			n.install(t, networkCase{networks: []hns.NetworkConfig{k.network}})
			n.installPods(t, k.network)
			n.write(t, "node-a.yaml", shop)
			n.start(t, k.flags...)
			n.await(t, "two resyncs", func() bool { return n.hns.Calls().Lists(hns.LoadBalancer) >= 4 })
			n.checkIdle(t, "once all is there")
			n.compare(t, "testdata/"+name+".txt")
			n.stop(t)
		})
	}
}

// installPods creates the endpoints of the node's pods, and the node's own.
func (n *node) installPods(t *testing.T, network hns.NetworkConfig) {
	t.Helper()
	pods := map[string][]netip.Addr{
		"web":  {netip.MustParseAddr("10.244.1.11")},
		"live": {netip.MustParseAddr("10.244.1.12")},
		"cbr0": {netip.MustParseAddr("10.244.1.2")},
	}
	if len(network.Subnets) > 1 {
		pods["web"] = append(pods["web"], netip.MustParseAddr("fd00:10:244:1::11"))
	}
	for name, ips := range pods {
		_, err := n.hns.AddPod(network.Name, name, ips...)
		kit.Must(t, err)
	}
}

// compare compares HNS with a golden file.
func (n *node) compare(t *testing.T, golden string) {
	t.Helper()
	have := n.describe() + n.unsupported(t)
	if *update {
		kit.WriteFile(t, golden, have)
	}
	kit.CompareGolden(t, golden, have)
}

// describe lists endpoints and load balancers in words, sorted.
func (n *node) describe() string {
	var lines []string
	names := map[string]string{}
	for _, e := range n.hns.Objects(hns.Endpoint) {
		var ips []string
		for _, ip := range e.IPs() {
			ips = append(ips, ip.String())
		}
		names[e.ID()] = strings.Join(ips, ",")
		line := fmt.Sprintf("endpoint %s %s", names[e.ID()], e.Name())
		if e.Remote() {
			mac := e.MAC()
			if !strings.HasPrefix(mac, "02-11-") {
				mac = "the node's" // differs in each run
			}
			line += fmt.Sprintf(" remote %s%s", mac, provider(e))
		}
		lines = append(lines, line)
	}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		var leads []string
		for _, id := range lb.Endpoints() {
			leads = append(leads, names[id])
		}
		slices.Sort(leads)
		vip := strings.Join(append(lb.VIPs(), "node")[:1], "")
		for _, p := range lb.Ports() {
			lines = append(lines, fmt.Sprintf("loadbalancer %v [%s]:%v -> :%v of %s, flags %d, port flags %v, distribution %v, source %q",
				p["Protocol"], vip, p["ExternalPort"], p["InternalPort"], strings.Join(leads, " "), lb.Flags(), number(p["Flags"]), number(p["DistributionType"]), lb.SourceVIP()))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func number(v any) any {
	if v == nil {
		return 0
	}
	return v
}

func provider(e hns.Document) string {
	policies, _ := e["Policies"].([]any)
	for _, p := range policies {
		m, _ := p.(map[string]any)
		if settings, ok := m["Settings"].(map[string]any); ok && m["Type"] == "ProviderAddress" {
			return fmt.Sprintf(" via %v", settings["ProviderAddress"])
		}
	}
	return ""
}

// unsupported is the program's report about Services that are not fully supported.
func (n *node) unsupported(t *testing.T) string {
	t.Helper()
	var page struct {
		Services []struct {
			Name  string
			Ports []struct{ Port, Family, State, Error string }
		}
	}
	answer, err := program.Fetch(t.Context(), n.Node, program.MetricsAddr, "/services")
	if err == nil {
		err = json.Unmarshal(answer.Body, &page)
	}
	kit.Must(t, err)
	text := ""
	for _, s := range page.Services {
		for _, p := range s.Ports {
			if p.Error != "" {
				text += fmt.Sprintf("%s:%s %s %s: %s\n", s.Name, p.Port, p.Family, p.State, p.Error)
			}
		}
	}
	return text
}

// TestPersonalities runs the program on the personalities of HNS that differ most: a start, a pod that is made again, and a
// new process, which writes nothing. Each change takes effect, and then resyncs write nothing. Objects that were made again
// in vain are reported. All personalities live longer in platform/windows/hns.
func TestPersonalities(t *testing.T) {
	for _, tt := range []struct{ name, reported string }{
		{"drops flags", ""},
		{"leaves out source VIPs later", "with SourceVIP none, not 10.244.1.254"},
		{"other order and notation", ""},
		{"MACs of its own later", "with MacAddress 00-15-5D-99-00-01, not 02-11-0a-f4-02-0"},
		{"load balancers go with endpoints", ""},
		{"fails twice in a row, 15.5", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := hns.FindPersonality(tt.name)
			kit.Must(t, err)
			n := newNode(t, hns.Options{Personality: p})
			web, cart, dns := shop()
			n.save(t, web, cart, dns)
			n.start(t)
			n.awaitProgrammed(t, web, cart, dns)
			n.awaitIdle(t)
			const again = "made again 2 times"
			n.await(t, tt.reported, func() bool {
				page := n.fetch(t, "/services")
				return has(page, tt.reported) && has(page, again) == (tt.reported != "")
			})
			n.remakePod(t, dns.pods[0])
			n.awaitProgrammed(t, web, cart, dns)
			n.awaitIdle(t)
			n.stop(t)
			before := n.hns.Calls()
			n.start(t)
			n.awaitIdle(t)
			calls := n.hns.Calls().Sub(before)
			kit.Check(t, calls.Writes("") == 0, "a new process: %s, want no call that changes something", calls)
			n.awaitProgrammed(t, web, cart, dns)
			n.stop(t)
		})
	}
}

// TestNoDirectReturn configures direct server return on an HNS without it: the proxy
// reports that, and Services work without.
func TestNoDirectReturn(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 1}})
	web := app{"web", 10, []string{"10.244.1.11", "10.244.2.11"}}
	n.save(t, web)
	n.start(t, "--enable-dsr")
	n.awaitProgrammed(t, web)
	n.await(t, "a word about it", func() bool {
		return has(n.process.Log(), "--enable-dsr", "HNS 10.1 has no direct server return", "want Windows Server 2019")
	})
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if lb.Flags() != 0 {
			t.Errorf("flags %d of %v, want none", lb.Flags(), lb.VIPs())
		}
	}
	n.stop(t)
}
