// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/scm"
	"kubeproxy/test/kit"
)

// TestWay has the ways of docs/windows.md to start kube-proxy. Each is a heading there.
func TestWay(t *testing.T) {
	text, err := os.ReadFile("../../../docs/windows.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := strings.ReplaceAll(strings.ToLower(string(text)), " ", "-")
	for _, test := range []struct {
		parent  string
		service *scm.Status
		want    string
	}{
		{"nssm.exe", &scm.Status{Name: "kube-proxy", Command: `C:\k\nssm.exe`}, byNSSM},
		{"powershell.exe", &scm.Status{Name: "kube-proxy", Command: `C:\k\nssm.exe powershell.exe kube-proxy-service.ps1`}, byNSSM},
		{"", &scm.Status{Name: "kube-proxy", Command: `"C:\Program Files\nssm64.exe"`}, byNSSM},
		{"nssm.exe", &scm.Status{Name: "kubeproxy", Command: `C:\k\nssm.exe`}, byNSSM},
		{"services.exe", &scm.Status{Name: "kube-proxy", Command: `C:\k\kube-proxy.exe --windows-service`}, byService},
		{"", &scm.Status{Name: "kube-proxy", Command: `"C:\nssm\kube-proxy.exe"`}, byService},
		{"powershell.exe", &scm.Status{Name: "Kubeproxy", Command: `C:\k\nssm.exe`}, byAKS},
		{"", &scm.Status{Name: "p", Command: `C:\k\nssm.exe powershell.exe C:\k\kubeproxystart.ps1`}, byAKS},
		{"PowerShell.EXE", nil, byScript},
		{"rke2.exe", &scm.Status{Name: "rke2", Command: `C:\usr\local\bin\rke2.exe agent service`}, byRKE2},
		{"rke2.exe", nil, byRKE2},
		{"containerd-shim-runhcs-v1.exe", nil, byPod},
		{"", nil, byPod},
	} {
		if got := way(test.parent, test.service); got != test.want {
			t.Errorf("parent %q, %+v: %s, want %s", test.parent, test.service, got, test.want)
		}
		if !strings.Contains(headings, "\n###-"+test.want+"\n") {
			t.Errorf("%s is no heading", test.want)
		}
	}
}

// TestIPAM has configurations of network plugins, and source VIPs.
func TestIPAM(t *testing.T) {
	const hostLocal = `{"name": "net", "type": "sdnoverlay", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"`
	for name, test := range map[string]struct {
		file, text, vip string
		want            string
	}{
		"the first":              {"a.conf", hostLocal + `}}`, "10.244.1.2", "a.conf"},
		"the last":               {"a.conf", hostLocal + `}}`, "10.244.1.254", ""},
		"the last but a pod":     {"a.conf", hostLocal + `}}`, "10.244.1.253", ""},
		"below the range":        {"a.conf", hostLocal + `, "rangeStart": "10.244.1.10"}}`, "10.244.1.2", ""},
		"above the range":        {"a.conf", hostLocal + `, "rangeEnd": "10.244.1.199"}}`, "10.244.1.200", ""},
		"in the range":           {"a.conf", hostLocal + `, "rangeStart": "10.244.1.2", "rangeEnd": "10.244.1.199"}}`, "10.244.1.2", "a.conf"},
		"in a list":              {"a.conflist", `{"name": "net", "plugins": [{"type": "win-overlay", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]]}}, {"type": "x"}]}`, "10.244.1.2", "a.conflist"},
		"flannel":                {"a.json", `{"name": "net", "type": "flannel", "delegate": {"type": "win-overlay"}}`, "10.244.1.2", "a.json"},
		"given out, so reserved": {"a.conf", hostLocal + `}}`, "10.244.1.9", ""},
		"another IPAM":           {"a.conf", `{"type": "calico", "ipam": {"type": "calico-ipam", "subnet": "usePodCidr"}}`, "10.244.1.2", ""},
		"not the first file":     {"c.conf", hostLocal + `}}`, "10.244.1.2", ""},
		"no configuration":       {"a.txt", hostLocal + `}}`, "10.244.1.2", ""},
		"null":                   {"a.conf", `null`, "10.244.1.2", ""},
	} {
		n, l, _ := newNode()
		dir, vip := t.TempDir(), netip.MustParseAddr(test.vip)
		n.CNI = CNI{Folders: []string{filepath.Join(dir, "missing"), dir}, Leases: filepath.Join(dir, "leases")}
		l.Endpoints = []hns.Endpoint{{Name: "vip", Network: "1", Addrs: []netip.Addr{vip}}, endpoint("a", "10.244.1.254", "1")}
		if test.vip == "10.244.1.254" {
			l.Endpoints = l.Endpoints[:1]
		}
		if err := os.MkdirAll(filepath.Join(dir, "leases", "net"), 0o700); err != nil {
			t.Fatal(err)
		}
		for path, text := range map[string]string{test.file: test.text, "b.conf": `{"type": "win-bridge"}`, "leases/net/10.244.1.9": ""} {
			kit.WriteFile(t, filepath.Join(dir, path), text)
		}
		got := ""
		for _, f := range n.alsoVIP(*l, overlay, vip) {
			got += filepath.Base(f.Subject)
		}
		if got != test.want {
			t.Errorf("%s: found %q, want %q", name, got, test.want)
		}
	}
}
