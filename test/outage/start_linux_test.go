// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

func testHealthPort(t *testing.T, s *site) { testPort(t, s.join(t, "health"), "health", "10256") }

func testMetricsPort(t *testing.T, s *site) { testPort(t, s.join(t, "metrics"), "metrics", "10249") }

// testPort occupies the listen address of a proxy.
func testPort(t *testing.T, n *node, server, port string) {
	taken, err := n.host.Listen(t.Context(), "tcp", "0.0.0.0:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	out, err := program.Run(t, n.host, kubeProxy.Command(n.flags(t, cluster.Login{}, "--bind-address-hard-fail=true")...))
	wantExit(t, err, 1)
	for _, word := range []string{server + " server", port, "address already in use"} {
		if !strings.Contains(out, word) {
			t.Errorf("with --bind-address-hard-fail the proxy says nothing of %q:\n%s", word, out)
		}
	}

	n.start(t, cluster.Login{})
	n.awaitProgrammed(t)
	n.AwaitLog(t, "Not served", "address already in use", port)
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the address is served", func() bool { return n.Status(t, "127.0.0.1:"+port, "/healthz") == 200 })
	n.AwaitLog(t, "Serving after all", port)
	n.healthy(t)
}

func wantExit(t *testing.T, err error, want int) {
	t.Helper()
	var exit *exec.ExitError
	if got := errors.As(err, &exit); !got || exit.ExitCode() != want {
		t.Errorf("the proxy ended with %v, want exit status %d", err, want)
	}
}

// TestBadKubeconfig checks that the start fails if no API server can ever be reached.
func TestBadKubeconfig(t *testing.T) {
	t.Parallel()
	lab := netlab.Start(t, netlab.Config{})
	for name, tc := range map[string]struct {
		text string // empty: there is no file
		want []string
	}{
		"missing":     {"", []string{"no such file", "kubeconfig"}},
		"no YAML":     {"clusters: [", []string{"yaml", "kubeconfig"}},
		"other kind":  {"apiVersion: v1\nkind: Service\n", []string{"Service", "kubeconfig"}},
		"empty":       {"apiVersion: v1\nkind: Config\n", []string{"names no cluster", "kubeconfig"}},
		"no context":  {"apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: c, cluster: {server: https://192.0.2.1}}]\n", []string{"context"}},
		"bad address": {kubeconfigFor("https://192.0.2.1:port"), []string{"192.0.2.1:port"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if tc.text != "" {
				kit.WriteFile(t, path, tc.text)
			}
			out, err := program.Run(t, lab.Node, kubeProxy.Command("--kubeconfig="+path))
			wantExit(t, err, 1)
			for _, word := range tc.want {
				if !strings.Contains(out, word) {
					t.Errorf("the proxy says nothing of %q:\n%s", word, out)
				}
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		out, err := program.Run(t, lab.Node, kubeProxy.Command())
		wantExit(t, err, 1)
		if !strings.Contains(out, "--kubeconfig") {
			t.Errorf("the proxy does not say what it wants:\n%s", out)
		}
	})
	t.Run("nobody there", func(t *testing.T) { testNoAPIServer(t, lab) })
}

func kubeconfigFor(server string) string {
	return `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "` + server + `"}}]
users: [{name: u, user: {token: t}}]
`
}

// testNoAPIServer checks that the start does not fail if the API server is down: it may
// start later.
func testNoAPIServer(t *testing.T, lab *netlab.Lab) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kit.WriteFile(t, path, kubeconfigFor("https://192.0.2.11:6443"))
	p := kubeProxy.Start(t, lab.Node, "--kubeconfig="+path)
	p.AwaitLog(t, "connection refused", "192.0.2.11:6443")
	p.AwaitLog(t, "Still reading and programming for the first time")
	if status := p.Status(t, program.HealthAddr, "/healthz"); status != 503 {
		t.Errorf("/healthz has status %d, want 503", status)
	}
	p.Stop(t)
}
