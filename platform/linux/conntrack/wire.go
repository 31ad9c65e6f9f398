// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// Constants of the kernel: include/uapi/linux/netfilter/nfnetlink_conntrack.h,
// net/netfilter/nf_internals.h for the flags of a filter, and
// include/uapi/linux/netfilter/nf_conntrack_tcp.h for those of a connection.
const (
	subsystem = 1 << 8 // ctnetlink, the upper half of a message type

	msgNew    = 0
	msgGet    = 1
	msgDelete = 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaID         = 12
	ctaZone       = 18
	ctaTimestamp  = 20
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaProtoInfoTCP   = 1
	ctaProtoInfoSCTP  = 3
	ctaProtoInfoState = 1 // for both protocols
	ctaProtoInfoFlags = 4 // of the client's direction, with a mask
	unacknowledged    = 0x10

	statusSeenReply = 1 << 1
	statusDNAT      = 1 << 5

	ctaTimestampStart = 1

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

// The numbers of families, and the size of struct nfgenmsg, which begins with one.
const (
	afUnspec     = 0
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
// support filters and dumps the whole family
// (https://git.kernel.org/torvalds/c/cb8aa9a3affb). A kernel before 5.15 ignores the
// status (https://git.kernel.org/torvalds/c/9344988d2979).
func encodeFilter(f Filter) []byte {
	e := payload(f.Family)
	if f.AllFamilies {
		e.Buf[0] = afUnspec
		encodeStatus(e, f)
		return e.Buf
	}
	if f.Protocol == 0 {
		return e.Buf
	}
	flags := uint32(filterProtocol)
	t := tuple{protocol: f.Protocol, to: f.Port}
	if f.Addr.Is4() {
		t.dst = f.Addr
		flags |= filterDst
	}
	if f.Port != 0 {
		flags |= filterDstPort
	}
	encodeTuple(e, ctaTupleOrig, t)
	filter := e.Nest(ctaFilter)
	e.Native32(ctaFilterOrig, flags)
	e.EndNest(filter)
	encodeStatus(e, f)
	return e.Buf
}

func encodeStatus(e *netlink.Encoder, f Filter) {
	switch {
	case f.OneWay:
		e.Uint32(ctaStatus, 0)
		e.Uint32(ctaStatusMask, statusSeenReply)
	case f.Answered:
		e.Uint32(ctaStatus, statusSeenReply)
		e.Uint32(ctaStatusMask, statusSeenReply)
	case f.Translated:
		e.Uint32(ctaStatus, statusSeenReply|statusDNAT)
		e.Uint32(ctaStatusMask, statusSeenReply|statusDNAT)
	}
}

// encodeDelete returns the payload that deletes f alone. The reply tuple tells it from a later
// entry to another endpoint, the ID, a hash with the original tuple, from a flow directly to the
// endpoint. Without a tuple the kernel would flush the table (kernel:
// net/netfilter/nf_conntrack_netlink.c, ctnetlink_del_conntrack), so f must have its addresses.
func encodeDelete(f Flow) ([]byte, error) {
	if !f.ReplySrc.IsValid() || !f.ReplyDst.IsValid() {
		return nil, fmt.Errorf("entry from %s to %s lacks an address", f.ReplySrc, f.ReplyDst)
	}
	e := encodeReply(f)
	e.Uint32(ctaID, f.ID)
	return e.Buf, nil
}

// encodeGet returns the payload that requests the entry with the reply tuple of f.
func encodeGet(f Flow) []byte { return encodeReply(f).Buf }

// encodeReply encodes the reply tuple and zone, by which the kernel finds f.
func encodeReply(f Flow) *netlink.Encoder {
	e := payload(service.FamilyOf(f.ReplySrc.Addr()))
	encodeTuple(e, ctaTupleReply, tuple{
		protocol: f.Protocol, src: f.ReplySrc.Addr(), dst: f.ReplyDst.Addr(), from: f.ReplySrc.Port(), to: f.ReplyDst.Port(),
	})
	if f.ReplyZone != 0 {
		e.Uint16(ctaZone, f.ReplyZone)
	}
	return e
}

// payload begins a payload of ctnetlink.
func payload(f service.Family) *netlink.Encoder { return &netlink.Encoder{Buf: nfgenmsg(f)} }

// encodeTuple omits what is not set.
func encodeTuple(e *netlink.Encoder, typ uint16, t tuple) {
	at := e.Nest(typ)
	if t.src.IsValid() || t.dst.IsValid() {
		ip := e.Nest(ctaTupleIP)
		encodeAddr(e, t.src, ctaIPv4Src, ctaIPv6Src)
		encodeAddr(e, t.dst, ctaIPv4Dst, ctaIPv6Dst)
		e.EndNest(ip)
	}
	proto := e.Nest(ctaTupleProto)
	e.Uint8(ctaProtoNum, uint8(t.protocol))
	if t.from != 0 {
		e.Uint16(ctaProtoSrcPort, t.from)
	}
	if t.to != 0 {
		e.Uint16(ctaProtoDstPort, t.to)
	}
	e.EndNest(proto)
	e.EndNest(at)
}

func encodeAddr(e *netlink.Encoder, a netip.Addr, v4, v6 uint16) {
	switch {
	case a.Is4():
		e.Bytes(v4, a.AsSlice())
	case a.IsValid():
		e.Bytes(v6, a.AsSlice())
	}
}

// decodeFlow decodes the payload of one dumped entry. A dump may have a million.
func decodeFlow(b []byte) (Flow, error) {
	if len(b) < nfgenmsgSize {
		return Flow{}, errShort
	}
	var orig, reply tuple
	var zone uint16
	var f Flow
	for typ, data := range netlink.Attributes(b[nfgenmsgSize:]) {
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
		case typ == ctaTimeout && len(data) == 4:
			f.Expires = binary.BigEndian.Uint32(data)
		case typ == ctaProtoInfo:
			f.decodeInfo(data)
		case typ == ctaTimestamp:
			f.Since = decodeStart(data)
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

// decodeInfo reads what is known of protocols with connections.
func (f *Flow) decodeInfo(b []byte) {
	for protocol, info := range netlink.Attributes(b) {
		if protocol != ctaProtoInfoTCP && protocol != ctaProtoInfoSCTP {
			continue
		}
		for typ, data := range netlink.Attributes(info) {
			switch {
			case typ == ctaProtoInfoState && len(data) == 1:
				f.State = data[0]
			case typ == ctaProtoInfoFlags && len(data) == 2 && protocol == ctaProtoInfoTCP:
				f.Owed = data[0]&unacknowledged != 0
			}
		}
	}
}

// decodeStart returns when an entry began.
func decodeStart(b []byte) time.Time {
	for typ, data := range netlink.Attributes(b) {
		if typ == ctaTimestampStart && len(data) == 8 {
			return time.Unix(0, int64(binary.BigEndian.Uint64(data)))
		}
	}
	return time.Time{}
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
	for typ, data := range netlink.Attributes(b) {
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
	for typ, data := range netlink.Attributes(b) {
		switch typ {
		case ctaIPv4Src, ctaIPv6Src:
			t.src, _ = netip.AddrFromSlice(data)
		case ctaIPv4Dst, ctaIPv6Dst:
			t.dst, _ = netip.AddrFromSlice(data)
		}
	}
}

func (t *tuple) decodeProto(b []byte) {
	for typ, data := range netlink.Attributes(b) {
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
