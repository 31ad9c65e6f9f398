// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"io"
	"strings"
	"testing"
)

// TestList checks that each architecture has every package.
func TestList(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		list, err := List(arch)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, p := range list {
			have = append(have, p.Name)
		}
		if got, want := strings.Join(have, " "), strings.Join(names, " "); got != want {
			t.Errorf("%s has %s, want %s: run make pins", arch, got, want)
		}
	}
	if _, err := List("riscv64"); err == nil {
		t.Error("packages for riscv64")
	}
	if _, err := parse("# x\niptables amd64 1.8.9-2 abc\n", "amd64"); err == nil || !strings.Contains(err.Error(), "packages.txt:2") {
		t.Errorf("a short checksum: %v", err)
	}
}

// TestGone checks that a version that the mirror lacks is distinguished from other
// failures.
func TestGone(t *testing.T) {
	c := Cache{Folder: t.TempDir(), Out: io.Discard}
	p := Package{"iptables", "amd64", "1.0.0-1", strings.Repeat("0", 64)}
	_, err := c.Fetch(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "iptables 1.0.0-1 for amd64 is gone from Debian's mirror, which has 1.") || !strings.Contains(err.Error(), "make pins") {
		t.Errorf("fetched a version that never was: %v", err)
	}
}

// TestMerged checks where files of old packages go, and which ones an image has.
func TestMerged(t *testing.T) {
	for name, want := range map[string]string{
		"lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2": "usr/lib64/ld-linux-x86-64.so.2",
		"usr/sbin/ipset": "usr/sbin/ipset", "etc/protocols": "etc/protocols",
	} {
		if got := merged(name); got != want {
			t.Errorf("%s goes to %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]bool{
		"usr/sbin/xtables-nft-multi": true, "usr/share/doc/iptables/copyright": true, "usr/share/doc/iptables/changelog.gz": false,
		"usr/share/man/man8/iptables.8.gz": false, "usr/lib/x86_64-linux-gnu/gconv/UTF-16.so": false,
	} {
		if wanted("iptables", name) != want {
			t.Errorf("%s: want %v", name, want)
		}
	}
}
