// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// wire is a sequence of netlink attributes.
type wire []byte

// netByteOrder marks a number or an address as being in network byte order. Ipsets
// require it.
const netByteOrder = unix.NLA_F_NET_BYTEORDER

func (w *wire) bytes(typ uint16, value ...byte) {
	*w = binary.NativeEndian.AppendUint16(*w, uint16(4+len(value)))
	*w = binary.NativeEndian.AppendUint16(*w, typ)
	*w = append(*w, value...)
	for len(*w)%4 != 0 {
		*w = append(*w, 0)
	}
}

func (w *wire) text(typ uint16, value string) {
	at := w.nest(typ)
	*w = append(append(*w, value...), 0)
	w.end(at)
}

func (w *wire) u32(typ uint16, value uint32) {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], value)
	w.bytes(typ|netByteOrder, b[:]...)
}

// nest begins an attribute that ends with end.
func (w *wire) nest(typ uint16) int {
	at := len(*w)
	w.bytes(typ)
	return at
}

func (w *wire) end(at int) {
	binary.NativeEndian.PutUint16((*w)[at:], uint16(len(*w)-at))
	for len(*w)%4 != 0 {
		*w = append(*w, 0)
	}
}

func (w *wire) addr(typ uint16, a netip.Addr) {
	at := w.nest(typ | unix.NLA_F_NESTED)
	switch {
	case a.Is4():
		b := a.As4()
		w.bytes(nl.IPSET_ATTR_IPADDR_IPV4|netByteOrder, b[:]...)
	case a.Is6():
		b := a.As16()
		w.bytes(nl.IPSET_ATTR_IPADDR_IPV6|netByteOrder, b[:]...)
	}
	w.end(at)
}

// element appends m in the form for a set of type t.
func (w *wire) element(t Type, m Member) {
	at := w.nest(nl.IPSET_ATTR_DATA | unix.NLA_F_NESTED)
	w.addr(nl.IPSET_ATTR_IP, m.Addr)
	if t != HashIP {
		w.bytes(nl.IPSET_ATTR_PORT|netByteOrder, byte(m.Port>>8), byte(m.Port))
		w.bytes(nl.IPSET_ATTR_PROTO, byte(m.Protocol))
	}
	if t == HashIPPortNet {
		w.addr(nl.IPSET_ATTR_IP2, m.Net.Addr())
		w.bytes(nl.IPSET_ATTR_CIDR2, byte(m.Net.Bits()))
	}
	if m.Comment != "" {
		w.text(nl.IPSET_ATTR_COMMENT, m.Comment)
	}
	w.end(at)
}

// attributes yields the type and value of each attribute in b. It stops at a truncated
// one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			n := int(binary.NativeEndian.Uint16(b))
			if n < 4 || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&nl.NLA_TYPE_MASK, b[4:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

func readMember(b []byte) Member {
	var e Member
	var start netip.Addr
	bits := 0
	for typ, v := range attributes(b) {
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
			e.Comment = unix.ByteSliceToString(v)
		}
	}
	if start.IsValid() {
		e.Net = netip.PrefixFrom(start, bits)
	}
	return e
}

func readAddr(b []byte) netip.Addr {
	var a netip.Addr
	for _, v := range attributes(b) {
		a, _ = netip.AddrFromSlice(v)
	}
	return a
}

func readHeader(b []byte) Header {
	var h Header
	for typ, v := range attributes(b) {
		switch {
		case typ == nl.IPSET_ATTR_SETNAME:
			h.Name = unix.ByteSliceToString(v)
		case typ == nl.IPSET_ATTR_TYPENAME:
			h.Type = Type(unix.ByteSliceToString(v))
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
	for typ, v := range attributes(b) {
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
