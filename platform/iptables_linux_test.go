// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"kubeproxy/test/netlab"
)

// TestIPTablesAcceptsScenarios checks that both variants of iptables accept what Render
// writes for each cluster, first as a test and then for real, in a network namespace
// that ends with the command.
func TestIPTablesAcceptsScenarios(t *testing.T) {
	for _, path := range scenarioPaths(t) {
		t.Run(scenarioName(path), func(t *testing.T) {
			_, want := openScenario(t, path)
			checkBothVariants(t, renderIPTables(t, want))
			checkBothVariants(t, renderUserspace(t, want))
		})
	}
}

// checkBothVariants checks that both variants accept text, which has a part for each
// family.
func checkBothVariants(t *testing.T, text []byte) {
	t.Helper()
	four, six, found := bytes.Cut(text, []byte("# for ip6tables-restore\n"))
	if !found {
		t.Fatal("there is no part for IPv6")
	}
	for _, variant := range []string{"legacy", "nft"} {
		iptablesAccepts(t, "/usr/sbin/iptables-"+variant+"-restore", four)
		iptablesAccepts(t, "/usr/sbin/ip6tables-"+variant+"-restore", six)
	}
}

func iptablesAccepts(t *testing.T, command string, text []byte) {
	t.Helper()
	for _, args := range [][]string{{"--test"}, nil} {
		c := exec.Command(command, args...)
		c.Stdin = bytes.NewReader(text)
		netlab.Isolate(c)
		// Other processes on the machine use their own lock.
		c.Env = append(os.Environ(), "XTABLES_LOCKFILE="+t.TempDir()+"/lock")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s %s: %v\n%s\n%s", command, args, err, out, text)
		}
	}
}
