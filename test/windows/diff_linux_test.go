// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/netlab"
	"kubeproxy/test/wine"
)

// TestDiff compares what HNS holds with the manifests: while a proxy runs, and after
// another program changed load balancers. Then it collects an archive.
func TestDiff(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 15, Minor: 5}})
	web, cart, _ := shop()
	n.save(t, web, cart)
	n.start(t, "--iptables-sync-period=1h") // nothing is repaired meanwhile
	n.awaitProgrammed(t, web, cart)
	flags := []string{"--hostname-override=" + netlab.NodeName, "--cluster-cidr=10.244.0.0/16", "--manifests=" + wine.File(n.dir)}
	diff := func(code int, args []string, words ...string) {
		t.Helper()
		got, out := n.run(t, append(append([]string{"diff"}, flags...), args...)...)
		for _, w := range words {
			if got != code || strings.Contains(out, "system_windows.go") || !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
				t.Errorf("diff %q: exit %d, want %d; want %q in\n%s", args, got, code, w, out)
			}
		}
	}
	calls := n.hns.Calls()
	diff(0, nil, "node node-a, mode kernelspace: from what the node has to", "Nothing differs.")

	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if strings.Join(lb.VIPs(), "") == cart.clusterIP() {
			if err := n.hns.Delete(hns.LoadBalancer, lb.ID()); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.replaceLoadBalancer(t, web.clusterIP())
	diff(1, nil, "changes of the node, IPv4:", "+ loadbalancer tcp "+cart.clusterIP()+":80", "- loadbalancer tcp "+web.clusterIP()+":80", "for Service ports shop/cart:web and shop/web:web.")
	diff(1, []string{"-o=diff"}, "--- what the node has", "+loadbalancer tcp "+cart.clusterIP()+":80 -> :8080", "# shop/cart:web", "-loadbalancer tcp "+web.clusterIP()+":80 -> :9090", "+loadbalancer tcp "+web.clusterIP()+":80 -> :8080")
	if calls = n.hns.Calls().Sub(calls); calls.Writes("") > 2 { // the test's own
		t.Errorf("diff changed HNS: %s", calls)
	}

	file := filepath.Join(n.dir, "..", "dump.tar.gz")
	code, out := n.run(t, append(append([]string{"support-dump"}, flags...), wine.File(file))...)
	if code > 1 {
		t.Fatalf("support-dump: exit %d\n%s", code, out)
	}
	parts := unpack(t, file)
	for name, word := range map[string]string{
		"rules.txt": "loadbalancer tcp " + web.clusterIP() + ":80 -> :9090 ", "plan.txt": "shop/web:web", "hns.json": "HostComputeEndpoints", "status.txt": "mode kernelspace",
		"doctor.txt": "windows, mode kernelspace", "services.json": "shop", "config.yaml": "KubeProxyConfiguration",
	} {
		if !strings.Contains(parts[name], word) {
			t.Errorf("%s of the archive has no %q:\n%s\n%s", name, word, parts[name], out)
		}
	}
	n.stop(t)
}

// unpack returns the files of an archive by name.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	parts, r := map[string]string{}, tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		parts[path.Base(h.Name)] = string(body)
	}
}
