// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
	"kubeproxy/test/wine"
)

// hostProcess is the HostProcess pod that the chart gives, on a node.
type hostProcess struct {
	*mixed
	pod    corev1.PodSpec
	config map[string]string // data of the ConfigMap
	// mount is the folder of the image and the volumes, below drive C. Since containerd 1.7 it is
	// "hpc" for each pod, and volumes are at their mountPath, too:
	// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/#volume-mounts
	mount string
}

const kubeSystem = "kube-system"

// newHostProcess installs the chart in a cluster.
func newHostProcess(t *testing.T) *hostProcess {
	t.Helper()
	h := &hostProcess{mixed: &mixed{node: newNode(t, hns.Options{})}}
	h.Cluster = cluster.Start(t, cluster.Options{
		Host: h.Host("control"), Authorization: cluster.RBAC, Flags: []string{"--allow-privileged=true"},
	})
	h.idle = []string{"10.96.0.1"} // the API server's own
	for _, namespace := range []string{"shop", kubeSystem} {
		h.set(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}
	for _, n := range nodes() {
		h.set(t, n)
	}
	cmd := exec.CommandContext(t.Context(), program.ChartTool(t), "render", "-chart", filepath.Join("..", "..", "build", "chart"))
	cmd.Stdin = strings.NewReader("{apiServer: '" + h.Server + "', clusterCIDR: 10.244.0.0/16, linux: {enabled: false}, windows: {enabled: true}}")
	manifest, err := cmd.Output()
	if err == nil {
		err = h.Apply(t.Context(), manifest)
	}
	if err != nil {
		t.Fatal(err)
	}
	set, err := h.Client.AppsV1().DaemonSets(kubeSystem).Get(t.Context(), "kubeproxy-windows", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := h.Client.CoreV1().ConfigMaps(kubeSystem).Get(t.Context(), "kubeproxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.pod, h.config = set.Spec.Template.Spec, config.Data
	return h
}

// put writes a file of a volume where the runtime mounts it, in one step.
func (h *hostProcess) put(t *testing.T, name string, text []byte) {
	t.Helper()
	roots := []string{h.mount}
	if h.mount == "hpc" {
		roots = append(roots, "")
	}
	for _, root := range roots {
		path := filepath.Join(h.wine.Prefix(), "drive_c", root, filepath.FromSlash(name))
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".next", text, 0o755), os.Rename(path+".next", path))
		if err != nil {
			t.Fatal(err)
		}
	}
}

const account = "var/run/secrets/kubernetes.io/serviceaccount/"

// rotate writes a token that is valid until revoke is called.
func (h *hostProcess) rotate(t *testing.T, name string) (revoke func()) {
	t.Helper()
	bound := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: kubeSystem, Name: name}}
	secrets := h.Client.CoreV1().Secrets(kubeSystem)
	bound, err := secrets.Create(t.Context(), bound, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: name, UID: bound.UID},
	}}
	token, err := h.Client.CoreV1().ServiceAccounts(kubeSystem).CreateToken(t.Context(), h.pod.ServiceAccountName, ask, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h.put(t, account+"token", []byte(token.Status.Token))
	return func() {
		if err := secrets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// startPod starts the container as containerd does.
func (h *hostProcess) startPod(t *testing.T) {
	t.Helper()
	c := h.pod.Containers[0]
	mount := `C:\` + strings.ReplaceAll(h.mount, "/", `\`)
	words := strings.NewReplacer("$env:CONTAINER_SANDBOX_MOUNT_POINT", mount, "$(NODE_NAME)", netlab.NodeName)
	var line []string
	for _, word := range append(c.Command, c.Args...) {
		line = append(line, words.Replace(word))
	}
	env := []string{`CONTAINER_SANDBOX_MOUNT_POINT=` + mount + `\`, "NODE_NAME=" + netlab.NodeName}
	var err error
	if h.process, err = h.wine.Start(wine.Program{Path: line[0], Args: line[1:], Env: env}); err != nil {
		t.Fatal(err)
	}
}

// TestHostProcess runs the pod of the chart with its files where containerd 1.6 and 1.7 have
// them, until Services are in force. A new token and a kubeconfig with the paths of Linux work,
// too.
func TestHostProcess(t *testing.T) {
	h := newHostProcess(t)
	file, err := exe()
	if err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	login, err := h.Kubeconfig(cluster.Login{})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.LoadFromFile(login)
	if err != nil {
		t.Fatal(err)
	}
	web, cart, dns := shop()
	for _, mount := range []string{"C/0d5b", "hpc"} {
		t.Run(mount, func(t *testing.T) {
			h.mount = mount
			h.put(t, "kube-proxy.exe", image)
			for name, text := range h.config {
				h.put(t, "etc/kubeproxy/"+name, []byte(text))
			}
			h.put(t, account+"ca.crt", admin.Clusters[admin.Contexts[admin.CurrentContext].Cluster].CertificateAuthorityData)
			revoke := h.rotate(t, "first")
			h.publish(t, web)
			h.startPod(t)
			h.node.awaitProgrammed(t, web)

			// The API server forgets connections and answers about tokens.
			renewed := h.rotate(t, "second")
			revoke()
			if err := h.APIServer.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.publish(t, cart)
			h.node.awaitProgrammed(t, web, cart)
			h.stop(t)

			h.put(t, "etc/kubeproxy/kubeconfig.conf", []byte(strings.ReplaceAll(h.config["kubeconfig.conf"], "../../var", "/var")))
			h.publish(t, dns)
			h.startPod(t)
			h.node.awaitProgrammed(t, web, cart, dns)
			h.stop(t)
			renewed()
			for _, a := range []app{web, cart, dns} {
				if err := h.Delete(t.Context(), a.service(), a.slice()); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
