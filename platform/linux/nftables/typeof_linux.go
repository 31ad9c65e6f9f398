// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"kubeproxy/common/service"
)

// The kernel stores user data with a set and does not interpret it. nft keeps the
// declaration of the set there. Without it nft could not load its own listing of our maps
// again. The constants below describe that format, as nft 1.0.6 to 1.1 write and read it:
// type, length and value, of one byte, one byte and length bytes, with numbers in host
// byte order.
const (
	udataKeyOrder   = 0
	udataDataOrder  = 1
	udataKeyTypeof  = 3
	udataDataTypeof = 4
	udataDataRange  = 6

	orderMixed  = 0
	orderHost   = 1
	orderBig    = 2
	exprVerdict = 1
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	headerTransport, fieldDestinationPort = 11, 2
	headerIPv4, fieldIPv4Source           = 12, 11
	headerIPv6, fieldIPv6Source           = 13, 8
	metaL4Proto                           = 16
)

func tlv(b []byte, typ byte, value []byte) []byte {
	return append(append(b, typ, byte(len(value))), value...)
}

func tlv32(b []byte, typ byte, n uint32) []byte {
	return tlv(b, typ, binary.NativeEndian.AppendUint32(nil, n))
}

// typeofExpr encodes an expression by its kind and the data of that kind.
func typeofExpr(kind uint32, data []byte) []byte {
	return tlv(tlv32(nil, 0, kind), 1, data)
}

func typeofField(f field, family service.Family) []byte {
	switch f {
	case proto:
		return typeofExpr(exprMeta, tlv32(nil, 0, metaL4Proto))
	case dport, origDport:
		return typeofExpr(exprPayload, tlv32(tlv32(nil, 0, headerTransport), 1, fieldDestinationPort))
	case slot:
		return typeofExpr(exprNumgen, tlv32(tlv32(tlv32(nil, 0, 1), 1, 65536), 2, 0))
	}
	header, source := uint32(headerIPv4), uint32(fieldIPv4Source)
	if family == service.IPv6 {
		header, source = headerIPv6, fieldIPv6Source
	}
	if f == daddr || f == origDaddr {
		source++
	}
	return typeofExpr(exprPayload, tlv32(tlv32(nil, 0, header), 1, source))
}

// typeofFields encodes one field, or several as a concatenation. It also returns the byte
// order.
func typeofFields(fields []field, family service.Family) (desc []byte, order uint32) {
	if len(fields) == 1 {
		order = orderBig
		if fields[0] == slot {
			order = orderHost
		}
		return typeofField(fields[0], family), order
	}
	var parts []byte
	for i, f := range fields {
		parts = tlv(parts, byte(i), typeofField(f, family))
	}
	return typeofExpr(exprConcat, parts), orderMixed
}

// userData returns the declaration of s for nft.
func (s *set) userData(family service.Family) []byte {
	key, keyOrder := typeofFields(s.key, family)
	b := tlv32(nil, udataKeyOrder, keyOrder)
	if s.kind == plainSet {
		return tlv(b, udataKeyTypeof, key)
	}
	data, order := typeofExpr(exprVerdict, nil), uint32(orderMixed)
	if s.kind != verdictMap {
		data, order = typeofFields(s.valueFields(), family)
	}
	b = tlv32(b, udataDataOrder, order)
	b = tlv(tlv(b, udataKeyTypeof, key), udataDataTypeof, data)
	return tlv32(b, udataDataRange, 0)
}

// typeID returns nft's number for the type of f. The kernel stores it and does not
// interpret it.
func (f field) typeID(family service.Family) uint32 {
	const ipv4Addr, ipv6Addr, inetProto, inetService, integer = 7, 8, 12, 13, 4
	switch {
	case f.isAddr() && family == service.IPv6:
		return ipv6Addr
	case f.isAddr():
		return ipv4Addr
	case f == proto:
		return inetProto
	case f == slot:
		return integer
	}
	return inetService
}

// typeIDs returns the type of a concatenation, with six bits for each part.
func typeIDs(fields []field, family service.Family) uint32 {
	id := uint32(0)
	for _, f := range fields {
		id = id<<6 | f.typeID(family)
	}
	return id
}
