// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// everything are values with which the chart installs all of its objects.
var everything = map[string]any{
	"apiServer":  noServer,
	"windows":    map[string]any{"enabled": true},
	"metrics":    map[string]any{"bindAddress": "0.0.0.0:10249"},
	"podLabels":  map[string]any{"team": "net"},
	"monitoring": map[string]any{"podMonitor": map[string]any{"enabled": true}, "rules": map[string]any{"enabled": true}, "dashboard": map[string]any{"enabled": true}},
}

// installedAs returns the objects of a release, see objects.
func installedAs(t *testing.T, release string) map[string]map[string]any {
	t.Helper()
	s := source()
	s.Release = release
	manifest, err := s.Manifest(everything)
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, []byte(manifest))
}

// TestSecondRelease checks that a release beside the first one has objects and pods of its
// own, which find each other.
func TestSecondRelease(t *testing.T) {
	first := installedAs(t, "kubeproxy")
	for release, name := range map[string]string{"team": "team-kubeproxy", "kubeproxy-team": "kubeproxy-team"} {
		second := installedAs(t, release)
		if len(second) != len(first) || len(first) < 9 {
			t.Errorf("release %s has %d objects, the first one %d", release, len(second), len(first))
		}
		for key, o := range second {
			if first[key] != nil {
				t.Errorf("both releases have %s", key)
			}
			own := name
			if key == "Pod "+name+"-test" { // see TestHelmTest
				own += "-test"
			}
			if !strings.Contains(key, name) || at(o, "metadata", "labels", "app.kubernetes.io/name") != own {
				t.Errorf("release %s has %s with labels %v", release, key, at(o, "metadata", "labels"))
			}
		}
		for _, key := range []string{"DaemonSet " + name, "DaemonSet " + name + "-windows"} {
			checkReferences(t, second, key, name)
		}
		binding := second["ClusterRoleBinding "+name]
		if at(binding, "roleRef", "name") != name || at(binding["subjects"].([]any)[0].(map[string]any), "name") != name {
			t.Errorf("the binding of release %s leads elsewhere: %v", release, binding)
		}
		if got := at(second["PodMonitor "+name], "spec", "selector", "matchLabels", "app.kubernetes.io/name"); got != name {
			t.Errorf("the PodMonitor of release %s selects %v", release, got)
		}
	}
}

// checkReferences checks that a DaemonSet selects its own pods, and that these refer to
// the objects with name.
func checkReferences(t *testing.T, all map[string]map[string]any, key, name string) {
	t.Helper()
	selector, _ := at(all[key], "spec", "selector", "matchLabels").(map[string]any)
	labels, _ := at(all[key], "spec", "template", "metadata", "labels").(map[string]any)
	for label, value := range selector {
		if labels[label] != value {
			t.Errorf("%s selects %v, and its pods have %v", key, selector, labels)
		}
	}
	if selector["app.kubernetes.io/name"] != name {
		t.Errorf("%s selects pods of another release: %v", key, selector)
	}
	pod := at(all[key], "spec", "template", "spec").(map[string]any)
	isConfig := func(v any) bool { return at(v.(map[string]any), "configMap", "name") == name }
	if pod["serviceAccountName"] != name || !slices.ContainsFunc(pod["volumes"].([]any), isConfig) {
		t.Errorf("%s has account %v and volumes %v", key, pod["serviceAccountName"], pod["volumes"])
	}
}

// TestSelectorsStay checks what an upgrade may not change: the API server refuses another
// selector for a DaemonSet.
func TestSelectorsStay(t *testing.T) {
	for name, system := range map[string]string{"kubeproxy": "linux", "kubeproxy-windows": "windows"} {
		want := map[string]any{"app.kubernetes.io/name": "kubeproxy", "app.kubernetes.io/component": system}
		labelled := installed(t, "{windows: {enabled: true}, commonLabels: {a: b}, podLabels: {c: d}}")
		for _, all := range []map[string]map[string]any{installedAs(t, "kubeproxy"), labelled} {
			if got := at(all["DaemonSet "+name], "spec", "selector", "matchLabels"); !reflect.DeepEqual(got, want) {
				t.Errorf("DaemonSet %s selects %v, want %v", name, got, want)
			}
		}
	}
}

// TestPodControls checks that what a user says of pods is in the pods of both systems.
func TestPodControls(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	all := installed(t, `
image: {tag: v1, digest: "`+digest+`", windowsDigest: "`+strings.ReplaceAll(digest, "0", "f")+`"}
linux: {env: [{name: GOMEMLIMIT, value: 500MiB}], affinity: {nodeAffinity: {}}}
windows: {enabled: true, env: [{name: NO_PROXY, value: .example}], affinity: {podAffinity: {}}}
tolerations: [{key: pool, operator: Exists}]
podAnnotations: {note: a}
podLabels: {team: net}
`)
	for name, want := range map[string][]any{
		"kubeproxy":         {"localhost/kubeproxy-iptables:v1@" + digest, "GOMEMLIMIT", "nodeAffinity"},
		"kubeproxy-windows": {"localhost/kubeproxy:v1@" + strings.ReplaceAll(digest, "0", "f"), "NO_PROXY", "podAffinity"},
	} {
		template := at(all["DaemonSet "+name], "spec", "template").(map[string]any)
		pod := template["spec"].(map[string]any)
		container := pod["containers"].([]any)[0].(map[string]any)
		env := container["env"].([]any)
		got := []any{container["image"], at(env[len(env)-1].(map[string]any), "name"), at(pod, "affinity", want[2].(string)) != nil}
		if !reflect.DeepEqual(got, []any{want[0], want[1], true}) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if !reflect.DeepEqual(pod["tolerations"], []any{map[string]any{"key": "pool", "operator": "Exists"}}) {
			t.Errorf("%s tolerates %v", name, pod["tolerations"])
		}
		if at(template, "metadata", "labels", "team") != "net" || at(template, "metadata", "annotations", "note") != "a" {
			t.Errorf("%s has %v", name, template["metadata"])
		}
	}
}
