// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// TestChainsAreListedWhole lists many chains while others are added and removed.
func TestChainsAreListedWhole(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if !strings.Contains(t.Name(), "/nft/") {
			return
		}
		const some = 600
		var text strings.Builder
		text.WriteString("*nat\n")
		for i := range some {
			fmt.Fprintf(&text, ":A%03d - [0:0]\n", i)
		}
		for i := range some {
			fmt.Fprintf(&text, ":KUBE-SVC-%03d - [0:0]\n", i)
		}
		restore(t, b, text.String()+"COMMIT\n")
		shuffle(t, b)
		for try := range 200 {
			all, err := nftChains(b.family)
			n := 0
			for _, i := range all {
				if strings.HasPrefix(i.name, "KUBE-SVC-") {
					n++
				}
			}
			if err != nil || n != some {
				t.Fatalf("try %d: %d chains, %v; want %d", try, n, err, some)
			}
		}
	})
}

// shuffle keeps removing the first chain and adding it behind the last one, until the
// test ends. After some rounds it pauses for the time that a busy machine needs to list
// the chains.
func shuffle(t *testing.T, b *Backend) {
	t.Helper()
	chain := "chain ip nat A000"
	if b.family == service.IPv6 {
		chain = "chain ip6 nat A000"
	}
	c := exec.Command("sh", "-c", "while for i in 1 2 3 4 5; do nft delete "+chain+" && nft add "+chain+" && sleep 0.01 || exit; done; do sleep 0.3; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// TestNoTablesNeedNoRight lists chains where there are no tables, in a process that has
// only the capability for nftables. If there is a table, its contents cannot be read.
func TestNoTablesNeedNoRight(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		if err := unix.Capget(&none, &rights[0]); err != nil {
			t.Fatal(err)
		}
		fewer := rights
		fewer[0].Effective &^= 1<<unix.CAP_NET_RAW | 1<<unix.CAP_NET_ADMIN
		for _, tables := range []bool{false, true} {
			if tables && strings.Contains(t.Name(), "/nft/") {
				return
			}
			if tables {
				restore(t, b, "*nat\n:MINE - [0:0]\nCOMMIT\n")
			}
			if err := unix.Capset(&none, &fewer[0]); err != nil { // of this thread
				t.Fatal(err)
			}
			what, err := Leftovers{Variant: Legacy, Family: b.family}.Find(t.Context())
			if backErr := unix.Capset(&none, &rights[0]); backErr != nil {
				t.Fatal(backErr)
			}
			if what != "" || (err != nil) != tables {
				t.Errorf("with tables %t: Find = %q, %v", tables, what, err)
			}
		}
	})
}
