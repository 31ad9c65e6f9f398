// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// The secrets of a node, in every form that a file may hold.
const (
	secretToken = "s3cr3t-of-the-service-account-2718281828"
	secretKey   = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIGxvbmdlbm91Z2hmb3JhbGluZW9mYWtleW9mdGVuLi4uLi4uLi4u\n-----END EC PRIVATE KEY-----\n"
	secretCert  = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUbG9uZ2Vub3VnaGZvcmFsaW5lb2ZhY2VydGlmaWNhdGU\n-----END CERTIFICATE-----\n"
)

// secrets lists what an archive must not contain.
func secrets() []string {
	line := func(s string) string { return strings.Split(s, "\n")[1] }
	code := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	return []string{secretToken, line(secretKey), line(secretCert), code(secretKey)[:60], code(secretCert)[:60], code(secretToken)}
}

// writeKubeconfig writes one that has all the secrets, of an API server that nobody runs.
func writeKubeconfig(t *testing.T) string {
	t.Helper()
	code := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	text := `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users:
- {name: u, user: {token: "` + secretToken + `"}}
- {name: v, user: {client-key-data: "` + code(secretKey) + `", client-certificate-data: "` + code(secretCert) + `"}}
`
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kit.WriteFile(t, path, text)
	return path
}

// TestSupportDump makes an archive on a node whose proxy runs, whose API server does not
// answer, and whose log has secrets.
func TestSupportDump(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	c.start(t)
	kubeconfig := writeKubeconfig(t)
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "proxy.log")
	kit.WriteFile(t, log, "the first line of the log\n"+string(text)+secretKey+secretCert+"Authorization: Bearer "+secretToken+"\nthe last line of the log\n")
	path := filepath.Join(t.TempDir(), "dump.tar.gz")
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--kubeconfig=" + kubeconfig, "--log-file=" + log}, c.mode.flags...)...)
	cmd.Args = append(slices.Insert(cmd.Args, 1, "support-dump", path), "--timeout=20s")
	said, err := program.Run(t, c.Node, cmd)
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(said, "not collected: events.json;") {
		t.Errorf("exit %d, want 1 for Events alone: %s", code, said)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes\n%s", len(archive), said)
	checkArchive(t, archive, map[string]string{
		"version.txt": "cli.Build{", "config.yaml": "kind: KubeProxyConfiguration", "configz.json": "clusterCIDR", "flagz.txt": "manifests=",
		"status.txt": "shop/web", "services.json": `"name":`, "metrics.txt": "kubeproxy_", "rules.txt": "table ip kube-services", "plan.txt": "Nothing differs.",
		"log.txt": "the last line of the log", "doctor.txt": "", "conntrack.txt": "nf_conntrack", "nft.txt": "kube-services", "addresses.txt": "192.0.2.10",
		"CONTENTS.txt": "events.json",
	})
}

// checkArchive wants a text in each file of an archive, and no secret in any.
func checkArchive(t *testing.T, archive []byte, want map[string]string) {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(h.Name)
		found[name] = true
		if !strings.Contains(string(text), want[name]) {
			t.Errorf("%s lacks %q:\n%.2000s", name, want[name], text)
		}
		if name == "CONTENTS.txt" {
			t.Logf("%s", text)
		}
		for _, s := range secrets() {
			if strings.Contains(string(text), s) {
				t.Errorf("%s has the secret %s", name, s)
			}
		}
	}
	for name := range want {
		if !found[name] {
			t.Errorf("there is no %s", name)
		}
	}
}
