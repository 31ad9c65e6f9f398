// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

// matrix is testdata/values.yaml and teams.yaml.
type matrix struct {
	Accepted []map[string]any
	Refused  []struct {
		Values map[string]any
		Error  string
	}
}

func readMatrix(t *testing.T) (m matrix) {
	t.Helper()
	for _, name := range []string{"values.yaml", "teams.yaml"} {
		var one matrix
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err == nil {
			err = yaml.UnmarshalStrict(text, &one)
		}
		must(t, err)
		m.Accepted, m.Refused = append(m.Accepted, one.Accepted...), append(m.Refused, one.Refused...)
	}
	return m
}

// TestValues renders the chart with values that are accepted, and checks that others are
// refused by their name.
func TestValues(t *testing.T) {
	m := readMatrix(t)
	for _, values := range m.Accepted {
		if _, err := source().Manifest(withServer(values)); err != nil {
			t.Errorf("%v: %v", values, err)
		}
	}
	for _, r := range m.Refused {
		if _, err := source().Manifest(withServer(r.Values)); err == nil || !strings.Contains(err.Error(), r.Error) {
			t.Errorf("%v: %v, want an error with %s", r.Values, err, r.Error)
		}
	}
}

// TestMigrated renders the values that kube-proxy config migrate --values prints, and kubeadm's
// config.conf as it is.
func TestMigrated(t *testing.T) {
	folder := filepath.Join("..", "..", "..", "cmd", "kube-proxy", "testdata", "values")
	found, err := filepath.Glob(filepath.Join(folder, "*.values.yaml"))
	if err != nil || len(found) < 8 {
		t.Fatalf("%q, %v", found, err)
	}
	for _, name := range found {
		text, err := os.ReadFile(name)
		must(t, err)
		installed(t, string(text))
	}
	var o struct{ Data map[string]string }
	text, err := os.ReadFile(filepath.Join(folder, "kubeadm.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &o)
	}
	must(t, err)
	given := strings.ReplaceAll("\n"+o.Data["config.conf"], "\n", "\n    ")
	data := at(installed(t, "windows:\n  enabled: true\n  config:"+given+"\nlinux:\n  mode: iptables\n  config:"+given)["ConfigMap kubeproxy"], "data").(map[string]any)
	for _, system := range []string{"linux.yaml", "windows.yaml"} {
		text := data[system].(string)
		for _, want := range []string{"healthzBindAddress: '[::]:10256'\n", "metricsBindAddress: 127.0.0.1:10249\n", "clusterCIDR: 10.244.0.0/16\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: want %s in\n%s", system, want, text)
			}
		}
		if strings.Contains(text, "null") || strings.Contains(text, "kubeconfig") || strings.Contains(text, `""`) {
			t.Errorf("%s has what the chart leaves out:\n%s", system, text)
		}
	}
	if text := data["linux.yaml"].(string); !strings.Contains(text, "mode: iptables\n") || !strings.Contains(text, "localhostNodePorts: false\n") {
		t.Errorf("linux.yaml has not what the chart sets:\n%s", text)
	}
	for asked, none := range map[string]bool{"primary": false, "primary, localhost": true, "127.0.0.1/32": true, "1.127.0.0/16": false} {
		data := at(installed(t, "linux: {mode: iptables, config: {nodePortAddresses: ["+asked+"]}}")["ConfigMap kubeproxy"], "data").(map[string]any)
		if strings.Contains(data["linux.yaml"].(string), "localhostNodePorts") == none {
			t.Errorf("nodePortAddresses %s: no word of localhostNodePorts: want %t in\n%s", asked, none, data["linux.yaml"])
		}
	}
	for _, sections := range []string{"{winkernel: null, ipvs: null, detectLocal: null, clientConnection: null, mode: nftables}", "{conntrack: {}}"} {
		installed(t, "linux: {config: "+sections+"}")
	}
}

// TestEveryValue checks that the matrix has each value of the schema, accepted and refused.
func TestEveryValue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(source().Folder, "values.schema.json"))
	must(t, err)
	var schema map[string]any
	must(t, yaml.Unmarshal(text, &schema))
	m := readMatrix(t)
	fields := fieldsOf(schema, schema)
	if len(fields) < 30 {
		t.Errorf("only %d values: %v", len(fields), fields)
	}
	for _, f := range fields {
		path := strings.Split(f.path, "/")[1:]
		if !f.never && !slices.ContainsFunc(m.Accepted, func(values map[string]any) bool { return has(values, path) }) {
			t.Errorf("no accepted values have %s", f.path)
		}
		if !slices.ContainsFunc(m.Refused, func(r struct {
			Values map[string]any
			Error  string
		}) bool {
			return strings.HasPrefix(r.Error, f.path)
		}) {
			t.Errorf("no values are refused because of %s", f.path)
		}
	}
}

// field is a value that has no fields of its own.
type field struct {
	path  string
	never bool // may not be given
}

// fieldsOf returns the fields of a part of schema. Those of KubeProxyConfiguration are
// compared with the program, by a test of package config.
func fieldsOf(schema map[string]any, part any) []field {
	p, _ := part.(map[string]any)
	ref, _ := p["$ref"].(string)
	if ref == "#/definitions/config" {
		return []field{{}}
	}
	if ref != "" {
		p, _ = at(schema, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(map[string]any)
	}
	properties, _ := p["properties"].(map[string]any)
	if len(properties) == 0 {
		return []field{{never: part == false}}
	}
	var all []field
	for name, of := range properties {
		for _, f := range fieldsOf(schema, of) {
			all = append(all, field{"/" + name + f.path, f.never})
		}
	}
	return all
}

func has(values map[string]any, path []string) bool {
	last := len(path) - 1
	parent, _ := at(values, path[:last]...).(map[string]any)
	_, is := parent[path[last]]
	return is
}

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
		must(t, err)
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
	must(t, err)
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
		must(t, err)
		patch, err := strategicpatch.CreateThreeWayMergePatch(nil, texts[1], texts[0], meta, true)
		must(t, err)
		merged, err := strategicpatch.StrategicMergePatch(texts[0], patch, appsv1.DaemonSet{})
		var set appsv1.DaemonSet
		if err == nil {
			err = json.Unmarshal(merged, &set)
		}
		must(t, err)
		seen := map[string]bool{}
		for _, p := range set.Spec.Template.Spec.Containers[0].Ports {
			if p.Name != "" && seen[p.Name] {
				t.Errorf("%s: two ports are called %s: %v", values, p.Name, set.Spec.Template.Spec.Containers[0].Ports)
			}
			seen[p.Name] = true
		}
	}
}

// TestPack loads the packed chart of a commit without a tag, whose name looks like a
// number, with images of a registry.
func TestPack(t *testing.T) {
	s := source()
	s.Version, s.Image, s.Home = "1234567", "registry.example/team/kubeproxy", "https://git.example/kubeproxy"
	name, text, err := s.Pack(time.Unix(1, 0))
	must(t, err)
	c, err := loader.LoadArchive(bytes.NewReader(text))
	must(t, err)
	if err := c.Validate(); err != nil || name != "kubeproxy-0.0.0-1234567.tgz" || c.Metadata.AppVersion != "1234567" {
		t.Errorf("%s has version %s of the application: %v", name, c.Metadata.AppVersion, err)
	}
	if m := c.Metadata; m.Home != s.Home || !slices.Equal(m.Sources, []string{s.Home}) || m.Icon == "" || len(m.Maintainers) == 0 ||
		m.Annotations["artifacthub.io/images"] != "- name: kubeproxy-iptables\n  image: "+s.Image+"-iptables:1234567\n- name: kubeproxy\n  image: "+s.Image+":1234567\n" {
		t.Errorf("metadata %+v", m)
	}
	if got := at(c.Values, "image", "repository"); got != s.Image {
		t.Errorf("images are %v, want %s", got, s.Image)
	}
	if !slices.ContainsFunc(c.Files, func(f *helm.File) bool {
		return f.Name == "README.md" && bytes.Contains(f.Data, []byte("| `image.repository` | `\""+s.Image+"\"` |"))
	}) {
		t.Error("the packed chart has no README, or one with another image")
	}
}

// TestChartVersions checks that Helm takes the version of each commit.
func TestChartVersions(t *testing.T) {
	for application, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-4-gabcdef0": "1.2.3-4-gabcdef0", "dev": "0.0.0-dev", "1234567": "0.0.0-1234567", "0123456": "0.0.0-g0123456",
	} {
		got := chartVersion(application)
		m := &helm.Metadata{APIVersion: "v2", Name: "kubeproxy", Version: got}
		if err := m.Validate(); err != nil || got != want {
			t.Errorf("%s: %s, want %s: %v", application, got, want, err)
		}
	}
}

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
	must(t, err)
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
