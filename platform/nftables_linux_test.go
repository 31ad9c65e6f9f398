// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"os"
	"testing"

	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/nftcommand"
)

// TestNFTAcceptsScenarios has nft check what Render writes for each cluster,
// against the kernel, in a network namespace that goes with the command.
// Where users may make namespaces it needs no rights.
func TestNFTAcceptsScenarios(t *testing.T) {
	nftcommand.NeedTables(t)
	for _, path := range scenarioPaths(t) {
		t.Run(scenarioName(path), func(t *testing.T) {
			_, want := openScenario(t, path)
			nftAccepts(t, renderNFTables(t, want, nftables.Text))
		})
	}
	t.Run("skeleton", func(t *testing.T) {
		text, err := os.ReadFile(skeletonPath)
		if err != nil {
			t.Fatal(err)
		}
		nftAccepts(t, text)
	})
}

func nftAccepts(t *testing.T, text []byte) {
	t.Helper()
	if err := nftcommand.Check(string(text)); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}
