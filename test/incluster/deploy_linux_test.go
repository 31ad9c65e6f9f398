// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"kubeproxy/test/cluster"
	"kubeproxy/test/program"
)

// folder is where the manifests are that users apply.
var folder = filepath.Join("..", "..", "build", "deploy", "linux")

const (
	system  = metav1.NamespaceSystem
	account = "kube-proxy"
)

// kustomization is as much of one as the deployment makes use of. More of it
// would be an error here.
type kustomization struct {
	APIVersion         string   `json:"apiVersion"`
	Kind               string   `json:"kind"`
	Namespace          string   `json:"namespace"`
	Resources          []string `json:"resources"`
	ConfigMapGenerator []struct {
		Name  string   `json:"name"`
		Files []string `json:"files"`
	} `json:"configMapGenerator"`
	GeneratorOptions struct {
		DisableNameSuffixHash bool `json:"disableNameSuffixHash"`
	} `json:"generatorOptions"`
	Images []struct {
		Name    string `json:"name"`
		NewName string `json:"newName"`
		NewTag  string `json:"newTag"`
	} `json:"images"`
}

// read returns a file of the deployment.
func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// deployment returns the documents that applying the folder applies.
func deployment(t *testing.T) []byte {
	t.Helper()
	var k kustomization
	if err := yaml.UnmarshalStrict(read(t, "kustomization.yaml"), &k); err != nil {
		t.Fatalf("kustomization.yaml: %v", err)
	}
	if !k.GeneratorOptions.DisableNameSuffixHash {
		t.Error("names of ConfigMaps get a hash at their end, so no running proxy sees a change")
	}
	var all []map[string]any
	for _, name := range k.Resources {
		all = append(all, documents(t, name)...)
	}
	for _, g := range k.ConfigMapGenerator {
		data := map[string]any{}
		for _, name := range g.Files {
			data[name] = string(read(t, name))
		}
		all = append(all, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": g.Name}, "data": data})
	}
	var out bytes.Buffer
	for _, o := range all {
		k.complete(o)
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}

// documents reads the documents of a file, none of which may name a field
// twice.
func documents(t *testing.T, name string) []map[string]any {
	t.Helper()
	var all []map[string]any
	reader := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(read(t, name))))
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		var o map[string]any
		if err == nil {
			err = yaml.UnmarshalStrict(text, &o)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if o != nil {
			all = append(all, o)
		}
	}
}

// complete sets the namespace and the images of o.
func (k *kustomization) complete(o map[string]any) {
	switch o["kind"] {
	case "ClusterRole", "ClusterRoleBinding":
	default:
		o["metadata"].(map[string]any)["namespace"] = k.Namespace
	}
	k.images(o)
}

// images replaces every image below x.
func (k *kustomization) images(x any) {
	switch x := x.(type) {
	case []any:
		for _, e := range x {
			k.images(e)
		}
	case map[string]any:
		for _, i := range k.Images {
			if x["image"] == i.Name {
				x["image"] = i.NewName + ":" + i.NewTag
			}
		}
		for _, e := range x {
			k.images(e)
		}
	}
}

// deploy applies the deployment, and logs in as the account that it makes.
func (w *world) deploy(t *testing.T) {
	t.Helper()
	if err := w.api.Apply(t.Context(), deployment(t)); err != nil {
		t.Fatalf("the deployment: %v", err)
	}
	token, err := w.api.Client.CoreV1().ServiceAccounts(system).
		CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.token = token.Status.Token
	if w.login, err = w.api.Kubeconfig(cluster.Login{Token: w.token}); err != nil {
		t.Fatal(err)
	}
}

// testDeployment looks at what was applied: that a pod of it can be made, that
// what it mounts is there, and that the proxy runs with the configuration in
// it.
func testDeployment(t *testing.T, w *world) {
	set, err := w.api.Client.AppsV1().DaemonSets(system).Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := set.Spec.Template.Spec
	spec.NodeName = node().Name
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "kube-proxy-test", Labels: set.Spec.Template.Labels}, Spec: spec}
	if _, err := w.api.Client.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("a pod of the DaemonSet: %v", err)
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		if c.Image != "kube-proxy:dev" {
			t.Errorf("image of container %s = %q, want that of the kustomization", c.Name, c.Image)
		}
	}
	const ofKubeadm = "kube-proxy"
	file := ""
	for _, v := range spec.Volumes {
		if v.ConfigMap == nil || v.ConfigMap.Name == ofKubeadm {
			continue
		}
		m, err := w.api.Client.CoreV1().ConfigMaps(system).Get(t.Context(), v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("volume %s: %v", v.Name, err)
		}
		file = filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(m.Data["config.yaml"]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := program.Run(t, w.Node, exec.Command(kubeProxy.Path, "config", "validate", file)); err != nil {
		t.Errorf("config validate: %v\n%s", err, out)
	}
	w.means.Pods.Prefixes = w.means.Pods.Prefixes[:1] // the file names IPv4 alone
	defer func() { w.means.Pods.Prefixes = w.means.Pods.Prefixes[:2] }()
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(2)...), web)...)
	p := w.run(t, "--config="+file, "--kubeconfig="+w.login)
	w.settle(t).Check(t, w.calls(t, web))
	p.Stop(t)
}
