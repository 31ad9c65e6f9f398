// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
)

var userspaceOptions = userspace.Options{Rules: iptablesOptions}

const userspaceSkeletonPath = "testdata/skeleton.userspace"

// TestUserspaceSkeleton shows the chains that every node has.
func TestUserspaceSkeleton(t *testing.T) {
	got := renderUserspace(t, empty)
	if *update {
		if err := os.WriteFile(userspaceSkeletonPath, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(userspaceSkeletonPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("skeleton (-want +got):\n%s", diff)
	}
}

func renderUserspace(t *testing.T, want *service.Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := userspace.Render(&b, want, userspaceOptions, iptables.Text); err != nil {
		t.Fatalf("render: %v", err)
	}
	return b.Bytes()
}

// writeUserspace writes the chains that the skeleton lacks or has otherwise.
func writeUserspace(_ *testing.T, want *service.Snapshot, _ choices) string {
	return writeChains(want, func(f service.Family, s *service.Snapshot) iptables.Tables {
		return userspace.Document(f, s, userspaceOptions)
	})
}
