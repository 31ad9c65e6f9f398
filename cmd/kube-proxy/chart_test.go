// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

const chart = `kind: Service
apiVersion: v1
metadata: {name: web, namespace: shop}
spec: {type: NodePort, ports: [{port: 80}]}
---
kind: Service
apiVersion: v1
metadata: {name: dual, namespace: shop}
spec: {ipFamilyPolicy: PreferDualStack, ports: [{port: 81}]}
---
kind: Service
apiVersion: v1
metadata: {name: fixed, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{port: 82}]}
`

// TestChart renders Services without addresses from a pipe.
func TestChart(t *testing.T) {
	render := func(args ...string) outcome {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		old := os.Stdin
		os.Stdin = r
		defer func() { os.Stdin = old; r.Close() }()
		_, _ = w.WriteString(chart)
		w.Close()
		return call(t, "", append([]string{"render", "--manifests=-", "--hostname-override=node-a"}, args...)...)
	}
	if got := render(); got.Code != 1 || !strings.Contains(got.Err, "--assign-cluster-ips") {
		t.Errorf("without addresses: exit %d, %s", got.Code, got.Err)
	}
	// A range of two addresses, of which one is taken.
	if got := render("--assign-cluster-ips=10.96.0.0/30"); got.Code != 1 || !strings.Contains(got.Err, "there is no free IPv4 address") ||
		strings.Count(got.Out, "10.96.0.2 .") != 1 || strings.Count(got.Out, "10.96.0.1 .") != 1 {
		t.Errorf("in a small range: exit %d, %s\n%s", got.Code, got.Err, got.Out)
	}
	got := render("--assign-cluster-ips=10.96.0.0/16,fd00:10:96::/112")
	for _, want := range []string{`. tcp . 80 comment "shop/web"`, `. tcp . 81 comment "shop/dual"`, "fd00:10:96::", "tcp . 3"} {
		if got.Code != 0 || !strings.Contains(got.Out, want) {
			t.Errorf("exit %d, no %q: %s\n%s", got.Code, want, got.Err, got.Out)
		}
	}
	if again := render("--assign-cluster-ips=10.96.0.0/16,fd00:10:96::/112"); again.Out != got.Out {
		t.Errorf("another time, other addresses:\n%s\n%s", got.Out, again.Out)
	}
	if got := render("--assign-cluster-ips=10.96.0.0/16,10.97.0.0/16"); got.Code != 1 || !strings.Contains(got.Err, "second range") {
		t.Errorf("two ranges: exit %d, %s", got.Code, got.Err)
	}
}

// TestRenderFaults has Services of which nothing, or not what they want, can be served.
func TestRenderFaults(t *testing.T) {
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
	for text, want := range map[string]struct {
		code int
		text string
	}{
		head + "spec: {ports: [{port: 80}]}\n":                                                                                                           {1, "want of a clusterIP"},
		head + "spec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}\n":                                                                                   {1, "spec.clusterIPs[0]"},
		head + "spec: {clusterIP: 10.96.0.3, ports: [{port: 80, protocol: tcp}]}\n":                                                                      {1, `"tcp" is not TCP`},
		head + "spec: {clusterIP: 10.96.0.3, type: loadbalancer, ports: [{port: 80}]}\n":                                                                 {1, `"loadbalancer" is not ClusterIP`},
		head + "spec: {clusterIP: 10.96.0.3, type: NodePort, ports: [{port: 80, nodePort: 99}]}\n":                                                       {1, "99 is not in 30000-32767"},
		head + "spec: {clusterIP: 10.96.0.3, type: NodePort, ports: [{port: 80, nodePort: 70000}]}\n":                                                    {1, "70000 is not a port"},
		strings.Replace(head, "Service", "service", 1):                                                                                                   {1, "want apiVersion: v1, kind: Service"},
		head + "spec: {clusterIP: None, ports: [{port: 80}]}\n":                                                                                          {0, ""},
		head + "spec: {type: ExternalName, externalName: a.example.com}\n":                                                                               {0, ""},
		head + "spec: {clusterIP: 10.96.0.3, ports: [{port: 80}, {name: b, port: 81, protocol: tcp}]}\n":                                                 {0, "problem: "},
		strings.Replace(head, "{name: a}", "{name: a, uid: x}", 1) + "spec: {clusterIP: 10.96.0.3, type: NodePort, ports: [{port: 80, nodePort: 99}]}\n": {0, ""},
	} {
		dir := files(t, map[string]string{"a.yaml": text})
		if got := call(t, dir, "render", "--manifests=DIR", "--hostname-override=node-a"); got.Code != want.code || !strings.Contains(got.Err, want.text) {
			t.Errorf("%sexit %d, want %d and %q; %s", text, got.Code, want.code, want.text, got.Err)
		}
	}
}

// TestDiffWithoutABadObject compares manifests of which one object cannot be used.
func TestDiffWithoutABadObject(t *testing.T) {
	bad := "---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {clusterIP: [}\n"
	for more, want := range map[string]int{"": 2, "---\napiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {clusterIP: 10.96.0.77, ports: [{port: 80}]}\n": 1} {
		dir := files(t, map[string]string{"old.yaml": shop, "new.yaml": shop + bad + more})
		got := call(t, dir, "diff", "--from=DIR/old.yaml", "--manifests=DIR/new.yaml", "--hostname-override=node-a")
		if got.Code != want || !strings.Contains(got.Err, "warning: manifest ") {
			t.Errorf("exit %d, want %d; %s\n%s", got.Code, want, got.Err, got.Out)
		}
	}
}
