// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/platform/linux/netlink"
)

// TestDormantTables makes a table dormant, before the first sync and later. The backend
// must find and report it and make it active, and must not take its own change for a
// foreign one.
func TestDormantTables(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if isLegacy(b) { // tables of iptables-legacy have no flags
			return
		}
		want := simple(3)
		apply(t, b, want)
		for _, table := range tables {
			name := netlink.FamilyName(b.family) + " " + table
			dormant := "add table " + name + " { flags dormant; }"
			runNFT(t, dormant)
			if !poll(func() bool { return touched(t, b) }) {
				t.Fatalf("%s: not noticed", dormant)
			}
			p := apply(t, b, want)
			if drift := strings.Join(p.Outcome().Drift, "\n"); !strings.Contains(drift, "table "+table+" is dormant") {
				t.Errorf("%s: drift %q", dormant, drift)
			}
			if touched(t, b) {
				t.Errorf("%s: our own change counts as another one's", dormant)
			}
			if text := runNFT(t, "list table "+name); strings.Contains(text, "dormant") {
				t.Errorf("still dormant:\n%s", text)
			}
			runNFT(t, dormant)
			b.Forget()
			apply(t, b, want)
			if text := runNFT(t, "list table "+name); strings.Contains(text, "dormant") {
				t.Errorf("still dormant after a start:\n%s", text)
			}
		}
	})
}

func runNFT(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("nft", command).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v\n%s", command, err, out)
	}
	return string(out)
}
