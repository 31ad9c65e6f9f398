// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

const ruleset = `table ip one {
	chain plain { }
	chain guard { type filter hook forward priority -5; policy drop; }
}
table ip6 two {
	chain nat { type nat hook postrouting priority 100; }
}
table inet three {
	chain in { type filter hook input priority 0; policy accept; }
}
`

// TestChains compares lists with what nft installed.
func TestChains(t *testing.T) {
	netlab.InNamespace(t, func() {
		c := exec.Command("nft", "-f", "-")
		c.Stdin = strings.NewReader(ruleset)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
		s, err := Dial(unix.NETLINK_NETFILTER, Options{})
		kit.Must(t, err)
		defer s.Close()
		v4, v6 := []string{"ip one guard filter 2 -5 true", "ip one plain"}, []string{"ip6 two nat nat 4 100 false"}
		for family, want := range map[uint8][]string{
			NFTFamily(service.IPv4): v4, NFTFamily(service.IPv6): v6, unix.NFPROTO_BRIDGE: nil,
			unix.NFPROTO_UNSPEC: slices.Concat([]string{"inet three in filter 1 0 false"}, v4, v6),
		} {
			if got := listed(t, s, family); !slices.Equal(got, want) {
				t.Errorf("chains of family %d = %q, want %q", family, got, want)
			}
		}
	})
}

// listed returns a line for each chain, in order.
func listed(t *testing.T, s *Socket, family uint8) []string {
	t.Helper()
	all, err := Chains(t.Context(), s, family)
	kit.Check(t, err == nil, "%v", err)
	var lines []string
	for _, c := range all {
		line := fmt.Sprintf("%s %s %s", FamilyNames[c.Family], c.Table, c.Name)
		if b := c.Base; b != nil {
			line += fmt.Sprintf(" %s %d %d %t", b.Type, b.Hook, b.Priority, b.Drops)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}
