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

func TestDiffMistakes(t *testing.T) {
	dir := files(t, map[string]string{"shop.yaml": shop, "bad.yaml": "kind: Service\napiVersion: v1\nmetadata: {name: 7}\n"})
	for want, args := range map[string][]string{
		"want plan, diff or json": {"-o=yaml"},
		`unexpected argument "x"`: {"x"},
		"did you mean --from?":    {"--form=x"},
		"no such file":            {"--from=DIR/shop.yaml", "--manifests=DIR/none"},
		"bad.yaml":                {"--from=DIR/shop.yaml", "--manifests=DIR/bad.yaml"},
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
