// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/platform/linux/packet"
	"kubeproxy/test/kit"
)

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
				if out := runNft(t, "", "list", "set", family, "hash", set); !strings.Contains(out, fmt.Sprintf(" %s . %d", port, n)) {
					t.Fatalf("%s %s . %d is not in\n%s", family, what, n, out)
				}
			}
		}
	})
}
