// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

// TestAlerts checks the alerts with promtool, and runs their unit tests.
func TestAlerts(t *testing.T) {
	dir := t.TempDir()
	for to, from := range map[string]string{
		"rules.yaml":      filepath.Join(source().Folder, "files", "rules.yaml"),
		"rules_test.yaml": filepath.Join("testdata", "rules_test.yaml"),
	} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	promtool := filepath.Join(dir, "promtool")
	// Without discovery of services, which is most of the program.
	runs(t, filepath.Join("..", "..", ".."), "go", "build", "-modfile=build/tools/prometheus/go.mod", "-tags=remove_all_sd", "-o", promtool,
		"github.com/prometheus/prometheus/cmd/promtool")
	runs(t, dir, promtool, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
	runs(t, dir, promtool, "test", "rules", "rules_test.yaml")
}

func runs(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// TestMonitoring reads the objects for Prometheus as its operator does. An unknown field
// is an error.
func TestMonitoring(t *testing.T) {
	manifest, err := source().Manifest(map[string]any{
		"apiServer": noServer,
		"metrics":   map[string]any{"bindAddress": "0.0.0.0:10249"},
		"tls":       map[string]any{"secretName": "kubeproxy-tls"},
		"monitoring": map[string]any{
			"podMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
			"rules":      map[string]any{"enabled": true},
			"dashboard":  map[string]any{"enabled": true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, []byte(manifest))
	var pods monitoring.PodMonitor
	var rules monitoring.PrometheusRule
	for key, into := range map[string]any{"PodMonitor kubeproxy": &pods, "PrometheusRule kubeproxy": &rules} {
		text, err := yaml.Marshal(all[key])
		if err == nil {
			err = yaml.UnmarshalStrict(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	if port := pods.Spec.PodMetricsEndpoints[0].Port; port == nil || *port != "metrics" || pods.Labels["release"] != "prometheus" {
		t.Errorf("the PodMonitor reads port %v and has labels %v", port, pods.Labels)
	}
	testServiceMonitor(t)
	if n := len(rules.Spec.Groups[0].Rules); n < 10 {
		t.Errorf("%d alerts", n)
	}
	ports := at(all["DaemonSet kubeproxy"], "spec", "template", "spec", "containers").([]any)[0].(map[string]any)["ports"]
	if text, _ := json.Marshal(ports); string(text) != `[{"containerPort":10256},{"containerPort":10249,"name":"metrics"}]` {
		t.Errorf("ports %s", text)
	}
	var board struct{ Panels []any }
	text, _ := at(all["ConfigMap kubeproxy-dashboard"], "data", "kubeproxy.json").(string)
	if err := json.Unmarshal([]byte(text), &board); err != nil || len(board.Panels) < 10 {
		t.Errorf("dashboard with %d panels: %v", len(board.Panels), err)
	}
}

func testServiceMonitor(t *testing.T) {
	all := installed(t, `
metrics: {bindAddress: "0.0.0.0:10249"}
tls: {secretName: kubeproxy-tls}
monitoring: {serviceMonitor: {enabled: true, jobLabel: job, relabelings: [{sourceLabels: [a], separator: ";", targetLabel: b, regex: x, modulus: 2, replacement: c, action: keep}]}}
`)
	var services monitoring.ServiceMonitor
	text, err := yaml.Marshal(all["ServiceMonitor kubeproxy"])
	if err == nil {
		err = yaml.UnmarshalStrict(text, &services)
	}
	if err != nil {
		t.Fatal(err)
	}
	if e := services.Spec.Endpoints[0]; e.Port != "metrics" || len(e.RelabelConfigs) != 2 || e.RelabelConfigs[1].TargetLabel != "b" || services.Spec.JobLabel != "job" {
		t.Errorf("the ServiceMonitor is %+v", services.Spec)
	}
	service := all["Service kubeproxy-metrics"]
	if at(service, "metadata", "labels", "app.kubernetes.io/name") != services.Spec.Selector.MatchLabels["app.kubernetes.io/name"] || at(service, "metadata", "labels", "k8s-app") != nil {
		t.Errorf("the ServiceMonitor selects %v, the Service has %v", services.Spec.Selector, at(service, "metadata"))
	}
}
