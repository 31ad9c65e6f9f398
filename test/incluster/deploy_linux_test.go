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
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// folder contains the manifests that users apply, each deployment in a folder of its own.
var folder = filepath.Join("..", "..", "build", "deploy")

const (
	system  = metav1.NamespaceSystem
	account = "kubeproxy"
)

// kustomization contains the field that a deployment's objects do not show. The tests of
// build/release build the folder as kubectl does.
type kustomization struct {
	ConfigMapGenerator []struct {
		Name      string   `json:"name"`
		Namespace string   `json:"namespace"`
		Files     []string `json:"files"`
	} `json:"configMapGenerator"`
	GeneratorOptions struct {
		DisableNameSuffixHash bool `json:"disableNameSuffixHash"`
	} `json:"generatorOptions"`
}

// read returns a file of the deployment.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// deployment returns the documents that applying a folder applies.
func deployment(t *testing.T, name string) []byte {
	t.Helper()
	return program.Manifest(t, built(t, filepath.Join(folder, name))...)
}

// built returns the objects of a folder with a kustomization.
func built(t *testing.T, dir string) []map[string]any {
	t.Helper()
	var k kustomization
	if err := yaml.Unmarshal(read(t, dir, "kustomization.yaml"), &k); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	if !k.GeneratorOptions.DisableNameSuffixHash {
		t.Errorf("%s: names of ConfigMaps get a hash at their end, so no running proxy sees a change", dir)
	}
	all := documents(t, filepath.Join(dir, "objects.yaml"))
	for _, g := range k.ConfigMapGenerator {
		data := map[string]any{}
		for _, name := range g.Files {
			data[name] = string(read(t, dir, name))
		}
		all = append(all, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": g.Name, "namespace": g.Namespace}, "data": data})
	}
	return all
}

// documents reads the documents of a file. A duplicate field is an error.
func documents(t *testing.T, path string) []map[string]any {
	t.Helper()
	var all []map[string]any
	reader := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(read(t, path))))
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
			t.Fatalf("%s: %v", path, err)
		}
		if o != nil {
			all = append(all, o)
		}
	}
}

// deploy applies the deployment, and logs in as its ServiceAccount.
func (w *fixture) deploy(t *testing.T) {
	t.Helper()
	if err := w.api.Apply(t.Context(), deployment(t, "linux")); err != nil {
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

// pods validates a pod of a DaemonSet at the API server, and returns its spec and the
// configuration for its system, in a file.
func (w *fixture) pods(t *testing.T, name, image string) (spec corev1.PodSpec, file string) {
	t.Helper()
	set, err := w.api.Client.AppsV1().DaemonSets(system).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec = set.Spec.Template.Spec
	spec.NodeName = node().Name
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, GenerateName: name + "-", Labels: set.Spec.Template.Labels}, Spec: spec}
	if _, err := w.api.Client.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("a pod of the DaemonSet %s: %v", name, err)
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		if c.Image != image {
			t.Errorf("image of container %s = %q, want %s", c.Name, c.Image, image)
		}
	}
	for _, v := range spec.Volumes {
		if v.Projected == nil { // the kubeconfig is of the cluster, and w.login stands for it
			continue
		}
		m, err := w.api.Client.CoreV1().ConfigMaps(system).Get(t.Context(), v.Projected.Sources[0].ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("volume %s: %v", v.Name, err)
		}
		file = filepath.Join(t.TempDir(), "config.yaml")
		kit.WriteFile(t, file, m.Data[spec.NodeSelector[corev1.LabelOSStable]+".yaml"])
	}
	return spec, file
}

// validate checks a configuration for a system, and returns the notes on it.
func (w *fixture) validate(t *testing.T, file, system string) string {
	t.Helper()
	out, err := program.Run(t, w.Node, exec.Command(kubeProxy.Path, "config", "validate", "--os="+system, file))
	if err != nil {
		t.Errorf("config validate for %s: %v\n%s", system, err, out)
	}
	return string(out)
}

// testDeployment checks that a pod of the deployment can be created, that its mounts
// exist, and that the proxy runs with its configuration.
func testDeployment(t *testing.T, w *fixture) {
	_, file := w.pods(t, "kubeproxy", "localhost/kubeproxy-iptables:dev")
	w.validate(t, file, "linux")
	w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:1] // the file has IPv4 only
	defer func() { w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:2] }()
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(2)...), web)...)
	p := w.run(t, "--config="+file, "--kubeconfig="+w.login)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	p.Stop(t)
}

// testWindowsDeployment applies the deployment for Windows, and the one for nodes of both
// systems.
func testWindowsDeployment(t *testing.T, w *fixture) {
	for _, name := range []string{"windows", "mixed"} {
		if err := w.api.Apply(t.Context(), deployment(t, name)); err != nil {
			t.Fatalf("deployment %s: %v", name, err)
		}
		spec, file := w.pods(t, "kubeproxy-windows", "localhost/kubeproxy:dev")
		if o := spec.SecurityContext.WindowsOptions; o == nil || o.HostProcess == nil || !*o.HostProcess || !spec.HostNetwork || spec.NodeSelector[corev1.LabelOSStable] != "windows" {
			t.Errorf("%s: pods are no HostProcess pods of Windows nodes: %+v", name, spec)
		}
		if text := w.validate(t, file, "windows"); strings.Contains(text, "note: ") {
			t.Errorf("remarks on the configuration of %s: %s", name, text)
		}
	}
	spec, file := w.pods(t, "kubeproxy", "localhost/kubeproxy-iptables:dev")
	if spec.NodeSelector[corev1.LabelOSStable] != "linux" {
		t.Errorf("the pods for Linux go to nodes with %v", spec.NodeSelector)
	}
	w.validate(t, file, "linux")
	w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:1]
	defer func() { w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:2] }()
	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(1)...), web)...)
	p := w.run(t, "--config="+file, "--kubeconfig="+w.login)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	p.Stop(t)
}
