// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/mdlayher/netlink"

	"kubeproxy/common/service"
)

// Constants of the kernel: include/uapi/linux/netfilter/nfnetlink_conntrack.h, and
// net/netfilter/nf_internals.h for the flags of a filter.
const (
	subsystem = 1 << 8 // ctnetlink, the upper half of a message type

	msgNew    = 0
	msgGet    = 1
	msgDelete = 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaProtoInfoTCP   = 1
	ctaProtoInfoSCTP  = 3
	ctaProtoInfoState = 1 // for both protocols

	statusSeenReply = 1 << 1

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaFilterOrig = 1

	filterDst      = 1 << 1
	filterProtocol = 1 << 3
	filterDstPort  = 1 << 5
)

// The numbers of the address families, and the size of struct nfgenmsg, which begins with
// one.
const (
	afINET       = 2
	afINET6      = 10
	nfgenmsgSize = 4
)

var errShort = errors.New("message is cut short")

// nfgenmsg returns the start of every payload.
func nfgenmsg(f service.Family) []byte {
	b := make([]byte, nfgenmsgSize)
	b[0] = afINET
	if f == service.IPv6 {
		b[0] = afINET6
	}
	return b
}

// encodeFilter returns the payload of a dump request. A kernel before 5.8 does not
// support filters and dumps the whole family. A kernel before 5.17 ignores the status.
func encodeFilter(f Filter) ([]byte, error) {
	if f.Protocol == 0 {
		return nfgenmsg(f.Family), nil
	}
	flags := uint32(filterProtocol)
	dst := netip.AddrPortFrom(netip.Addr{}, f.Port)
	if f.Addr.Is4() {
		dst = netip.AddrPortFrom(f.Addr, f.Port)
		flags |= filterDst
	}
	if f.Port != 0 {
		flags |= filterDstPort
	}
	ae := netlink.NewAttributeEncoder()
	ae.Nested(ctaTupleOrig, func(ae *netlink.AttributeEncoder) error {
		return encodeTuple(ae, f.Protocol, netip.AddrPort{}, dst)
	})
	ae.Nested(ctaFilter, func(ae *netlink.AttributeEncoder) error {
		ae.Uint32(ctaFilterOrig, flags)
		return nil
	})
	if f.OneWay {
		ae.Bytes(ctaStatus, []byte{0, 0, 0, 0})
		ae.Bytes(ctaStatusMask, []byte{0, 0, 0, statusSeenReply})
	}
	return payload(f.Family, ae)
}

// encodeDelete returns the payload that deletes f and no other entry. The reply tuple
// distinguishes f from a later entry with the same original tuple and another endpoint.
// The ID is a hash that covers the original tuple. It distinguishes f from a flow
// directly to the endpoint.
//
// It returns an error if f lacks an address. Without a tuple the kernel would flush the
// whole table (kernel: net/netfilter/nf_conntrack_netlink.c, ctnetlink_del_conntrack).
func encodeDelete(f Flow) ([]byte, error) {
	if !f.ReplySrc.IsValid() || !f.ReplyDst.IsValid() {
		return nil, fmt.Errorf("entry from %s to %s lacks an address", f.ReplySrc, f.ReplyDst)
	}
	ae := encodeReply(f)
	ae.Uint32(ctaID, f.ID)
	return payload(service.FamilyOf(f.ReplySrc.Addr()), ae)
}

// encodeGet returns the payload that requests the entry with the reply tuple of f.
func encodeGet(f Flow) ([]byte, error) {
	return payload(service.FamilyOf(f.ReplySrc.Addr()), encodeReply(f))
}

// encodeReply encodes the reply tuple and zone, by which the kernel finds f.
func encodeReply(f Flow) *netlink.AttributeEncoder {
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	ae.Nested(ctaTupleReply, func(ae *netlink.AttributeEncoder) error {
		return encodeTuple(ae, f.Protocol, f.ReplySrc, f.ReplyDst)
	})
	if f.ReplyZone != 0 {
		ae.Uint16(ctaZone, f.ReplyZone)
	}
	return ae
}

func payload(f service.Family, ae *netlink.AttributeEncoder) ([]byte, error) {
	attrs, err := ae.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode conntrack message: %w", err)
	}
	return append(nfgenmsg(f), attrs...), nil
}

// encodeTuple omits what is not set.
func encodeTuple(ae *netlink.AttributeEncoder, p service.Protocol, src, dst netip.AddrPort) error {
	if src.Addr().IsValid() || dst.Addr().IsValid() {
		ae.Nested(ctaTupleIP, func(ae *netlink.AttributeEncoder) error {
			encodeAddr(ae, src.Addr(), ctaIPv4Src, ctaIPv6Src)
			encodeAddr(ae, dst.Addr(), ctaIPv4Dst, ctaIPv6Dst)
			return nil
		})
	}
	ae.Nested(ctaTupleProto, func(ae *netlink.AttributeEncoder) error {
		ae.ByteOrder = binary.BigEndian
		ae.Uint8(ctaProtoNum, uint8(p))
		if src.Port() != 0 {
			ae.Uint16(ctaProtoSrcPort, src.Port())
		}
		if dst.Port() != 0 {
			ae.Uint16(ctaProtoDstPort, dst.Port())
		}
		return nil
	})
	return nil
}

func encodeAddr(ae *netlink.AttributeEncoder, a netip.Addr, v4, v6 uint16) {
	switch {
	case a.Is4():
		ae.Bytes(v4, a.AsSlice())
	case a.IsValid():
		ae.Bytes(v6, a.AsSlice())
	}
}

// decodeFlow decodes the payload of one dumped entry.
//
// It does not use the attribute decoder of the netlink package, which copies each
// attribute. That would take 15 allocations per entry, and a dump may have a million
// entries.
func decodeFlow(b []byte) (Flow, error) {
	if len(b) < nfgenmsgSize {
		return Flow{}, errShort
	}
	var orig, reply tuple
	var zone uint16
	var f Flow
	for typ, data := range attributes(b[nfgenmsgSize:]) {
		switch {
		case typ == ctaTupleOrig:
			orig = decodeTuple(data)
		case typ == ctaTupleReply:
			reply = decodeTuple(data)
		case typ == ctaID && len(data) == 4:
			f.ID = binary.BigEndian.Uint32(data)
		case typ == ctaZone && len(data) == 2:
			zone = binary.BigEndian.Uint16(data)
		case typ == ctaStatus && len(data) == 4:
			f.Answered = binary.BigEndian.Uint32(data)&statusSeenReply != 0
		case typ == ctaProtoInfo:
			f.State = decodeState(data)
		}
	}
	f.Protocol = orig.protocol
	f.Src, f.Dst, f.Zone = orig.source(), orig.destination(), cmp.Or(orig.zone, zone)
	f.ReplySrc, f.ReplyDst, f.ReplyZone = reply.source(), reply.destination(), cmp.Or(reply.zone, zone)
	if !f.Src.IsValid() || !f.Dst.IsValid() || !f.ReplySrc.IsValid() || !f.ReplyDst.IsValid() {
		return f, errShort
	}
	return f, nil
}

// decodeState returns the state of a connection, 0 for a protocol without connections.
func decodeState(b []byte) uint8 {
	for protocol, info := range attributes(b) {
		if protocol != ctaProtoInfoTCP && protocol != ctaProtoInfoSCTP {
			continue
		}
		for typ, data := range attributes(info) {
			if typ == ctaProtoInfoState && len(data) == 1 {
				return data[0]
			}
		}
	}
	return 0
}

// tuple is one direction of an entry. Its ports are 0 for a protocol without ports.
type tuple struct {
	protocol service.Protocol
	src, dst netip.Addr
	from, to uint16
	zone     uint16 // if it applies to this direction only
}

func (t tuple) source() netip.AddrPort      { return netip.AddrPortFrom(t.src, t.from) }
func (t tuple) destination() netip.AddrPort { return netip.AddrPortFrom(t.dst, t.to) }

func decodeTuple(b []byte) tuple {
	var t tuple
	for typ, data := range attributes(b) {
		switch {
		case typ == ctaTupleIP:
			t.decodeAddrs(data)
		case typ == ctaTupleProto:
			t.decodeProto(data)
		case typ == ctaTupleZone && len(data) == 2:
			t.zone = binary.BigEndian.Uint16(data)
		}
	}
	return t
}

func (t *tuple) decodeAddrs(b []byte) {
	for typ, data := range attributes(b) {
		switch typ {
		case ctaIPv4Src, ctaIPv6Src:
			t.src, _ = netip.AddrFromSlice(data)
		case ctaIPv4Dst, ctaIPv6Dst:
			t.dst, _ = netip.AddrFromSlice(data)
		}
	}
}

func (t *tuple) decodeProto(b []byte) {
	for typ, data := range attributes(b) {
		switch {
		case typ == ctaProtoNum && len(data) == 1:
			t.protocol = service.Protocol(data[0])
		case typ == ctaProtoSrcPort && len(data) == 2:
			t.from = binary.BigEndian.Uint16(data)
		case typ == ctaProtoDstPort && len(data) == 2:
			t.to = binary.BigEndian.Uint16(data)
		}
	}
}

// message is one netlink message.
type message struct {
	typ   netlink.HeaderType
	flags netlink.HeaderFlags
	seq   uint32
	data  []byte // valid until the next read
}

const messageHeaderSize = 16

// messages yields the messages in one datagram. It stops at a malformed one.
func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= messageHeaderSize {
			n := int(binary.NativeEndian.Uint32(b))
			if n < messageHeaderSize || n > len(b) {
				return
			}
			m := message{
				typ:   netlink.HeaderType(binary.NativeEndian.Uint16(b[4:])),
				flags: netlink.HeaderFlags(binary.NativeEndian.Uint16(b[6:])),
				seq:   binary.NativeEndian.Uint32(b[8:]),
				data:  b[messageHeaderSize:n],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

const attrHeaderSize = 4

// attributes yields the type and value of each attribute in b. It stops at a malformed
// one.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHeaderSize {
			n := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (netlink.Nested | netlink.NetByteOrder)
			if n < attrHeaderSize || n > len(b) || !yield(typ, b[attrHeaderSize:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// align rounds n up to the alignment of messages and attributes.
func align(n int) int { return (n + 3) &^ 3 }
