// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/platform/linux/nftables"
)

const skeletonPath = "testdata/skeleton.nft"

// TestSkeleton shows what every node has in each mode.
func TestSkeleton(t *testing.T) {
	for path, render := range map[string]func(*testing.T) []byte{
		skeletonPath:                  func(t *testing.T) []byte { return renderNFTables(t, emptySnapshot, nftables.Text) },
		"testdata/skeleton.iptables":  func(t *testing.T) []byte { return renderIPTables(t, emptySnapshot) },
		"testdata/skeleton.userspace": func(t *testing.T) []byte { return renderUserspace(t, emptySnapshot) },
		"testdata/skeleton.ipvs":      func(t *testing.T) []byte { return renderIPVS(t, emptySnapshot) },
	} {
		t.Run(path, func(t *testing.T) {
			got := render(t)
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
