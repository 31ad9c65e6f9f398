// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/packet"
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
			again := runNft(t, "", append([]string{"list", "table"}, strings.Fields(name)...)...)
			kit.Check(t, again == text, "nft makes this of its own listing:\n%s", again)
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
			text = runNft(t, "", append([]string{"list", "table"}, strings.Fields(name)...)...)
			kit.Check(t, strings.Contains(text, element), "the table is\n%s", text)
			set("")
			runNft(t, "add table "+name+"\n", "-f", "-")
			table.Forget()
			set("")
		}
	})
}

// TestSettings keeps texts. nft can load its listing of the table again, a table that others altered
// is an error, and one that is missing is not.
func TestSettings(t *testing.T) {
	inNamespace(t, func() {
		place := SettingsPlace(service.IPv4, "mine")
		read := func(want string) {
			t.Helper()
			got, err := place.Settings()
			kit.Check(t, err == nil && string(got) == want && (got == nil) == (want == ""), "%d bytes, %v, want %d", len(got), err, len(want))
		}
		read("")
		long := strings.Builder{}
		for range 10000 {
			fmt.Fprint(&long, rand.Uint64())
		}
		for _, text := range []string{"a \"quoted\" line\n", long.String(), `{"mode": "ipvs"}`} {
			kit.Must(t, place.KeepSettings(context.Background(), []byte(text)))
			read(text)
		}
		table := runNft(t, "", "list", "table", "ip", "kube-settings-mine")
		runNft(t, "delete table ip kube-settings-mine\n"+table, "-f", "-")
		read(`{"mode": "ipvs"}`)
		runNft(t, "delete element ip kube-settings-mine settings { 0 }\nadd element ip kube-settings-mine settings { 0 comment \"H4sI\" }\n", "-f", "-")
		text, err := place.Settings()
		kit.Check(t, err != nil && strings.Contains(err.Error(), "altered"), "altered: %q, %v", text, err)
		kit.Must(t, place.Remove(context.Background()))
		read("")
	})
}

// TestHash has the kernel hash the address and port of clients, and the address alone.
func TestHash(t *testing.T) {
	inNamespace(t, func() {
		kit.Must(t, exec.Command("ip", "link", "set", "lo", "up").Run())
		for family, text := range map[string]string{"ip": "127.0.0.1", "ip6": "::1"} {
			runNft(t, fmt.Sprintf(`table %[1]s hash {
				set both { typeof th sport . numgen inc mod 65536; flags dynamic; }
				set alone { typeof th sport . numgen inc mod 65536; flags dynamic; }
				chain out { type filter hook output priority 0;
					meta l4proto udp update @both { th sport . jhash %[1]s saddr . th sport mod 1009 seed 0x6b756265 }
					meta l4proto udp update @alone { th sport . jhash %[1]s saddr mod 2039 seed 7 }
				}
			}`, family), "-f", "-")
			addr := netip.MustParseAddr(text)
			want := map[string]uint32{}
			for range 100 {
				c, err := net.Dial("udp", netip.AddrPortFrom(addr, 9).String())
				kit.Must(t, err)
				defer c.Close()
				_, _ = c.Write([]byte{0}) // the second one may fail, as nobody listens
				port := uint16(c.LocalAddr().(*net.UDPAddr).Port)
				key := append(binary.BigEndian.AppendUint16(addr.AsSlice(), port), 0, 0)
				want[fmt.Sprintf("both %d", port)] = packet.Hash{Below: 1009, Seed: 0x6b756265}.Of(key)
				want[fmt.Sprintf("alone %d", port)] = packet.Hash{Below: 2039, Seed: 7}.Of(addr.AsSlice())
			}
			for what, n := range want {
				set, port, _ := strings.Cut(what, " ")
				out := runNft(t, "", "list", "set", family, "hash", set)
				kit.Need(t, strings.Contains(out, fmt.Sprintf(" %s . %d", port, n)), "%s %s . %d is not in\n%s", family, what, n, out)
			}
		}
	})
}

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
			kit.Check(t, strings.Contains(text, key) && strings.Contains(text, value) && !strings.Contains(text, "8080") && strings.Count(text, "tcp flags ! ack") == 2,
				"the table is\n%s", text)
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
