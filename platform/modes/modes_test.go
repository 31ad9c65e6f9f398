// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/config"
	"kubeproxy/test/kit"
)

// The page on modes has a row for each mode of Linux, with what the mode says of itself.
func TestPageOnModes(t *testing.T) {
	page := kit.ReadFile(t, "../../docs/modes.md")
	for _, d := range All().On(config.Linux) {
		row := fmt.Sprintf("| `%s` | %s | %s |\n", d.Name, d.Needs, d.Leaves)
		kit.Check(t, strings.Contains(string(page), row), "docs/modes.md lacks the row\n%s", row)
	}
}

// The orders in which modes are tried and leftovers removed are as users know them.
func TestOrders(t *testing.T) {
	names := func(rank func(i int) int) []string {
		byRank := map[int]string{}
		for i, d := range All() {
			if n := rank(i); n > 0 && d.OS == config.Linux {
				byRank[n] = string(d.Name)
			}
		}
		var all []string
		for n := 1; n <= len(byRank); n++ {
			all = append(all, byRank[n])
		}
		return all
	}
	kit.Same(t, "without a configured mode (-want +got)", []string{"nftables", "iptables", "userspace"}, names(func(i int) int { return All()[i].DefaultRank }))
	kit.Same(t, "with --proxy-mode-fallback (-want +got)", []string{"ipvs", "iptables", "userspace"}, names(func(i int) int { return All()[i].FallbackRank }))
}
