// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/config"
)

// TestDeployedConfig has nothing in it that the proxy would remark on, but
// what is for the other system where both share it.
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
