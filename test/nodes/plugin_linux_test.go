// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNetworks checks what a node has and runs for each network of pods.
func TestNetworks(t *testing.T) {
	for network, want := range map[string]struct {
		plugin string
		files  []string
		steps  int
	}{
		"":         {"ptp", []string{"cni/10-pods.conflist"}, 0},
		Flannel:    {"bridge", []string{"cni/10-flannel.conflist", "net-conf.json"}, 1},
		KubeRouter: {"bridge", []string{"cni/10-kuberouter.conflist"}, 2},
	} {
		c := &Cluster{Network: network, folder: t.TempDir()}
		if err := c.configureNode(2); err != nil {
			t.Fatal(err)
		}
		cni, err := filepath.Glob(c.path("n2", "cni", "*"))
		if err != nil || len(cni) != 1 {
			t.Errorf("network %q: %v, want one file in folder cni, have %q", network, err, cni)
		}
		var config struct { // of all files
			Plugins              []struct{ Type string }
			Network, IPv6Network string
		}
		for _, file := range want.files {
			text, err := os.ReadFile(c.path("n2", file))
			if err = errors.Join(err, json.Unmarshal(text, &config)); err != nil {
				t.Fatalf("network %q, %s: %v\n%s", network, file, err, text)
			}
		}
		if diff := cmp.Diff(want.plugin, config.Plugins[0].Type); diff != "" {
			t.Errorf("network %q: plugin, -want +got:\n%s", network, diff)
		}
		if network == Flannel && config.Network+","+config.IPv6Network != PodCIDR {
			t.Errorf("flannel has the ranges %+v, want %s", config, PodCIDR)
		}
		if got := len(c.networkSteps(c.Machine("n2"))); got != want.steps {
			t.Errorf("network %q: %d steps, want %d", network, got, want.steps)
		}
	}
}
