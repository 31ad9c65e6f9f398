// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/test/kit"
)

// TestParse reads tables as Windows lays them out, and such as end too early.
func TestParse(t *testing.T) {
	le := binary.LittleEndian.AppendUint32
	var four, six []byte
	four = le(four, 2)
	for _, port := range []byte{0x09, 0x10} { // 10249 and 10256 are 0x2809 and 0x2810
		four = le(four, 2)                          // state
		four = append(four, 127, 0, 0, 1)           // local address
		four = append(four, 0x28, port, 0xab, 0xcd) // local port, what follows means nothing
		four = le(le(le(four, 0), 0), 4000+uint32(port))
	}
	six = le(six, 1)
	six = append(six, make([]byte, 16)...)
	six = append(le(six, 0), 0x28, 0x10, 0, 0)
	six = append(six, make([]byte, 16)...)
	six = le(le(le(le(six, 0), 0), 2), 7)
	want := []Listener{
		{netip.MustParseAddrPort("127.0.0.1:10249"), 4009},
		{netip.MustParseAddrPort("127.0.0.1:10256"), 4016},
	}
	got := parse(four, rowIPv4)
	kit.Check(t, slices.Equal(got, want), "IPv4: %v, want %v", got, want)
	if got := parse(four[:len(four)-1], rowIPv4); !slices.Equal(got, want[:1]) {
		t.Errorf("IPv4, cut: %v, want %v", got, want[:1])
	}
	if got, want := parse(six, rowIPv6), (Listener{netip.MustParseAddrPort("[::]:10256"), 7}); !slices.Equal(got, []Listener{want}) {
		t.Errorf("IPv6: %v, want %v", got, want)
	}
	for n := range 4 {
		got := parse(four[:n], rowIPv4)
		kit.Check(t, len(got) == 0, "%d bytes: %v", n, got)
	}
}

func TestConflictsWith(t *testing.T) {
	for _, tt := range []struct {
		has, wants string
		keeps      bool
	}{
		{"127.0.0.1:10249", "127.0.0.1:10249", true},
		{"127.0.0.1:10249", "127.0.0.1:10256", false},
		{"127.0.0.1:10249", "192.0.2.1:10249", false},
		{"0.0.0.0:10249", "127.0.0.1:10249", true},
		{"127.0.0.1:10249", "0.0.0.0:10249", true},
		{"[::]:10249", "127.0.0.1:10249", true},
		{"[::1]:10249", "0.0.0.0:10249", false},
		{"127.0.0.1:10249", "[::]:10249", true},
	} {
		got := (Listener{Addr: netip.MustParseAddrPort(tt.has)}).Keeps(netip.MustParseAddrPort(tt.wants))
		kit.Check(t, got == tt.keeps, "%s keeps %s: %t, want %t", tt.has, tt.wants, got, tt.keeps)
	}
}
