// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

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
	shop, err := os.ReadFile("testdata/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
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
		if _, err := n.hns.AddPod(network.Name, name, ips...); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
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
