// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubeproxy/config"
)

// TestDeployedConfig checks that the proxy has no remarks on the deployed configuration,
// except for settings of the other system in a shared file.
func TestDeployedConfig(t *testing.T) {
	for _, tt := range []struct {
		name  string
		os    config.OS
		notes []string
	}{
		{"linux", config.Linux, nil},
		{"windows", config.Windows, nil},
		{"mixed", config.Linux, []string{"winkernel.enableDSR: has no effect on linux"}},
		{"mixed", config.Windows, []string{"oomScoreAdj: has no effect on windows"}},
	} {
		t.Run(tt.name+" on "+string(tt.os), func(t *testing.T) {
			c, err := config.Check("../../build/deploy/"+tt.name+"/config.yaml", tt.os)
			if err != nil {
				t.Fatal(err)
			}
			var notes []string
			for _, n := range c.Notes {
				notes = append(notes, n.Path+": "+n.Text)
			}
			if diff := cmp.Diff(tt.notes, notes); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
			if tt.os == config.Linux && *c.OOMScoreAdj != 0 {
				t.Errorf("oomScoreAdj %d needs a right that the container has not", *c.OOMScoreAdj)
			}
		})
	}
}

// TestDeployedStartWaits checks that a proxy that starts without an API server waits for
// an hour before kubelet restarts it.
func TestDeployedStartWaits(t *testing.T) {
	for _, name := range []string{"linux", "windows"} {
		text, err := os.ReadFile("../../build/deploy/base/" + name + "/daemonset.yaml")
		if err != nil {
			t.Fatal(err)
		}
		var set struct {
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		if err := yaml.Unmarshal(text, &set); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, c := range set.Spec.Template.Spec.Containers {
			p := c.StartupProbe
			if p == nil || time.Duration(p.PeriodSeconds*p.FailureThreshold)*time.Second < time.Hour {
				t.Errorf("%s: container %s has the startup probe %v, want one that waits for an hour", name, c.Name, p)
			}
		}
	}
}

// TestDeployedMetricsAreForTheNode checks that metrics are served to the node only, as
// they name Services of all namespaces.
func TestDeployedMetricsAreForTheNode(t *testing.T) {
	files, err := filepath.Glob("../../build/deploy/*/config.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, f := range files {
		system := config.Linux
		if strings.Contains(f, "windows") {
			system = config.Windows
		}
		c, err := config.Check(f, system)
		if err != nil {
			t.Fatal(err)
		}
		if c.MetricsBindAddress != "127.0.0.1:10249" {
			t.Errorf("%s: metrics are at %s", f, c.MetricsBindAddress)
		}
	}
}
