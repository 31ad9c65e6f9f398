// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// rendered returns the chart's objects for values in YAML and flags of the tool. With a
// kubeconfig, the chart asks the cluster for the address of the API server.
func rendered(t *testing.T, w *fixture, tool, values string, flags ...string) []byte {
	t.Helper()
	if !strings.Contains(strings.Join(flags, " "), "-kubeconfig=") {
		values = withServer(t, values)
	}
	out, err := render(t, w, tool, values, flags...)
	if err != nil {
		t.Fatalf("render with %s: %v\n%s", values, err, out)
	}
	return []byte(out)
}

func render(t *testing.T, w *fixture, tool, values string, flags ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(tool, append([]string{"render", "-chart", filepath.Join("..", "..", "build", "chart")}, flags...)...)
	cmd.Stdin = strings.NewReader(values)
	return program.Run(t, w.Host("control"), cmd)
}

// withServer returns values that have an address of the API server.
func withServer(t *testing.T, values string) string {
	t.Helper()
	all := map[string]any{"apiServer": "https://192.0.2.9"}
	err := yaml.Unmarshal([]byte(values), &all)
	text, marshalErr := yaml.Marshal(all)
	if err := errors.Join(err, marshalErr); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// acceptedValues returns the values that build/release lists for the chart, in YAML.
func acceptedValues(t *testing.T) []string {
	t.Helper()
	var matrix struct{ Accepted []map[string]any }
	for _, name := range []string{"values.yaml", "teams.yaml"} {
		var one struct{ Accepted []map[string]any }
		text, err := os.ReadFile(filepath.Join("..", "..", "build", "release", "chart", "testdata", name))
		if err == nil {
			err = yaml.Unmarshal(text, &one)
		}
		if err != nil || len(one.Accepted) < 10 {
			t.Fatalf("%s has %d values: %v", name, len(one.Accepted), err)
		}
		matrix.Accepted = append(matrix.Accepted, one.Accepted...)
	}
	var all []string
	for _, values := range matrix.Accepted {
		text, err := yaml.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return all
}

// acceptMonitoring has the API server know the kinds of Prometheus' operator. Their fields
// are checked in build/release.
func (w *fixture) acceptMonitoring(t *testing.T) {
	t.Helper()
	for plural, kind := range map[string]string{"podmonitors": "PodMonitor", "servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"} {
		w.acceptKind(t, "monitoring.coreos.com", "v1", plural, kind)
	}
}

// acceptKind has the API server know a kind, with any fields.
func (w *fixture) acceptKind(t *testing.T, group, version, plural, kind string) {
	t.Helper()
	crd := fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: %[3]s, singular: %[5]s, kind: %[4]s}
  versions:
  - {name: %[2]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, group, version, plural, kind, strings.ToLower(kind))
	if err := w.api.Apply(t.Context(), []byte(crd)); err != nil {
		t.Fatal(err)
	}
	one := fmt.Sprintf("apiVersion: %s/%s\nkind: %s\nmetadata: {name: one, namespace: default}\n", group, version, kind)
	kit.Until(t, "the kind "+kind, func() bool { return w.api.Try(t.Context(), []byte(one)) == nil })
}

// testChart has the API server check what the chart gives for many values, and installs
// it beside the objects of kubeadm.
func testChart(t *testing.T, w *fixture) {
	tool := program.ChartTool(t)
	w.acceptMonitoring(t)
	for _, values := range acceptedValues(t) {
		manifest := rendered(t, w, tool, values)
		if err := errors.Join(w.api.Try(t.Context(), manifest), readable(manifest)); err != nil {
			t.Errorf("values %s: %v", values, err)
		}
	}
	admin := w.kubeconfig(t, cluster.Login{})
	t.Run("without an address", func(t *testing.T) { testNoAddress(t, w, tool, admin) })
	t.Run("cluster-info", func(t *testing.T) {
		w.configMap(t, metav1.NamespacePublic, "cluster-info", "kubeconfig", serverAt("https://192.0.2.1:6443"))
		testServer(t, rendered(t, w, tool, "{}", "-kubeconfig="+admin), "https://192.0.2.1:6443")
	})
	t.Run("beside kubeadm", func(t *testing.T) { testBeside(t, w, tool, admin) })
	t.Run("second release", func(t *testing.T) { testSecondRelease(t, w, tool) })
	t.Run("pod security", func(t *testing.T) { testPodSecurity(t, w, tool) })
	testServer(t, rendered(t, w, tool, `{apiServer: "https://192.0.2.3"}`, "-kubeconfig="+admin), "https://192.0.2.3")
}

// readable reads the configuration files in the objects of the chart as the program does.
func readable(manifest []byte) error {
	for document := range strings.SplitSeq(string(manifest), "---\n") {
		var m corev1.ConfigMap
		if yaml.Unmarshal([]byte(document), &m) != nil || m.Kind != "ConfigMap" {
			continue
		}
		for _, system := range []config.OS{config.Linux, config.Windows} {
			text, is := m.Data[string(system)+".yaml"]
			flags := &config.Flags{Modes: modes.All().Config(), Config: string(system) + ".yaml", StrictConfig: true}
			if _, err := config.LoadFrom(flags, system, []byte(text)); is && err != nil {
				return err
			}
		}
	}
	return nil
}

// testSecondRelease installs the chart for labelled Services beside the chart for the rest.
func testSecondRelease(t *testing.T, w *fixture, tool string) {
	values := "{extraArgs: [--service-proxy-name=team], metrics: {bindAddress: '127.0.0.1:10349'}, linux: {config: {healthzBindAddress: '[::]:10356'}}}"
	for _, manifest := range [][]byte{rendered(t, w, tool, "{}"), rendered(t, w, tool, values, "-release", "team")} {
		if err := w.api.Apply(t.Context(), manifest); err != nil {
			t.Fatal(err)
		}
	}
	sets, err := w.api.Client.AppsV1().DaemonSets(system).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range sets.Items {
		template := labels.Set(sets.Items[i].Spec.Template.Labels)
		for j := range sets.Items {
			selector, err := metav1.LabelSelectorAsSelector(sets.Items[j].Spec.Selector)
			if err != nil || selector.Matches(template) != (i == j) {
				t.Errorf("DaemonSet %s selects the pods of %s: %v, %v", sets.Items[j].Name, sets.Items[i].Name, selector.Matches(template), err)
			}
		}
	}
}

// serverAt returns a kubeconfig with a server.
func serverAt(address string) string {
	return "apiVersion: v1\nkind: Config\nclusters:\n- name: default\n  cluster: {server: '" + address + "'}\n"
}

// configMap creates a ConfigMap. It stays: testBeside checks that kubeadm's goes first, and
// deletes both.
func (w *fixture) configMap(t *testing.T, namespace, name, key, text string) {
	t.Helper()
	client := w.api.Client.CoreV1()
	_, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: text}}
	if _, err := client.ConfigMaps(namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// kubeconfigOf returns the kubeconfig in the objects of the chart.
func kubeconfigOf(t *testing.T, manifest []byte) string {
	t.Helper()
	for document := range strings.SplitSeq(string(manifest), "---\n") {
		var m corev1.ConfigMap
		if yaml.Unmarshal([]byte(document), &m) == nil && m.Kind == "ConfigMap" && m.Name == "kubeproxy" {
			return m.Data["kubeconfig.conf"]
		}
	}
	t.Fatalf("no ConfigMap in\n%s", manifest)
	return ""
}

func testServer(t *testing.T, manifest []byte, want string) {
	t.Helper()
	if text := kubeconfigOf(t, manifest); !strings.Contains(text, `server: "`+want+`"`) {
		t.Errorf("want the server %s in\n%s", want, text)
	}
}

// testNoAddress installs the chart in a cluster in which it finds no address.
func testNoAddress(t *testing.T, w *fixture, tool, admin string) {
	out, err := render(t, w, tool, "{}", "-kubeconfig="+admin)
	if err == nil || !strings.Contains(out, "apiServer is not set, and no ConfigMap of the cluster has the address") {
		t.Errorf("rendered without an address: %v\n%s", err, out)
	}
}
