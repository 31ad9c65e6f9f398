// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// IPTablesVariants are the two implementations of iptables.
var IPTablesVariants = []string{"legacy", "nft"}

// AwaitLock makes commands of iptables-legacy wait for their lock, which all namespaces
// share, see iptables(8). iptables-nft ignores it.
const AwaitLock = "--wait=60"

// IPTables returns a folder in which the iptables commands are of a variant.
func IPTables(t testing.TB, variant string) string {
	t.Helper()
	dir := t.TempDir()
	for _, c := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			if err := os.Symlink(filepath.Join("/usr/sbin", c+"-"+variant+suffix), filepath.Join(dir, c+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// With puts dir, if not empty, first in the PATH of cmd.
func With(cmd *exec.Cmd, dir string) *exec.Cmd {
	if dir != "" {
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	}
	return cmd
}
