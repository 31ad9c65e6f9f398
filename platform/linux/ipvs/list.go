// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/service"
)

// fillDests adds to servers the destinations that /proc/net/ip_vs lists. One read
// returns all of them, while netlink needs a request per virtual server. If other
// network namespaces have virtual servers, too, a kernel may leave some out: it counts
// those of all namespaces while it writes, and those of this one where it continues
// (kernel: net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_info_seq_next and ip_vs_info_array). One
// with https://git.kernel.org/torvalds/c/74455a5b4326 has a table for each namespace. For
// those that are left out destsKnown stays false.
func fillDests(servers map[key]*observedServer, text io.Reader) error {
	lines := bufio.NewScanner(text)
	var now *observedServer
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) < 2:
		case words[0] == "->" && words[1] == "RemoteAddress:Port":
		case words[0] == "->":
			if now == nil || len(words) < 6 {
				continue
			}
			x, err := parseDest(words)
			if err != nil {
				return fmt.Errorf("%q: %w", lines.Text(), err)
			}
			now.dests = append(now.dests, x)
		default:
			now = nil
			if k, ok := parseKey(words); ok {
				now = servers[k]
			}
			if now != nil {
				now.destsKnown, now.dests = true, nil
			}
		}
	}
	for _, l := range servers {
		slices.SortFunc(l.dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
		l.dests = slices.CompactFunc(l.dests, func(a, b dest) bool { return a.addr == b.addr })
	}
	return lines.Err()
}

func parseKey(words []string) (key, bool) {
	protocols := map[string]service.Protocol{"TCP": service.TCP, "UDP": service.UDP, "SCTP": service.SCTP}
	p, found := protocols[words[0]]
	a, err := parseHex(words[1])
	return key{a.Addr(), a.Port(), p}, found && err == nil
}

// parseDest parses "-> 0AF40102:1F90 Masq 1 0 0".
func parseDest(words []string) (dest, error) {
	a, err := parseHex(words[1])
	if err != nil {
		return dest{}, err
	}
	var numbers [3]uint64
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(words[3+i], 10, 32); err != nil {
			return dest{}, err
		}
	}
	return dest{a, uint16(numbers[0]), uint32(numbers[1] + numbers[2]), words[2] != "Masq"}, nil
}

// parseHex parses an address and port such as 0AF40102:1F90 or
// [fd00:0010:0000:0000:0000:0000:0000:0001]:1F90.
func parseHex(s string) (netip.AddrPort, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return netip.AddrPort{}, fmt.Errorf("%q has no port", s)
	}
	port, err := strconv.ParseUint(s[i+1:], 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if v6, found := strings.CutPrefix(s[:i], "["); found {
		a, err := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		return netip.AddrPortFrom(a, uint16(port)), err
	}
	n, err := strconv.ParseUint(s[:i], 16, 32)
	a := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	return netip.AddrPortFrom(a, uint16(port)), err
}
