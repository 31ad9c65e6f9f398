// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// words are what nft lists in other words than it reads, as far as our rules have it.
var words = strings.NewReplacer(
	"priority dstnat;", "priority -100;", "priority srcnat;", "priority 100;", "priority filter;", "priority 0;",
)

// listedLines returns the lines of a listing in one form, sorted: nft 1.0.6 orders elements
// by the bytes of their keys, the last one first (nftables: src/mergesort.c,
// concat_expr_msort_value).
func listedLines(text string) []string {
	text = regexp.MustCompile(`\s+`).ReplaceAllString(words.Replace(text), " ")
	text = strings.ReplaceAll(text, ", }", " }")
	text = strings.ReplaceAll(text, "meta l4proto tcp reject with tcp reset", "reject with tcp reset")
	lines := regexp.MustCompile(`([{};,]) `).Split(text, -1)
	slices.Sort(lines)
	return lines
}

// TestRenderIsWhatNftLists checks that what render prints, what is read back and what nft
// lists have the same lines.
func TestRenderIsWhatNftLists(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := servicesWith(20, 3)
		apply(t, b, want)
		held, wanted, err := b.ReadBack(t.Context(), want)
		if diff := cmp.Diff(wanted.String(), held.String()); err != nil || diff != "" {
			t.Fatalf("read back: %v (-wanted +held):\n%s", err, diff)
		}
		rendered, _ := Render(want, b.options)
		if ours, _, _ := strings.Cut(rendered.String(), "table ip6"); ours != held.String() {
			t.Errorf("render prints something else than is read back:\n%s", cmp.Diff(ours, held.String()))
		}
		if diff := cmp.Diff(listedLines(held.String()), listedLines(runNft(t, "", "-s", "list", "table", "ip", TableName))); diff != "" {
			t.Errorf("nft lists something else than is read back (-held +nft):\n%s", diff)
		}
	})
}
