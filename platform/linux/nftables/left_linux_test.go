// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/kit"
)

// leftFlow returns a connection from a port of a client.
func leftFlow(f service.Family, client uint16) conntrack.Flow {
	addrs := [...][3]string{{"10.244.1.9", "10.96.0.1", "10.244.2.9"}, {"fd00:1::9", "fd00:96::1", "fd00:2::9"}}[f]
	at := func(i int, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addrs[i]), port)
	}
	return conntrack.Flow{Protocol: service.TCP, Src: at(0, client), Dst: at(1, 80), ReplySrc: at(2, 8080), ReplyDst: at(0, client)}
}

// TestLeftTable checks that the table holds what it should, whatever others do to it, that
// nft understands it, and that it is there only as long as it holds something.
func TestLeftTable(t *testing.T) {
	inNamespace(t, func() {
		for f, element := range map[service.Family]string{
			service.IPv4: "10.244.1.9 . 2 . 10.96.0.1 . 80 . 10.244.2.9", service.IPv6: "fd00:1::9 . 2 . fd00:96::1 . 80 . fd00:2::9",
		} {
			place := LeftPlace(f, "")
			table := NewLeftTable(place)
			name := strings.TrimPrefix(place.String(), "nftables table ")
			set := func(want string, clients ...uint16) {
				t.Helper()
				var flows []conntrack.Flow
				for _, n := range clients {
					flows = append(flows, leftFlow(f, n))
				}
				kit.Must(t, table.Set(flows))
				wantFound(t, place, want)
			}
			set("")
			set("the table", 1, 2, 2)
			text := runNft(t, "", append([]string{"list", "table"}, strings.Fields(name)...)...)
			kit.Check(t, strings.Contains(text, element) && strings.Count(text, "tcp reset") == 3,
				"the table is\n%s", text)
			runNft(t, "delete table "+name+"\n"+text, "-f", "-")
			if again := runNft(t, "", append([]string{"list", "table"}, strings.Fields(name)...)...); again != text {
				t.Errorf("nft makes this of its own listing:\n%s", again)
			}
			set("the table", 2, 3)
			runNft(t, "delete table "+name+"\n", "-f", "-")
			set("the table", 2, 3, 4)
			table.Forget()
			many := make([]uint16, 60000)
			for i := range many {
				many[i] = uint16(i + 1)
			}
			set("the table", many...)
			set("the table", many[:2]...)
			if text = runNft(t, "", append([]string{"list", "table"}, strings.Fields(name)...)...); !strings.Contains(text, element) {
				t.Errorf("the table is\n%s", text)
			}
			set("")
			runNft(t, "add table "+name+"\n", "-f", "-")
			table.Forget()
			set("")
		}
	})
}
