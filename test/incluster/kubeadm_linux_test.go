// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
	"kubeproxy/test/thirdparty"
)

// testBeside installs the chart in a cluster whose kube-proxy is kubeadm's. The objects of
// kubeadm do not change, and the chart finds the API server there.
func testBeside(t *testing.T, w *fixture, tool, admin string) {
	w.installAddon(t, admin)
	before := w.stock(t)
	manifest := rendered(t, w, tool, "{}", "-kubeconfig="+admin)
	testServer(t, manifest, "https://192.0.2.2:6443")
	if err := w.api.Apply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	if after := w.stock(t); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("kubeadm's DaemonSet was changed:\n%s", cmp.Diff(before.Spec, after.Spec))
	}
	w.testAside(t, admin, before)
	w.testAddonConfig(t)
	// When kubeadm's ConfigMap goes, an upgrade keeps the address that is installed.
	for _, m := range [][2]string{{system, "kube-proxy"}, {metav1.NamespacePublic, "cluster-info"}} {
		if err := w.api.Client.CoreV1().ConfigMaps(m[0]).Delete(t.Context(), m[1], metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	testServer(t, rendered(t, w, tool, "{}", "-kubeconfig="+admin), "https://192.0.2.2:6443")
}

// installAddon has kubeadm create what it creates for kube-proxy, or restore it as its
// upgrade does.
func (w *fixture) installAddon(t *testing.T, admin string) {
	t.Helper()
	programs, err := thirdparty.Kubeadm.Build(t.Context(), os.Stderr, "kubeadm")
	if err != nil {
		t.Fatal(err)
	}
	version, err := w.api.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(programs, "kubeadm"), "init", "phase", "addon", "kube-proxy", "--kubeconfig="+admin,
		"--kubernetes-version="+version.GitVersion, "--apiserver-advertise-address=192.0.2.2", "--pod-network-cidr=10.244.0.0/16")
	if out, err := program.Run(t, w.Host("control"), cmd); err != nil {
		t.Fatalf("kubeadm: %v\n%s", err, out)
	}
}

// stock returns kubeadm's DaemonSet.
func (w *fixture) stock(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	d, err := w.api.Client.AppsV1().DaemonSets(system).Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// stockPatch finds patches of kubeadm's DaemonSet in a page.
var stockPatch = regexp.MustCompile(`kubectl -n kube-system patch daemonset kube-proxy --type=merge (?:\\\s+)?-p '([^']+)'`)

// testAside applies the patches of docs/install.md: kube-proxy put aside, or moved aside
// node by node, and started again. An upgrade by kubeadm that does not skip the addon
// takes them back, as that page says.
func (w *fixture) testAside(t *testing.T, admin string, before *appsv1.DaemonSet) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	patches := stockPatch.FindAllSubmatch(page, -1)
	if len(patches) != 3 {
		t.Fatalf("docs/install.md has %d patches of kubeadm's DaemonSet, want three", len(patches))
	}
	aside, byNode, back := patches[0][1], patches[1][1], patches[2][1]
	patch := func(text []byte) *appsv1.DaemonSet {
		t.Helper()
		d, err := w.api.Client.AppsV1().DaemonSets(system).Patch(t.Context(), "kube-proxy", types.MergePatchType, text, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	isAside := func(d *appsv1.DaemonSet) bool { return d.Spec.Template.Spec.NodeSelector["service-proxy"] != "" }
	if d := patch(aside); !isAside(d) || d.Spec.Template.Spec.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("put aside: the node selector is %v", d.Spec.Template.Spec.NodeSelector)
	}
	if d := patch(back); !cmp.Equal(d.Spec, before.Spec) {
		t.Errorf("back: -kubeadm's +ours:\n%s", cmp.Diff(before.Spec, d.Spec))
	}
	patch(aside)
	if d := patch(byNode); !strings.Contains(d.Spec.Template.Spec.Affinity.String(), "service-proxy") {
		t.Errorf("node by node: the affinity is %v", d.Spec.Template.Spec.Affinity)
	}
	if d := patch(back); !cmp.Equal(d.Spec, before.Spec) {
		t.Errorf("back: -kubeadm's +ours:\n%s", cmp.Diff(before.Spec, d.Spec))
	}
	patch(aside)
	if w.installAddon(t, admin); isAside(w.stock(t)) {
		t.Error("kubeadm keeps kube-proxy aside; docs/install.md says that it starts it again")
	}
}

// testAddonConfig checks that this proxy takes kubeadm's configuration as it is.
func (w *fixture) testAddonConfig(t *testing.T) {
	m, err := w.api.Client.CoreV1().ConfigMaps(system).Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.conf")
	kit.WriteFile(t, file, m.Data["config.conf"])
	if out, err := program.Run(t, w.Node, exec.Command(kubeProxy.Path, "config", "validate", file)); err != nil {
		t.Errorf("kubeadm's configuration: %v\n%s", err, out)
	}
}
