// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"testing"

	"kubeproxy/common/document"
	"kubeproxy/test/kit"
	"kubeproxy/test/nftcommand"
)

// TestNFTAcceptsScenarios checks with nft and the kernel what Render writes for each
// cluster, in a network namespace that ends with the command. It needs no capabilities
// where users may create namespaces.
func TestNFTAcceptsScenarios(t *testing.T) {
	nftcommand.NeedTables(t)
	for _, path := range scenarioPaths(t) {
		t.Run(scenarioName(path), func(t *testing.T) {
			_, want := openScenario(t, path)
			nftAccepts(t, renderNFTables(t, want, document.Text))
		})
	}
	t.Run("skeleton", func(t *testing.T) {
		text := kit.ReadFile(t, skeletonPath)
		nftAccepts(t, text)
	})
}

func nftAccepts(t *testing.T, text []byte) {
	t.Helper()
	if err := nftcommand.Check(string(text)); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}
