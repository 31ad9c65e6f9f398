// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const skeletonPath = "testdata/skeleton.nft"

// TestSkeleton shows what every node has in each mode.
func TestSkeleton(t *testing.T) {
	for _, b := range backends {
		if b.skeleton == "" {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			path, got := b.skeleton, b.render(t, emptySnapshot)
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("skeleton (-want +got):\n%s", diff)
			}
		})
	}
}
