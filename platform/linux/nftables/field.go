// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

// field is a value that a rule reads from a packet or its connection, or a random number.
// It is also the type of one part of a map key.
type field uint8

const (
	saddr     field = iota // source address
	daddr                  // destination address
	proto                  // transport protocol
	dport                  // destination port
	origSaddr              // the connection's source before any NAT
	origDaddr              // the connection's destination before any NAT
	origDport              // the connection's destination port before any NAT
	slot                   // a random number below a modulus that the rule gives
)

// text returns f as nft writes it in a rule or a typeof. For slot it returns a fixed
// modulus, because only the rule knows its own.
func (f field) text(family service.Family) string {
	ip := nft.FamilyName(family)
	switch f {
	case saddr:
		return ip + " saddr"
	case daddr:
		return ip + " daddr"
	case proto:
		return "meta l4proto"
	case dport:
		return "th dport"
	case origSaddr:
		return "ct original " + ip + " saddr"
	case origDaddr:
		return "ct original " + ip + " daddr"
	case origDport:
		return "ct original proto-dst"
	}
	return "numgen random mod 65536"
}

func (f field) isAddr() bool {
	return f == saddr || f == daddr || f == origSaddr || f == origDaddr
}

// size returns the number of bytes of f in a key. Each part is padded to a multiple of
// four.
func (f field) size(family service.Family) int {
	if f.isAddr() && family == service.IPv6 {
		return 16
	}
	return 4
}

func keySize(fields []field, family service.Family) int {
	n := 0
	for _, f := range fields {
		n += f.size(family)
	}
	return n
}

// A key is the concatenation of its fields in the kernel's format: addresses and ports in
// network byte order, the protocol in the first byte, slots in host byte order.

func appendAddr(key []byte, a netip.Addr) []byte {
	return append(key, a.AsSlice()...)
}

func appendProto(key []byte, p service.Protocol) []byte {
	return append(key, byte(p), 0, 0, 0)
}

func appendPort(key []byte, port uint16) []byte {
	return append(key, byte(port>>8), byte(port), 0, 0)
}

func appendSlot(key []byte, n uint32) []byte {
	return binary.NativeEndian.AppendUint32(key, n)
}

// keyText formats a key as nft lists it: "10.96.0.10 . tcp . 80". end is the upper bound
// of an interval key, otherwise nil.
func keyText(fields []field, family service.Family, key, end []byte) string {
	var parts []string
	for _, f := range fields {
		n := f.size(family)
		if len(key) < n {
			return fmt.Sprintf("%x", key)
		}
		if f.isAddr() && end != nil {
			parts = append(parts, prefixText(key[:n], end[:n]))
		} else {
			parts = append(parts, partText(f, key[:n]))
		}
		key = key[n:]
		if end != nil {
			end = end[n:]
		}
	}
	return strings.Join(parts, " . ")
}

func partText(f field, b []byte) string {
	switch f {
	case proto:
		return service.Protocol(b[0]).String()
	case dport, origDport:
		return fmt.Sprint(binary.BigEndian.Uint16(b))
	case slot:
		return fmt.Sprint(binary.NativeEndian.Uint32(b))
	}
	a, _ := netip.AddrFromSlice(b)
	return a.String()
}

// prefixText formats the range from first to last, which must be a prefix. A single
// address has no prefix length, as in nft.
func prefixText(first, last []byte) string {
	a, _ := netip.AddrFromSlice(first)
	bits := len(first) * 8
	for i := range first {
		for diff := first[i] ^ last[i]; diff != 0; diff >>= 1 {
			bits--
		}
	}
	if bits == a.BitLen() {
		return a.String()
	}
	return netip.PrefixFrom(a, bits).String()
}

// lastAddr returns the highest address in p.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// loopbackPrefix returns the loopback addresses of f.
func loopbackPrefix(f service.Family) netip.Prefix {
	if f == service.IPv6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}
