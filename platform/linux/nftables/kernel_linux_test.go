// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
	"kubeproxy/test/generate"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftcommand"
)

// inNamespace runs f in a new network namespace.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	netlab.InNamespace(t, f)
}

func newKernel(t fataler, f service.Family) *Backend {
	b, err := New(f, Options{MasqueradeBit: 14})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

// runNft runs nft in the thread's network namespace and returns its output.
func runNft(t testing.TB, input string, args ...string) string {
	t.Helper()
	c := exec.Command("nft", args...)
	c.Stdin = bytes.NewBufferString(input)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s\n%s", args, err, out, input)
	}
	return string(out)
}

// TestKernelHoldsWhatWasPlanned programs random snapshots one after the other. After each
// one a second backend without state must find nothing to do.
func TestKernelHoldsWhatWasPlanned(t *testing.T) {
	inNamespace(t, func() {
		rapid.Check(t, func(t *rapid.T) {
			w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
			b := newKernel(t, w.Family)
			defer b.driver.(*kernel).close()
			for range 3 {
				want := service.New(1, w.Node(), w.Ports())
				apply(t, b, want)
				fresh := newKernel(t, w.Family)
				generate.RequireNoChange(t, fresh, want)
				_ = fresh.Close()
			}
			if err := b.Cleanup(context.Background()); err != nil {
				t.Fatalf("Cleanup: %v", err)
			}
		})
	})
}

// TestNftReadsTables checks that nft lists the kernel's table, as JSON and as text that
// it loads again. The listing is the same after nft loads the output of Render.
func TestNftReadsTables(t *testing.T) {
	nftcommand.NeedTables(t)
	inNamespace(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			w := generate.Cluster{T: rt, Family: service.Family(rapid.IntRange(0, 1).Draw(rt, "family"))}
			want := service.New(1, w.Node(), w.Ports())
			b := newKernel(rt, w.Family)
			apply(rt, b, want)
			b.driver.(*kernel).close()
			listing := runNft(t, "", "-s", "list", "table", nft.FamilyName(w.Family), TableName)
			runNft(t, "", "-j", "list", "ruleset")
			runNft(t, "flush ruleset\n"+listing, "-f", "-")
			text, _ := Render(want, b.options)
			runNft(t, "flush ruleset\n"+text.String(), "-f", "-")
			again := runNft(t, "", "-s", "list", "table", nft.FamilyName(w.Family), TableName)
			if diff := cmp.Diff(blocks(again), blocks(listing)); diff != "" {
				rt.Fatalf("netlink differs from the text (-text +netlink):\n%s", diff)
			}
			runNft(t, "", "flush", "ruleset")
		})
	})
}

// blocks splits a listing of nft into sets and chains by name. The rules of a chain keep
// their order. The elements of a set are not ordered.
func blocks(listing string) map[string]string {
	found := map[string]string{}
	for block := range strings.SplitSeq(listing, "\n\n") {
		lines := strings.Split(block, "\n")
		for i, l := range lines {
			l = strings.TrimPrefix(strings.TrimSpace(l), "elements = { ")
			lines[i] = strings.TrimRight(l, ", }")
		}
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" || strings.HasPrefix(l, "table ") })
		if !strings.HasPrefix(lines[0], "chain ") {
			slices.Sort(lines[1:])
		}
		found[lines[0]] = strings.Join(lines[1:], "\n")
	}
	return found
}
