// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestRedrawTable checks that the table leads connections where it should, whatever others do
// to it, that nft understands it, and that it is bounded.
func TestRedrawTable(t *testing.T) {
	inNamespace(t, func() {
		for f, addrs := range map[service.Family][3]string{service.IPv4: {"10.244.1.9", "10.244.1.11", "10.244.1.12"}, service.IPv6: {"fd00:1::9", "fd00:1::11", "fd00:1::12"}} {
			table := RedrawPlace(f, "")
			at := func(i int, port uint16) netip.AddrPort {
				return netip.AddrPortFrom(netip.MustParseAddr(addrs[i]), port)
			}
			name := strings.Fields(table.Name())
			list := func() string { return runNft(t, "", append([]string{"list", "table"}, name...)...) }
			for _, port := range []uint16{8080, 8081, 8081} { // it leads elsewhere, and again there
				kit.Must(t, table.Lead(at(0, 40000), at(1, 80), at(2, port)))
			}
			text := list()
			key, value := addrs[0]+" . 40000 . "+addrs[1]+" . 80 ", " : "+addrs[2]+" . 8081"
			if !strings.Contains(text, key) || !strings.Contains(text, value) || strings.Contains(text, "8080") || strings.Count(text, "tcp flags ! ack") != 2 {
				t.Errorf("the table is\n%s", text)
			}
			runNft(t, "delete table "+table.Name()+"\n"+text, "-f", "-")
			kit.Must(t, table.Lead(at(0, 40001), at(1, 80), at(2, 8080)))
			runNft(t, "delete table "+table.Name()+"\nadd table "+table.Name()+"\n", "-f", "-")
			kit.Must(t, table.Lead(at(0, 40002), at(1, 80), at(2, 8080)))
			if text := list(); !strings.Contains(text, "40002") || strings.Contains(text, "40001") {
				t.Errorf("after others made it anew the table is\n%s", text)
			}
			var err error
			for port := range uint16(redrawn.limit) {
				if err = table.Lead(at(0, 1+port), at(1, 80), at(2, 8080)); err != nil {
					break
				}
			}
			kit.Check(t, errors.Is(err, unix.ENFILE) && strings.Count(list(), "expires") >= int(redrawn.limit)*9/10,
				"%v: want the table full of %d elements", err, redrawn.limit)
			kit.Must(t, table.Remove(t.Context()))
			wantFound(t, table.Leftovers, "")
		}
	})
}
