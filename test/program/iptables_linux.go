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

// AwaitLock has commands of iptables-legacy wait for their lock, which all
// namespaces share. Those of iptables-nft ignore it.
const AwaitLock = "--wait=60"

// IPTables returns a folder in which the commands of iptables are of a variant.
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

// With has cmd find commands in dir before all others, if dir is not empty.
func With(cmd *exec.Cmd, dir string) *exec.Cmd {
	if dir != "" {
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	}
	return cmd
}
