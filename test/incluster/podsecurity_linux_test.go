// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// testPodSecurity asks the API server what the levels of Pod Security have against the
// pods of the chart. docs/SECURITY.md lists all of it, and nothing else.
func testPodSecurity(t *testing.T, w *fixture, tool string) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, listed, _ := strings.Cut(string(page), "### Pod Security")
	listed, _, _ = strings.Cut(listed, "\n#")
	var want strings.Builder
	for _, p := range []struct{ name, values string }{
		{"Linux, every mode", "{}"},
		{"Linux, `linux.socketAcceleration: true`", "{linux: {socketAcceleration: true}}"},
		{"Linux, `image.variant: plain`", "{image: {variant: plain}}"},
		{"Windows", "{linux: {enabled: false}, windows: {enabled: true}}"},
	} {
		pod := podOf(t, rendered(t, w, tool, p.values))
		for _, level := range []string{"baseline", "restricted"} {
			want.WriteString("| " + p.name + " | " + level + " | " + strings.Join(w.objections(t, pod, level), "; ") + " |\n")
		}
	}
	if !strings.HasSuffix(strings.TrimSpace(listed), strings.TrimSpace(want.String())) {
		t.Errorf("docs/SECURITY.md has another table; the API server says\n%s", want.String())
	}
}

// podOf returns the pod of the DaemonSet in the objects of the chart.
func podOf(t *testing.T, manifest []byte) *corev1.Pod {
	t.Helper()
	for document := range strings.SplitSeq(string(manifest), "---\n") {
		var d appsv1.DaemonSet
		if yaml.Unmarshal([]byte(document), &d) == nil && d.Kind == "DaemonSet" {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "kubeproxy-"}, Spec: d.Spec.Template.Spec}
		}
	}
	t.Fatalf("no DaemonSet in\n%s", manifest)
	return nil
}

// objections returns what the API server has against pod in a namespace of a level.
func (w *fixture) objections(t *testing.T, pod *corev1.Pod, level string) []string {
	t.Helper()
	client := w.api.Client.CoreV1()
	space, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "level-", Labels: map[string]string{"pod-security.kubernetes.io/warn": level},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	result := client.RESTClient().Post().Namespace(space.Name).Resource("pods").Body(pod).
		VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, scheme.ParameterCodec).Do(t.Context())
	if err := result.Error(); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, x := range result.Warnings() {
		_, text, _ := strings.Cut(x.Text, ": ")
		all = append(all, text)
	}
	return all
}
