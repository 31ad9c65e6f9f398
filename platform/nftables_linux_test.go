// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"kubeproxy/platform/linux/nftables"
)

// TestNFTAcceptsScenarios has nft check what Render writes for each cluster,
// against the kernel, in a network namespace that goes with the command.
// Where users may make namespaces it needs no rights.
func TestNFTAcceptsScenarios(t *testing.T) {
	for _, path := range scenarioPaths(t) {
		t.Run(scenarioName(path), func(t *testing.T) {
			_, want := open(t, path)
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
	c := exec.Command("nft", "-c", "-f", "-")
	c.Stdin = bytes.NewReader(text)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if id := os.Getuid(); id != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("nft: %v\n%s\n%s", err, out, text)
	}
}
