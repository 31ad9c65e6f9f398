// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/test/kit"
)

const shop = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.1.11]}]
---
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.10}]}
`

func TestRender(t *testing.T) {
	dir := files(t, map[string]string{"shop.yaml": shop, "config.yml.off": configHead + "nftables: {masqueradeBit: 3}\n"})
	args := func(more ...string) []string {
		return append([]string{"render", "--manifests", "DIR", "--hostname-override", " Node-A "}, more...)
	}
	text := call(t, dir, args()...)
	kit.Need(t, text.Code == 0 && text.Err == "", "exit %d: %s", text.Code, text.Err)
	for _, want := range []string{"table ip kube-services {", "table ip6 kube-services {", `10.96.0.10 . tcp . 80 comment "shop/web:http"`, "10.244.1.11 . 8080", "0x00004000"} {
		kit.Check(t, strings.Contains(text.Out, want), "%q is missing in\n%s", want, text.Out)
	}
	again := call(t, dir, args("--proxy-mode=nftables")...)
	kit.Check(t, again.Out == text.Out, "a second rendering differs")
	if got := call(t, dir, args("-o", "json")...); got.Code != 0 || !strings.HasPrefix(got.Out, "{\n") {
		t.Errorf("json: exit %d, %.80q", got.Code, got.Out)
	}
	got := call(t, dir, args("--config=DIR/config.yml.off", "--iptables-masquerade-bit=4")...)
	kit.Check(t, got.Code == 0 && strings.Contains(got.Out, "0x00000010") && strings.Contains(got.Err, "--iptables-masquerade-bit overrides nftables.masqueradeBit"),
		"with a configuration: exit %d, %s\n%s", got.Code, got.Err, got.Out)
}

// TestRenderAcceleration renders socket acceleration after the rules of each mode that can
// have it.
func TestRenderAcceleration(t *testing.T) {
	dir := files(t, map[string]string{"shop.yaml": shop})
	const lists = "# socket acceleration, IPv4\n# connect tcp 10.96.0.10:80, shop/web:http\n#   10.244.1.11:8080\n# socket acceleration, IPv6\n"
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		args := []string{"render", "--manifests", "DIR", "--hostname-override=node-a", "--proxy-mode", mode}
		plain, with := call(t, dir, args...), call(t, dir, append(args, "--socket-acceleration")...)
		kit.Check(t, with.Code == 0 && with.Out == plain.Out+lists,
			"%s: exit %d: %s\nwith socket acceleration:\n%s\nwithout:\n%s", mode, with.Code, with.Err, with.Out, plain.Out)
		got := call(t, dir, append(args, "--socket-acceleration", "-o=json")...)
		kit.Check(t, got.Code == 0 && !strings.Contains(got.Out, "connect tcp") && strings.Contains(got.Err, "socket acceleration is part of the text only"),
			"%s, json: exit %d: %s", mode, got.Code, got.Err)
	}
}

// TestRenderBadManifests checks that good manifests are rendered beside bad ones.
func TestRenderBadManifests(t *testing.T) {
	dir := files(t, map[string]string{"a.yaml": "kind: [\n", "b.yaml": shop, "c.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n"})
	got := call(t, dir, "render", "--manifests=DIR", "--hostname-override=node-a")
	kit.Check(t, got.Code == 1 && strings.Contains(got.Out, "10.244.1.11 . 8080"),
		"exit %d, want 1 and the good Service in\n%s", got.Code, got.Out)
	for _, want := range []string{"DIR/a.yaml", "note: ", "Deployment"} {
		kit.Check(t, strings.Contains(got.Err, want), "%q is missing in\n%s", want, got.Err)
	}
}

// TestRenderProblem checks that a part which the tracker leaves out does not set the exit
// code: the files were read.
func TestRenderProblem(t *testing.T) {
	dir := files(t, map[string]string{"a.yaml": strings.Replace(shop, "clusterIP: 10.96.0.10", "clusterIP: 10.96.0.10\n  externalIPs: [127.0.0.1]", 1)})
	got := call(t, dir, "render", "--manifests=DIR", "--hostname-override=node-a")
	kit.Check(t, got.Code == 0 && strings.Contains(got.Err, "problem: service shop/web: spec.externalIPs"),
		"exit %d, %s", got.Code, got.Err)
}

// TestManyProblems wants the first 20 of many problems printed, and the rest counted.
func TestManyProblems(t *testing.T) {
	const services = 100
	var text strings.Builder
	for i := range services {
		fmt.Fprintf(&text, "apiVersion: v1\nkind: Service\nmetadata: {name: s%03d, namespace: shop}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n---\n", i)
	}
	dir := files(t, map[string]string{"a.yaml": text.String()})
	printed := call(t, dir, "render", "--manifests=DIR", "--hostname-override=node-a").Err
	if n := strings.Count(printed, "problem: "); n != reading.MostProblems+1 || !strings.Contains(printed, "service shop/s020:") || strings.Contains(printed, "service shop/s021:") {
		t.Errorf("%d lines; want those on s001 to s020 and one more:\n%s", n, printed)
	}
	want := fmt.Sprintf("problem: and %d more problems\n", services-1-reading.MostProblems)
	kit.Check(t, strings.Contains(printed, want), "%q is missing in\n%s", want, printed)
}

// A node's state is read, and what would change is said.
func TestRenderKernelspace(t *testing.T) {
	state := `{"Version": {"Major": 15, "Minor": 5},
		"Networks": [{"ID": "N", "Name": "cbr0", "Type": "l2bridge", "Ipams": [{"Subnets": [{"IpAddressPrefix": "10.244.1.0/24"}]}]}],
		"Endpoints": [{"ID": "E", "HostComputeNetwork": "n", "IpConfigurations": [{"IpAddress": "10.244.1.11"}], "MacAddress": "00-15-5d-00-00-01"}],
		"LoadBalancers": [{"ID": "L", "HostComputeEndpoints": ["E"], "FrontendVIPs": ["10.96.0.10"],
			"PortMappings": [{"Protocol": 6, "InternalPort": 9090, "ExternalPort": 80, "Flags": 1}]}]}`
	dir := files(t, map[string]string{"shop.yaml": shop, "state.json.off": state, "bad.json.off": "{}"})
	args := []string{"render", "--manifests=DIR", "--hostname-override=node-a"}
	assumed := call(t, dir, append(args, "--proxy-mode=kernelspace")...)
	kit.Check(t, assumed.Code == 0 && strings.Contains(assumed.Out, "loadbalancer tcp 10.96.0.10:80 -> :8080 source-vip 192.0.2.10 # shop/web:http") && strings.Contains(assumed.Err, "assumed to be of type L2Bridge"),
		"without a state: exit %d, %s\n%s", assumed.Code, assumed.Err, assumed.Out)
	given := call(t, dir, append(args, "--hns-state=DIR/state.json.off")...)
	for _, want := range []string{"network cbr0 L2Bridge, HNS 15.5", "endpoint 10.244.1.11 local", "to change:", "- loadbalancer tcp 10.96.0.10:80"} {
		kit.Check(t, strings.Contains(given.Out, want),
			"with a state: %q is missing in\n%s\n%s", want, given.Out, given.Err)
	}
	bad := call(t, dir, append(args, "--hns-state=DIR/bad.json.off")...)
	kit.Check(t, bad.Code == 1 && strings.Contains(bad.Err, "Networks is missing or empty"),
		"with a bad state: exit %d, %s", bad.Code, bad.Err)
}

// TestKernelspaceReadme checks that the README of kernelspace shows the real output.
func TestKernelspaceReadme(t *testing.T) {
	text := kit.ReadFile(t, "../../platform/windows/hns/README.md")
	_, after, _ := strings.Cut(string(text), "    $ kube-proxy render ")
	command, after, _ := strings.Cut(after, "\n")
	block, _, _ := strings.Cut(after, "\n\n")
	args := append([]string{"render"}, strings.Fields(strings.Replace(command, "docs/", "../../docs/", 1))...)
	got := call(t, "", args...)
	kit.Need(t, got.Code == 0 && strings.Count(block, "\n") >= 4,
		"exit %d, %s; the README shows %q", got.Code, got.Err, block)
	for line := range strings.Lines(block + "\n") {
		kit.Check(t, strings.Contains(got.Out, strings.TrimPrefix(line, "    ")), "not printed: %s", line)
	}
}

// TestRenderUnknownNode misspells the node's name: no address answers NodePorts, and the
// output gives the reason.
func TestRenderUnknownNode(t *testing.T) {
	manifest := strings.Replace(shop, "spec:\n", "spec:\n  type: NodePort\n", 1)
	dir := files(t, map[string]string{"shop.yaml": strings.Replace(manifest, "port: 80,", "port: 80, nodePort: 30080,", 1)})
	for mode, leads := range map[string]string{
		"nftables": "goto nodeport-dispatch", "iptables": "-j KUBE-NODEPORTS", "userspace": "-j KUBE-NODEPORT-", "ipvs": "192.0.2.10:30080",
	} {
		args := []string{"render", "--manifests", "DIR", "--proxy-mode", mode, "--nodeport-addresses", "primary", "--hostname-override"}
		typo := call(t, dir, append(args, "node-x")...)
		kit.Check(t, typo.Code == 0 && !strings.Contains(typo.Out, leads) && strings.Contains(typo.Err, `no IPv4 address answers NodePorts: nodePortAddresses is "primary", and no Node named "node-x"`),
			"%s: exit %d, %s\n%s", mode, typo.Code, typo.Err, typo.Out)
		if got := call(t, dir, append(args, "node-a")...); !strings.Contains(got.Out, leads) || strings.Contains(got.Err, "NodePorts") {
			t.Errorf("%s: NodePorts of a known node: %s\n%s", mode, got.Err, got.Out)
		}
	}
}

// TestRenderListeners has those of mode userspace at the node's address where a range
// of ports says which of its ports are theirs.
func TestRenderListeners(t *testing.T) {
	dir := files(t, map[string]string{"shop.yaml": shop})
	args := []string{"render", "--manifests", "DIR", "--proxy-mode=userspace", "--nodeport-addresses=primary", "--hostname-override=node-a", "--bind-address=192.0.2.10"}
	const own, guard = "169.254.107.112", "-A INPUT -d 192.0.2.10/32 -p udp -m udp --dport 4000:4099 -j KUBE-PORTALS\n"
	got := call(t, dir, args...)
	kit.Check(t, got.Code == 0 && strings.Contains(got.Out, "--to-destination "+own+":") && strings.Contains(got.Err, "are there only with --proxy-port-range"),
		"without a range: exit %d, %s\n%s", got.Code, got.Err, got.Out)
	got = call(t, dir, append(args, "--proxy-port-range=4000-4099")...)
	kit.Check(t, got.Code == 0 && got.Err == "" && strings.Contains(got.Out, "--to-destination 192.0.2.10:4000\n") && strings.Contains(got.Out, guard) && !strings.Contains(got.Out, own),
		"with a range: exit %d, %s\n%s", got.Code, got.Err, got.Out)
}

// TestRenderLocalhostSCTP names the NodePorts that nobody answers on the loopback
// address, in the modes whose rules do not lead there.
func TestRenderLocalhostSCTP(t *testing.T) {
	manifest := strings.Replace(shop, "spec:\n", "spec:\n  type: NodePort\n", 1)
	dir := files(t, map[string]string{"shop.yaml": strings.Replace(manifest, "port: 80,", "port: 80, protocol: SCTP, nodePort: 30080,", 1)})
	for mode, lost := range map[string]bool{"nftables": true, "ipvs": true, "iptables": false} {
		got := call(t, dir, "render", "--manifests", "DIR", "--proxy-mode", mode, "--nodeport-addresses", "primary,localhost", "--hostname-override", "node-a")
		const line = "note: nobody answers NodePorts at 127.0.0.1 on 30080/sctp (shop/web:http): kube-proxy relays TCP and UDP alone there\n"
		kit.Check(t, got.Code == 0 && strings.Contains(got.Err, line) == lost && !strings.Contains(got.Err, "itself listens"),
			"%s: exit %d, %s", mode, got.Code, got.Err)
	}
}

// TestRenderProxyName has a labelled Service be served by the proxy of that name
// alone.
func TestRenderProxyName(t *testing.T) {
	labelled := strings.Replace(shop, "name: web, namespace: shop}", "name: web, namespace: shop, labels: {service.kubernetes.io/service-proxy-name: mesh}}", 1)
	dir := files(t, map[string]string{"plain.yaml": shop, "labelled.yaml": labelled})
	for _, tt := range []struct {
		folder, name string
		serves       bool
	}{{"plain", "", true}, {"plain", "mesh", false}, {"labelled", "", false}, {"labelled", "mesh", true}, {"labelled", "other", false}} {
		args := []string{"render", "--hostname-override=node-a", "--manifests", "DIR/" + tt.folder + ".yaml"}
		if tt.name != "" {
			args = append(args, "--service-proxy-name", tt.name)
		}
		if got := call(t, dir, args...); got.Code != 0 || strings.Contains(got.Out, `comment "shop/web:http"`) != tt.serves {
			t.Errorf("%s by proxy %q: exit %d, %s\n%s", tt.folder, tt.name, got.Code, got.Err, got.Out)
		}
	}
	for name, want := range map[string]string{"": "is empty: want the value of a label", "a b": `"a b" is no value of a label: want`} {
		got := call(t, dir, "render", "--manifests", "DIR", "--service-proxy-name", name)
		kit.Check(t, got.Code != 0 && strings.Contains(got.Err, "--service-proxy-name: "+want), "name %q: exit %d, %s", name, got.Code, got.Err)
	}
}

// TestRenderIgnoresSourceRanges checks that an address with source ranges is served on
// Windows if the operator allows it, with a note that it is open. On Linux the ranges are
// enforced.
func TestRenderIgnoresSourceRanges(t *testing.T) {
	const served, open = "loadbalancer tcp 203.0.113.5:443 ", "every client can connect to 203.0.113.5"
	for _, tt := range []struct {
		mode, flag   string
		served, open bool
	}{
		{"kernelspace", "--ignore-source-ranges=false", false, false},
		{"kernelspace", "--ignore-source-ranges", true, true},
		{"nftables", "--ignore-source-ranges", false, false},
	} {
		got := call(t, "", "render", "--manifests", "../../docs/examples/shop", "--hostname-override", "node-a", "--proxy-mode", tt.mode, tt.flag)
		kit.Check(t, got.Code == 0 && strings.Contains(got.Out, served) == tt.served && strings.Contains(got.Out, open) == tt.open,
			"mode %s with %s: exit %d, %s\n%s", tt.mode, tt.flag, got.Code, got.Err, got.Out)
		noted := strings.Contains(got.Err, "has no effect on linux")
		kit.Check(t, noted == (tt.mode == "nftables"), "mode %s with %s: %s", tt.mode, tt.flag, got.Err)
		restricted := strings.Contains(got.Out, "203.0.113.5 . tcp . 443 . 192.0.2.100")
		kit.Check(t, restricted == (tt.mode == "nftables"), "mode %s with %s: source ranges are not as they should be:\n%s", tt.mode, tt.flag, got.Out)
	}
}
