// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/program"
)

// TestDiffWithTheAPIServer compares what a node has, and manifests, with what the API
// server says. The Events of a support-dump need rights that the proxy does not have.
func TestDiffWithTheAPIServer(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("web"), newSlice("web", netip.MustParseAddr("10.244.1.11"), 2))
	kubeconfig := "--kubeconfig=" + w.kubeconfig(t, cluster.Login{})
	folder, other := t.TempDir(), newService("other")
	other.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	other.Spec.ClusterIP, other.Spec.ClusterIPs = "10.96.0.77", []string{"10.96.0.77"}
	if err := os.WriteFile(filepath.Join(folder, "web.yaml"), program.Manifest[any](t, other), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (code int, out string) {
		cmd := exec.Command(kubeProxy.Path, append(args, "--hostname-override=node-a")...)
		out, err := program.Run(t, w.lab.Node, cmd)
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out
	}
	if code, out := run("diff", kubeconfig); code != 1 || !strings.Contains(out, "from what the node has to the API server") || !strings.Contains(out, "default/web") {
		t.Errorf("with the node: exit %d\n%s", code, out)
	}
	if code, out := run("diff", "--from=api", kubeconfig, "--manifests="+folder); code != 1 || !strings.Contains(out, "- default/web") || !strings.Contains(out, "+ default/other") {
		t.Errorf("with manifests: exit %d\n%s", code, out)
	}
	archive := filepath.Join(t.TempDir(), "dump.tar.gz")
	if code, out := run("support-dump", kubeconfig, archive); code != 1 || strings.Contains(out, "events.json") {
		t.Errorf("support-dump: exit %d\n%s", code, out)
	}
}
