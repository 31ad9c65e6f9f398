// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubeproxy/config"
	"kubeproxy/platform/modes"
)

// TestDeployedConfig checks that the proxy has no remarks on the deployed configuration.
func TestDeployedConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		os   config.OS
	}{
		{"linux", config.Linux}, {"iptables", config.Linux}, {"ipvs", config.Linux}, {"userspace", config.Linux},
		{"windows", config.Windows}, {"mixed", config.Linux}, {"mixed", config.Windows},
	} {
		t.Run(tt.name+" on "+string(tt.os), func(t *testing.T) {
			c, err := config.Load(&config.Flags{Modes: modes.All().Config(), Config: "../../build/deploy/" + tt.name + "/" + string(tt.os) + ".yaml", StrictConfig: true}, tt.os)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range c.Notes {
				if mode := c.Mode; mode == "nftables" || mode == "" { // the others are advised against
					t.Errorf("note: %s: %s", n.Path, n.Text)
				}
			}
		})
	}
}

// TestDeployedStartWaits checks that a proxy that starts without an API server waits for
// an hour before kubelet restarts it.
func TestDeployedStartWaits(t *testing.T) {
	for _, name := range []string{"linux", "windows"} {
		for _, c := range deployedPod(t, name).Containers {
			p := c.StartupProbe
			if p == nil || time.Duration(p.PeriodSeconds*p.FailureThreshold)*time.Second < time.Hour {
				t.Errorf("%s: container %s has the startup probe %v, want one that waits for an hour", name, c.Name, p)
			}
		}
	}
}

// deployedPod returns the pod of a folder's DaemonSet.
func deployedPod(t *testing.T, name string) corev1.PodSpec {
	t.Helper()
	text, err := os.ReadFile("../../build/deploy/" + name + "/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "---\n") {
		var set struct {
			Kind string
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		if err := yaml.Unmarshal([]byte(document), &set); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if set.Kind == "DaemonSet" {
			return set.Spec.Template.Spec
		}
	}
	t.Fatalf("%s has no DaemonSet", name)
	return corev1.PodSpec{}
}

// TestDeployedMetricsAreForTheNode checks that metrics are served to the node only, as
// they name Services of all namespaces.
func TestDeployedMetricsAreForTheNode(t *testing.T) {
	var files []string
	for _, system := range []config.OS{config.Linux, config.Windows} {
		found, err := filepath.Glob("../../build/deploy/*/" + string(system) + ".yaml")
		if err != nil || len(found) < 2 {
			t.Fatalf("%q, %v", found, err)
		}
		files = append(files, found...)
	}
	for _, f := range files {
		system := config.OS(strings.TrimSuffix(filepath.Base(f), ".yaml"))
		c, err := config.Load(&config.Flags{Modes: modes.All().Config(), Config: f, StrictConfig: true}, system)
		if err != nil {
			t.Fatal(err)
		}
		if c.MetricsBindAddress != "127.0.0.1:10249" {
			t.Errorf("%s: metrics are at %s", f, c.MetricsBindAddress)
		}
	}
}

// chartFlags returns the patterns of the flags that extraArgs of the chart may have.
func chartFlags(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../build/chart/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			ExtraArgs struct {
				Items struct{ AnyOf []struct{ Pattern string } }
			}
		}
	}
	if err := yaml.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, p := range schema.Properties.ExtraArgs.Items.AnyOf {
		all = append(all, p.Pattern)
	}
	return all
}

// TestChartKnowsFlags checks that each flag that extraArgs of the chart may have is one of
// the program.
func TestChartKnowsFlags(t *testing.T) {
	var names []string
	for _, pattern := range chartFlags(t) {
		_, list, _ := strings.Cut(pattern, "(")
		list, _, _ = strings.Cut(list, ")")
		names = append(names, strings.Split(list, "|")...)
	}
	if len(names) < 5 {
		t.Errorf("flags %q", names)
	}
	flags := newRoot(streams{}, modes.All()).Flags()
	for _, name := range names {
		if flags.Lookup(name) == nil {
			t.Errorf("there is no flag --%s", name)
		}
	}
}

// TestChartRefusesWhatFlagsRefuse compares the patterns of extraArgs with the program. The
// program also takes a flag and its value in two arguments, and a list there has one for each.
func TestChartRefusesWhatFlagsRefuse(t *testing.T) {
	pattern := regexp.MustCompile(strings.Join(chartFlags(t), "|"))
	for want, args := range map[bool][]string{
		true: {
			"--v=2", "--vmodule=round=3,nft*=4", "--logging-format=json", "--service-proxy-name=team", "--service-proxy-name=A.b_c-9",
			"--expose-admin-pages", "--strict-config=false", "--ignore-source-ranges=true", "--kube-api-burst=20", "--kube-api-qps=7.5",
			"--kube-api-content-type=application/json", "--udp-timeout=1m30s", "--udp-timeout=250ms", "--proxy-mode-fallback",
		},
		false: {
			"--v=abc", "--v=-1", "--v", "--vmodule=round", "--vmodule==3", "--logging-format=xml", "--service-proxy-name", "--service-proxy-name=",
			"--service-proxy-name=a/b", "--service-proxy-name=-a", "--expose-admin-pages=maybe", "--kube-api-burst=many", "--kube-api-qps=fast",
			"--kube-api-content-type=text/plain", "--udp-timeout=250", "--udp-timeout=1.2.3s", "--no-such-flag",
		},
	} {
		for _, arg := range args {
			if got := pattern.MatchString(arg); got != want {
				t.Errorf("%s: the chart accepts it: %v, want %v", arg, got, want)
			}
			if o := call(t, "", arg, "--write-config-to=-"); (o.Code == 0) != want {
				t.Errorf("%s: the program has exit code %d, want accepted %v\n%s", arg, o.Code, want, o.Err)
			}
		}
	}
}
