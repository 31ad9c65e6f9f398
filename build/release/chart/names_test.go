// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// TestKubeProxyNames checks the names by which others find kube-proxy. Each stands for one that looks for it.
func TestKubeProxyNames(t *testing.T) {
	all := installed(t, `
kubeProxyNames: true
metrics: {bindAddress: "0.0.0.0:10249"}
windows: {enabled: true}
monitoring: {serviceMonitor: {enabled: true}}
`)
	const checks = `{"kube_proxy":{"init_config":{},"instances":[{"prometheus_url":"http://%%host%%:10249/metrics"}]}}`
	for name, system := range map[string]string{"kube-proxy-kubeproxy": "linux", "kube-proxy-kubeproxy-windows": "windows"} {
		set := all["DaemonSet "+name]
		template := at(set, "spec", "template").(map[string]any)
		if at(template, "metadata", "labels", "k8s-app") != "kube-proxy" { // the e2e framework, and the Service of kube-prometheus-stack
			t.Errorf("%s: labels %v", name, at(template, "metadata", "labels"))
		}
		if at(template, "metadata", "annotations", "ad.datadoghq.com/kube-proxy.checks") != checks || at(template, "spec", "containers").([]any)[0].(map[string]any)["name"] != "kube-proxy" {
			t.Errorf("%s: annotations %v", name, at(template, "metadata", "annotations"))
		}
		if want := map[string]any{"app.kubernetes.io/name": "kubeproxy", "app.kubernetes.io/component": system}; !reflect.DeepEqual(at(set, "spec", "selector", "matchLabels"), want) {
			t.Errorf("%s selects %v", name, at(set, "spec", "selector"))
		}
	}
	service, monitor := all["Service kube-proxy-kubeproxy-metrics"], all["ServiceMonitor kubeproxy"]
	if at(service, "metadata", "labels", "k8s-app") != "kube-proxy" || at(monitor, "spec", "jobLabel") != "k8s-app" { // job="kube-proxy" of kubernetes-mixin
		t.Errorf("Service %v, ServiceMonitor %v", service, monitor)
	}
	if !reflect.DeepEqual(at(service, "spec", "selector"), map[string]any{"app.kubernetes.io/name": "kubeproxy"}) || at(service, "spec", "clusterIP") != "None" ||
		!reflect.DeepEqual(at(service, "spec", "ports"), []any{map[string]any{"name": "metrics", "port": 10249.0, "targetPort": "metrics"}}) {
		t.Errorf("Service %v", at(service, "spec"))
	}
	for values, want := range map[string]string{
		`{kubeProxyNames: true}`:                               `"http://localhost:10249/metrics"`,
		`{kubeProxyNames: true, tls: {secretName: s}}`:         `"https://localhost:10249/metrics","tls_verify":false`,
		`{kubeProxyNames: true, fullnameOverride: kube-proxy}`: `localhost`, // has the name already
	} {
		all := installed(t, values)
		name := "DaemonSet kube-proxy-kubeproxy"
		if strings.Contains(values, "fullname") {
			name = "DaemonSet kube-proxy"
		}
		if got, _ := at(all[name], "spec", "template", "metadata", "annotations", "ad.datadoghq.com/kube-proxy.checks").(string); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", values, got, want)
		}
		for key := range all {
			if strings.HasPrefix(key, "Service ") { // it would lead to a port that is closed
				t.Errorf("%s: %s", values, key)
			}
		}
	}
}

// TestSharedNames checks that two releases of one name in two namespaces have no object in common.
func TestSharedNames(t *testing.T) {
	seen := map[string]bool{}
	for _, namespace := range []string{Namespace, "team-a", "team-b"} {
		s := source()
		s.Namespace = namespace
		manifest, err := s.Manifest(everything)
		if err != nil {
			t.Fatal(err)
		}
		all := objects(t, []byte(manifest))
		for key, o := range all {
			within, _ := at(o, "metadata", "namespace").(string)
			if seen[within+" "+key] {
				t.Errorf("%s of namespace %q is that of another release", key, within)
			}
			seen[within+" "+key] = true
			if strings.HasPrefix(key, "ClusterRoleBinding ") && at(o, "roleRef", "name") != at(o, "metadata", "name") {
				t.Errorf("%s gives the rights of %v", key, at(o, "roleRef", "name"))
			}
		}
	}
}

// TestLabels checks the labels of all objects, and that those of pods and selectors stay when the version changes.
func TestLabels(t *testing.T) {
	s := source()
	s.Release, s.Version = "team", "v1.2.3+4"
	values := map[string]any{"commonLabels": map[string]any{"example.com/team": "net", "app.kubernetes.io/part-of": "platform"}}
	for key, value := range everything {
		values[key] = value
	}
	manifest, err := s.Manifest(values)
	if err != nil {
		t.Fatal(err)
	}
	for key, o := range objects(t, []byte(manifest)) {
		labels, _ := at(o, "metadata", "labels").(map[string]any)
		if key == "Pod team-kubeproxy-test" { // see TestHelmTest
			labels["app.kubernetes.io/name"] = strings.TrimSuffix(labels["app.kubernetes.io/name"].(string), "-test")
		}
		for label, want := range map[string]any{
			"app.kubernetes.io/name": "team-kubeproxy", "app.kubernetes.io/instance": "team", "app.kubernetes.io/version": "v1.2.3_4",
			"app.kubernetes.io/part-of": "platform", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "kubeproxy-0.0.0", "example.com/team": "net",
		} {
			if labels[label] != want {
				t.Errorf("%s: label %s is %v, want %v", key, label, labels[label], want)
			}
		}
		pod, _ := at(o, "spec", "template", "metadata", "labels").(map[string]any)
		if pod != nil && (pod["app.kubernetes.io/instance"] != "team" || pod["example.com/team"] != "net" || pod["app.kubernetes.io/version"] != nil || pod["helm.sh/chart"] != nil) {
			t.Errorf("the pods of %s have labels %v", key, pod)
		}
	}
}

// TestNamesAndPlaces checks values that charts around this one give, and those for names.
func TestNamesAndPlaces(t *testing.T) {
	const image, linux = "DaemonSet kubeproxy/spec/template/spec/containers/0/image", "DaemonSet kubeproxy/spec/template/spec"
	for values, wants := range map[string]map[string]string{
		`{global: {imageRegistry: "mirror.example:5000/k8s", imagePullSecrets: [{name: a}]}, image: {tag: v1, pullSecrets: [b, {name: a}]}}`: {
			image: "mirror.example:5000/k8s/kubeproxy-iptables:v1", linux + "/imagePullSecrets": "- name: b\n- name: a",
		},
		`{global: {imageRegistry: mirror.example}, image: {tag: v1, repository: "ghcr.example/team/kubeproxy"}}`: {image: "mirror.example/team/kubeproxy-iptables:v1"},
		`{global: {imageRegistry: mirror.example}, image: {tag: v1, repository: team/kubeproxy}}`:                {image: "mirror.example/team/kubeproxy-iptables:v1"},
		`{nameOverride: node, windows: {enabled: true}}`:                                                         {"DaemonSet kubeproxy-node-windows/spec/template/spec/serviceAccountName": "kubeproxy-node"},
		`{serviceAccount: {create: false, name: own}}`: {
			"ServiceAccount own": "null", linux + "/serviceAccountName": "own", "ClusterRoleBinding kubeproxy/subjects/0/name": "own",
		},
		`{serviceAccount: {name: own, annotations: {a: b}}}`:                                   {"ServiceAccount own/metadata/annotations": "a: b"},
		`{updateStrategy: {type: OnDelete}}`:                                                   {"DaemonSet kubeproxy/spec/updateStrategy": "type: OnDelete"},
		`{updateStrategy: {rollingUpdate: {maxUnavailable: 3}}}`:                               {"DaemonSet kubeproxy/spec/updateStrategy/rollingUpdate/maxUnavailable": "3"},
		`{priorityClassName: high, linux: {dnsPolicy: Default}}`:                               {linux + "/priorityClassName": "high", linux + "/dnsPolicy": "Default"},
		`{linux: {hostAliases: [{ip: 192.0.2.5, hostnames: [api]}]}}`:                          {linux + "/hostAliases": "- hostnames:\n  - api\n  ip: 192.0.2.5"},
		`{linux: {initResources: {limits: {cpu: 1}}}}`:                                         {linux + "/initContainers/0/resources": "limits:\n  cpu: 1\nrequests:\n  cpu: 10m\n  memory: 20Mi"},
		`{linux: {securityContext: {capabilities: {add: [ALL]}}}}`:                             {linux + "/containers/0/securityContext": "allowPrivilegeEscalation: false\ncapabilities:\n  add:\n  - ALL\n  drop:\n  - ALL\nreadOnlyRootFilesystem: true"},
		`{linux: {podSecurityContext: {fsGroup: 1}}}`:                                          {linux + "/securityContext": "fsGroup: 1\nrunAsGroup: 0\nrunAsUser: 0\nseccompProfile:\n  type: RuntimeDefault"},
		`{monitoring: {dashboard: {enabled: true, annotations: {grafana_folder: Network}}}}`:   {"ConfigMap kubeproxy-dashboard/metadata/annotations": "grafana_folder: Network"},
		`{linux: {config: {metricsBindAddress: ""}}, metrics: {bindAddress: "0.0.0.0:10249"}}`: {"DaemonSet kubeproxy/spec/template/spec/containers/0/ports/1/name": "metrics"},
		`{linux: {extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: [{name: a, mountPath: /a}]}}`: {
			linux + "/volumes/1": "emptyDir: {}\nname: a", linux + "/containers/0/volumeMounts/1": "mountPath: /a\nname: a",
		},
	} {
		all := installed(t, values)
		for path, want := range wants {
			text, err := yaml.Marshal(found(all, path))
			if err != nil || strings.TrimSpace(string(text)) != want {
				t.Errorf("%s: %s is\n%s%v, want\n%s", values, path, text, err, want)
			}
		}
	}
}

// found follows a path of keys and numbers from the kind and name of an object.
func found(all map[string]map[string]any, path string) any {
	parts := strings.Split(path, "/")
	var x any = all[parts[0]]
	if all[parts[0]] == nil {
		return nil
	}
	for _, part := range parts[1:] {
		if list, is := x.([]any); is {
			x = list[part[0]-'0']
			continue
		}
		x = at(x.(map[string]any), part)
	}
	return x
}

// TestApplyOverRelease merges the chart with other ports into what Helm installed, as kubectl apply does. Helm leaves no
// record by which kubectl could tell which port is gone.
func TestApplyOverRelease(t *testing.T) {
	for _, values := range []string{
		`{linux: {config: {healthzBindAddress: "0.0.0.0:20256"}}, metrics: {bindAddress: "0.0.0.0:20249"}}`,
		`{linux: {config: {healthzBindAddress: "[::]:10356"}}, metrics: {bindAddress: "127.0.0.1:10349"}}`,
	} {
		var texts [2][]byte
		for i, v := range []string{`{}`, values} {
			var err error
			if texts[i], err = json.Marshal(installed(t, v)["DaemonSet kubeproxy"]); err != nil {
				t.Fatal(err)
			}
		}
		meta, err := strategicpatch.NewPatchMetaFromStruct(appsv1.DaemonSet{})
		if err != nil {
			t.Fatal(err)
		}
		patch, err := strategicpatch.CreateThreeWayMergePatch(nil, texts[1], texts[0], meta, true)
		if err != nil {
			t.Fatal(err)
		}
		merged, err := strategicpatch.StrategicMergePatch(texts[0], patch, appsv1.DaemonSet{})
		var set appsv1.DaemonSet
		if err == nil {
			err = json.Unmarshal(merged, &set)
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, p := range set.Spec.Template.Spec.Containers[0].Ports {
			if p.Name != "" && seen[p.Name] {
				t.Errorf("%s: two ports are called %s: %v", values, p.Name, set.Spec.Template.Spec.Containers[0].Ports)
			}
			seen[p.Name] = true
		}
	}
}
