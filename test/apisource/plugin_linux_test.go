// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
	"kubeproxy/test/thirdparty"
)

// TestKubectlPlugin finds pods with a real kubectl and API server. There is no kubelet, so
// a script in place of kubectl prints what kubectl exec would be asked for.
func TestKubectlPlugin(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	for _, p := range []struct{ namespace, name, node, app string }{
		{"kube-system", "kubeproxy-a", "node-a", "kubeproxy"}, {"kube-system", "kubeproxy-b", "node-b", "kubeproxy"},
		{"kube-system", "other", "node-b", "other"}, {namespace, "cart-0", "node-b", "cart"},
	} {
		w.run(t, p.namespace, p.name, p.node, p.app)
	}
	path := w.plugin(t)
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"status --node node-a", 3, "--namespace=kube-system --container=kube-proxy kubeproxy-a -- kube-proxy status"},
		{"explain pod/" + namespace + "/cart-0 svc/" + namespace + "/web", 3, "--container=kube-proxy kubeproxy-b -- kube-proxy explain --hostname-override=node-b --pod-address=10.244.1.7 --pod-address=fd00:10:244::7 --pod-node=node-b pod/"},
		{"-n " + namespace + " status --node node-a", 2, "no pod with labels"},
		{"-n " + namespace + " status --node node-b", 2, `its service account is "cart", not "kubeproxy"`},
		{"status", 2, "want --node NODE, one of node-a, node-b"},
		{"status --node node-c", 2, "no pod with labels app.kubernetes.io/name=kubeproxy runs on node node-c"},
		{"explain pod/" + namespace + "/none svc/" + namespace + "/web", 2, `pods "none" not found`},
	} {
		cmd := exec.Command("kubectl", append([]string{"svcproxy", "--kubeconfig=" + w.kubeconfig(t, cluster.Login{})}, strings.Fields(tc.args)...)...)
		cmd.Path, cmd.Env = filepath.Join(path, "kubectl"), []string{"HOME=" + t.TempDir(), "PATH=" + path + ":/usr/bin:/bin"}
		out, err := program.Run(t, w.lab.Node, cmd)
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("%s: exit %d, want %d with %q\n%s", tc.args, code, tc.code, tc.want, out)
		}
	}
}

// run makes a pod that runs on a node.
func (w fixture) run(t *testing.T, namespace, name, node, app string) {
	t.Helper()
	kit.Until(t, "namespace "+namespace, func() bool {
		_, err := w.Client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		return err == nil
	})
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: app}}
	if _, err := w.Client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	pods := w.Client.CoreV1().Pods(namespace)
	p, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app.kubernetes.io/name": "kubeproxy"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: app, UID: "1", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, ServiceAccountName: app,
			Containers: []corev1.Container{{Name: "kube-proxy", Image: "none", Args: []string{"--hostname-override=$(NODE_NAME)"}}},
		},
	}, metav1.CreateOptions{})
	if err == nil {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.7", PodIPs: []corev1.PodIP{{IP: "10.244.1.7"}, {IP: "fd00:10:244::7"}}}
		_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// plugin returns a folder with kubectl and the plugin. Kubectl ends with 3 in place of
// running a command in a pod.
func (w fixture) plugin(t *testing.T) string {
	t.Helper()
	programs, err := thirdparty.Kubernetes.Build(t.Context(), os.Stderr, "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(folder, "kubectl-svcproxy"), "kubeproxy/cmd/kubectl-svcproxy")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	script := fmt.Sprintf("#!/bin/sh\nfor a; do case $a in exec) echo \"$@\"; exit 3;; --) break;; esac; done\nexec %s \"$@\"\n", filepath.Join(programs, "kubectl"))
	if err := os.WriteFile(filepath.Join(folder, "kubectl"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}
