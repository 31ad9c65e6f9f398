// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// entry parses an address and, unless it is empty, a prefix.
func entry(addr string, p service.Protocol, port uint16, prefix string) Entry {
	e := Entry{Addr: netip.MustParseAddr(addr), Protocol: p, Port: port}
	if prefix != "" {
		e.Net = netip.MustParsePrefix(prefix)
	}
	return e
}

func TestCompare(t *testing.T) {
	ordered := []Entry{
		entry("10.0.0.1", 0, 0, ""),
		entry("10.0.0.1", service.TCP, 443, "10.0.0.0/8"),
		entry("10.0.0.1", service.UDP, 53, "10.0.0.0/8"),
		entry("10.0.0.1", service.UDP, 53, "10.0.0.0/16"),
		entry("10.0.0.1", service.UDP, 53, "11.0.0.0/8"),
		entry("10.0.0.1", service.UDP, 80, "10.0.0.0/8"),
		entry("10.0.0.2", service.TCP, 1, "10.0.0.0/8"),
		entry("::1", service.TCP, 1, "::/1"),
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := a.Compare(b), cmp.Compare(i, j); got != want {
				t.Errorf("%v to %v = %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestHalves(t *testing.T) {
	for whole, want := range map[string][]string{
		"0.0.0.0/0":   {"0.0.0.0/1", "128.0.0.0/1"},
		"192.0.2.1/0": {"0.0.0.0/1", "128.0.0.0/1"},
		"::/0":        {"::/1", "8000::/1"},
		"10.0.0.0/8":  {"10.0.0.0/8"},
		"::1/128":     {"::1/128"},
	} {
		var got []string
		for _, p := range Halves(netip.MustParsePrefix(whole)) {
			got = append(got, p.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("halves of %s = %v, want %v", whole, got, want)
		}
	}
}
