// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"kubeproxy/common/plandiff"
)

// TestDiffOfManifests compares manifests in every mode, without a node.
func TestDiffOfManifests(t *testing.T) {
	changed := strings.Replace(shop, "port: 80,", "port: 81,", 1)
	dir := files(t, map[string]string{"old.yaml": shop, "new.yaml": changed})
	for _, mode := range []string{"nftables", "iptables", "userspace", "ipvs", "kernelspace"} {
		args := []string{"diff", "--from=DIR/old.yaml", "--hostname-override=node-a", "--proxy-mode=" + mode}
		same := call(t, dir, append(args, "--manifests=DIR/old.yaml")...)
		if same.Code != 0 || !strings.HasSuffix(same.Out, "Nothing differs.\n") && !strings.Contains(same.Out, "Nothing differs.\nnote: ") {
			t.Errorf("%s, the same: exit %d, %s\n%s", mode, same.Code, same.Err, same.Out)
		}
		if got := call(t, dir, append(args, "--manifests=DIR/old.yaml", "-o=diff")...); got.Code != 0 || got.Out != "" {
			t.Errorf("%s, the same as diff: exit %d, %s\n%s", mode, got.Code, got.Err, got.Out)
		}
		plan := call(t, dir, append(args, "--manifests=DIR/new.yaml")...)
		for _, want := range []string{"~ shop/web:http (tcp, IPv4) is changed", "- ClusterIP 10.96.0.10:80\n", "+ ClusterIP 10.96.0.10:81\n", "Service ports: 0 added, 1 changed, 0 removed."} {
			if plan.Code != plandiff.ExitDiffers || !strings.Contains(plan.Out, want) {
				t.Errorf("%s: exit %d, no %q in\n%s%s", mode, plan.Code, want, plan.Out, plan.Err)
			}
		}
		text := call(t, dir, append(args, "--manifests=DIR/new.yaml", "-o=diff")...)
		if text.Code != plandiff.ExitDiffers || !strings.HasPrefix(text.Out, "--- ") || !strings.Contains(text.Out, "\n@@ -") || !strings.Contains(text.Out, "81") {
			t.Errorf("%s as diff: exit %d, %s\n%s", mode, text.Code, text.Err, text.Out)
		}
		var d plandiff.Difference
		doc := call(t, dir, append(args, "--manifests=DIR/new.yaml", "-o=json")...)
		if err := json.Unmarshal([]byte(doc.Out), &d); err != nil || doc.Code != plandiff.ExitDiffers || d.Same || len(d.Ports) != 1 || d.Mode != mode || d.Text != text.Out {
			t.Errorf("%s as JSON: exit %d, %v\n%s", mode, doc.Code, err, doc.Out)
		}
	}
}

// TestLimitsOfModes has render, diff and explain say the same of what a mode cannot do for a Service.
func TestLimitsOfModes(t *testing.T) {
	sctp := strings.NewReplacer("spec:\n", "spec:\n  type: NodePort\n  externalIPs: [198.51.100.7]\n", "port: 80,", "port: 80, protocol: SCTP, nodePort: 30080,", "protocol: TCP", "protocol: SCTP").Replace(shop)
	dir := files(t, map[string]string{"old.yaml": shop, "new.yaml": sctp})
	const loopback = "the NodePort does not answer on 127.0.0.1: TCP and UDP alone are relayed there"
	for mode, tt := range map[string]struct{ limit, render, explain string }{
		"userspace":   {"mode userspace forwards TCP and UDP only", "# unsupported: ", "mode userspace does otherwise: "},
		"kernelspace": {"HNS has no load balancers for sctp", "unsupported: ", "mode kernelspace does otherwise: "},
		"nftables":    {limit: loopback},
		"ipvs":        {limit: loopback},
		"iptables":    {},
	} {
		args := []string{"--hostname-override=node-a", "--proxy-mode=" + mode, "--nodeport-addresses=all,localhost", "--cluster-cidr=10.244.0.0/16", "--manifests=DIR/new.yaml"}
		const port = "service port shop/web:http (sctp, IPv4): "
		var d plandiff.Difference
		got := call(t, dir, append([]string{"diff", "--from=DIR/old.yaml", "-o=json"}, args...)...)
		if err := json.Unmarshal([]byte(got.Out), &d); err != nil || (len(d.Limits) == 1) != (tt.limit != "") || tt.limit != "" && d.Limits[0] != port+tt.limit {
			t.Errorf("%s: diff: %v, limits %q, want %q\n%s", mode, err, d.Limits, tt.limit, got.Err)
		}
		text := call(t, dir, append([]string{"diff", "--from=DIR/old.yaml"}, args...)...)
		if strings.Contains(text.Out, "what mode "+mode+" does otherwise than Services ask:\n  "+port) != (tt.limit != "") {
			t.Errorf("%s: diff prints %s", mode, text.Out)
		}
		render := call(t, dir, append([]string{"render"}, args...)...)
		if strings.Contains(render.Out, "unsupported") != (tt.render != "") || !strings.Contains(render.Out, tt.render+port+tt.limit) && tt.render != "" {
			t.Errorf("%s: render prints %s", mode, render.Out)
		}
		explain := call(t, dir, append([]string{"explain", "10.244.1.5", "10.96.0.10:80/sctp"}, args...)...)
		if strings.Contains(explain.Out, "does otherwise") != (tt.explain != "") || !strings.Contains(explain.Out, tt.explain+tt.limit) && tt.explain != "" {
			t.Errorf("%s: explain prints %s%s", mode, explain.Out, explain.Err)
		}
	}
	for to, tt := range map[string]struct{ mode, want string }{
		"198.51.100.7:81": {"ipvs", "mode ipvs refuses what no Service has there"},
		"10.96.0.99:80":   {"iptables", "rules of iptables do not concern addresses of the Service range"},
		"127.0.0.1:30080": {"iptables", "on loopback addresses NodePorts answer programs of the node"},
	} {
		cidrs := strings.Replace(sctp, "---\n", "---\napiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: kubernetes}\nspec: {cidrs: [10.96.0.0/16]}\n---\n", 1)
		if tt.mode == "ipvs" {
			cidrs = sctp
		}
		at := files(t, map[string]string{"all.yaml": cidrs})
		got := call(t, at, "explain", "node", to, "--manifests=DIR/all.yaml", "--hostname-override=node-a", "--proxy-mode="+tt.mode)
		if out := strings.Join(strings.Fields(got.Out), " "); got.Code != 0 || !strings.Contains(out, "mode "+tt.mode+" does otherwise: ") || !strings.Contains(out, tt.want) {
			t.Errorf("%s in mode %s: exit %d\n%s%s", to, tt.mode, got.Code, got.Out, got.Err)
		}
	}
}

func TestDiffMistakes(t *testing.T) {
	dir := files(t, map[string]string{"shop.yaml": shop, "bad.yaml": "kind: Service\napiVersion: v1\nmetadata: {name: 7}\n"})
	for want, args := range map[string][]string{
		"want plan, diff, json":   {"-o=xml"},
		`unexpected argument "x"`: {"x"},
		"did you mean --from?":    {"--form=x"},
		"--from: node and api stand alone: want --from node, --from api": {"--from=node", "--from=api"},
		"no such file": {"--from=DIR/shop.yaml", "--manifests=DIR/none"},
		"bad.yaml":     {"--from=DIR/shop.yaml", "--manifests=DIR/bad.yaml"},
		"want --kubeconfig FILE, --master ADDRESS, --manifests PATH": {"--from=DIR/shop.yaml"},
		"API server http://127.0.0.1:1":                              {"--from=DIR/shop.yaml", "--master=http://127.0.0.1:1", "--timeout=1s"},
		"read the API server: not all Services":                      {"--from=DIR/shop.yaml", "--master=http://127.0.0.1:1", "--timeout=1s"},
	} {
		got := call(t, dir, append([]string{"diff", "--hostname-override=node-a"}, args...)...)
		if got.Code != plandiff.ExitFailed || got.Out != "" || !strings.Contains(got.Err, want) {
			t.Errorf("%q: exit %d, want %d and %q: %s%s", args, got.Code, plandiff.ExitFailed, want, got.Out, got.Err)
		}
	}
}
