// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// netByteOrder marks a number or an address as being in network byte order. Ipsets
// require it.
const netByteOrder = netlink.NetByteOrder

func encodeAddr(e *netlink.Encoder, typ uint16, a netip.Addr) {
	at := e.Nest(typ)
	switch {
	case a.Is4():
		e.Bytes(nl.IPSET_ATTR_IPADDR_IPV4|netByteOrder, a.AsSlice())
	case a.Is6():
		e.Bytes(nl.IPSET_ATTR_IPADDR_IPV6|netByteOrder, a.AsSlice())
	}
	e.EndNest(at)
}

// encodeElement appends m in the form for a set of type t.
func encodeElement(e *netlink.Encoder, t Type, m Member) {
	at := e.Nest(nl.IPSET_ATTR_DATA)
	encodeAddr(e, nl.IPSET_ATTR_IP, m.Addr)
	if t != HashIP {
		e.Uint16(nl.IPSET_ATTR_PORT|netByteOrder, m.Port)
		e.Uint8(nl.IPSET_ATTR_PROTO, uint8(m.Protocol))
	}
	if t == HashIPPortNet {
		encodeAddr(e, nl.IPSET_ATTR_IP2, m.Net.Addr())
		e.Uint8(nl.IPSET_ATTR_CIDR2, uint8(m.Net.Bits()))
	}
	if m.Comment != "" {
		e.Text(nl.IPSET_ATTR_COMMENT, m.Comment)
	}
	e.EndNest(at)
}

func readMember(b []byte) Member {
	var e Member
	var start netip.Addr
	bits := 0
	for typ, v := range netlink.Attributes(b) {
		switch {
		case typ == nl.IPSET_ATTR_IP:
			e.Addr = readAddr(v)
		case typ == nl.IPSET_ATTR_PORT && len(v) >= 2:
			e.Port = binary.BigEndian.Uint16(v)
		case typ == nl.IPSET_ATTR_PROTO && len(v) >= 1:
			e.Protocol = service.Protocol(v[0])
		case typ == nl.IPSET_ATTR_IP2:
			start = readAddr(v)
		case typ == nl.IPSET_ATTR_CIDR2 && len(v) >= 1:
			bits = int(v[0])
		case typ == nl.IPSET_ATTR_COMMENT:
			e.Comment = netlink.Text(v)
		}
	}
	if start.IsValid() {
		e.Net = netip.PrefixFrom(start, bits)
	}
	return e
}

func readAddr(b []byte) netip.Addr {
	var a netip.Addr
	for _, v := range netlink.Attributes(b) {
		a, _ = netip.AddrFromSlice(v)
	}
	return a
}

func readHeader(b []byte) Header {
	var h Header
	for typ, v := range netlink.Attributes(b) {
		switch {
		case typ == nl.IPSET_ATTR_SETNAME:
			h.Name = netlink.Text(v)
		case typ == nl.IPSET_ATTR_TYPENAME:
			h.Type = Type(netlink.Text(v))
		case typ == nl.IPSET_ATTR_FAMILY && len(v) >= 1 && v[0] == unix.AF_INET6:
			h.Family = service.IPv6
		case typ == nl.IPSET_ATTR_DATA:
			h.readData(v)
		}
	}
	return h
}

func (h *Header) readData(b []byte) {
	room, flags := uint32(0), uint32(0)
	for typ, v := range netlink.Attributes(b) {
		switch {
		case typ == nl.IPSET_ATTR_ELEMENTS && len(v) >= 4:
			h.Entries = int(binary.BigEndian.Uint32(v))
		case typ == nl.IPSET_ATTR_REFERENCES && len(v) >= 4:
			h.References = int(binary.BigEndian.Uint32(v))
		case typ == nl.IPSET_ATTR_MAXELEM && len(v) >= 4:
			room = binary.BigEndian.Uint32(v)
		case typ == nl.IPSET_ATTR_CADT_FLAGS && len(v) >= 4:
			flags = binary.BigEndian.Uint32(v)
		case typ == nl.IPSET_ATTR_TIMEOUT:
			h.Altered = true
		}
	}
	if room != 0 { // a type that this package creates
		h.Altered = h.Altered || room != maxElements || flags != nl.IPSET_FLAG_WITH_COMMENT
	}
}
