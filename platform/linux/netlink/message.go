// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netlink exchanges messages with the kernel as netlink(7) describes them. Encoder writes
// requests, Messages and Attributes read answers, Socket sends and receives. It has what general
// libraries lack: one acknowledgement for a transaction, one buffer for all answers, and
// notifications without those about a caller's own changes; and what all need who talk to
// nf_tables.
package netlink

import (
	"encoding/binary"
	"fmt"
	"iter"

	"kubeproxy/common/service"
)

// Message is one message of the kernel. Body is valid until the next datagram is received.
type Message struct {
	Type, Flags uint16
	Seq, PortID uint32
	Body        []byte
}

const (
	messageHeader   = 16
	netfilterHeader = 4
	genericHeader   = 4
)

// Messages yields the messages in one datagram. A malformed one is an error and the last.
func Messages(b []byte) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for len(b) >= messageHeader {
			n := int(binary.NativeEndian.Uint32(b))
			if n < messageHeader || n > len(b) {
				yield(Message{}, fmt.Errorf("netlink message of %d bytes in %d", n, len(b)))
				return
			}
			m := Message{
				Type: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq: binary.NativeEndian.Uint32(b[8:]), PortID: binary.NativeEndian.Uint32(b[12:]),
				Body: b[messageHeader:n],
			}
			if !yield(m, nil) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// Netfilter returns the family in the header of netfilter and what follows, zero if m is short.
func (m Message) Netfilter() (family uint8, attributes []byte) {
	if len(m.Body) < netfilterHeader {
		return 0, nil
	}
	return m.Body[0], m.Body[netfilterHeader:]
}

// Generic returns what follows the header of generic netlink, nil if m is too short.
func (m Message) Generic() []byte {
	if len(m.Body) < genericHeader {
		return nil
	}
	return m.Body[genericHeader:]
}

const (
	attributeHeader = 4
	alignment       = 4
)

// Attributes yields type, without flags, and value of each attribute in b, until one is truncated.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attributeHeader {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attributeHeader || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (Nested | NetByteOrder)
			if !yield(typ, b[attributeHeader:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// Attribute returns the value of the first attribute of a type in b, or nil.
func Attribute(b []byte, typ uint16) []byte {
	for t, v := range Attributes(b) {
		if t == typ {
			return v
		}
	}
	return nil
}

// Text returns the value of an attribute as text, which ends at the first zero.
func Text(v []byte) string {
	for i, c := range v {
		if c == 0 {
			return string(v[:i])
		}
	}
	return string(v)
}

// Uint32 returns the number at the start of a value, in network byte order, 0 if it is short.
func Uint32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// Uint16 is Uint32 for two bytes.
func Uint16(v []byte) uint16 {
	if len(v) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(v)
}

// Native64 is Native32 for eight bytes.
func Native64(v []byte) uint64 {
	if len(v) < 8 {
		return 0
	}
	return binary.NativeEndian.Uint64(v)
}

// Native32 is Uint32 for a number in the byte order of the machine.
func Native32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}

// Native16 is Native32 for two bytes.
func Native16(v []byte) uint16 {
	if len(v) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(v)
}

// align rounds n up to the alignment of messages and attributes.
func align(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// Flags of an attribute's type and of a message (kernel: include/uapi/linux/netlink.h).
const (
	Nested       = 1 << 15 // NLA_F_NESTED
	NetByteOrder = 1 << 14 // NLA_F_NET_BYTEORDER

	request = 1 // NLM_F_REQUEST
)

// Encoder encodes messages or attributes into one buffer. Ending one fills in its length.
type Encoder struct {
	Buf []byte
	// Seq is the sequence number of the last message.
	Seq uint32
	// start is the offset of the current message.
	start int
}

// Message begins a message. Numbers are counted from one.
func (e *Encoder) Message(typ, flags uint16) {
	e.start = len(e.Buf)
	e.Seq++
	e.Buf = binary.NativeEndian.AppendUint32(e.Buf, 0)
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, typ)
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, flags|request)
	e.Buf = binary.NativeEndian.AppendUint32(e.Buf, e.Seq)
	e.Buf = binary.NativeEndian.AppendUint32(e.Buf, 0)
}

// NetfilterMessage begins a message of netfilter. resource is the subsystem around a batch, else 0.
func (e *Encoder) NetfilterMessage(typ, flags uint16, family uint8, resource uint16) {
	e.Message(typ, flags)
	e.Buf = append(e.Buf, family, 0) // NFNETLINK_V0
	e.Buf = binary.BigEndian.AppendUint16(e.Buf, resource)
}

// GenericMessage begins a message of generic netlink to a family by its number.
func (e *Encoder) GenericMessage(family, flags uint16, command uint8) {
	e.Message(family, flags)
	e.Buf = append(e.Buf, command, 1, 0, 0) // the version, and reserved
}

// EndMessage ends the current message.
func (e *Encoder) EndMessage() {
	binary.NativeEndian.PutUint32(e.Buf[e.start:], uint32(len(e.Buf)-e.start))
}

// AddFlags adds flags to the last message.
func (e *Encoder) AddFlags(flags uint16) {
	at := e.Buf[e.start+6:]
	binary.NativeEndian.PutUint16(at, binary.NativeEndian.Uint16(at)|flags)
}

// Nest begins an attribute that contains attributes. EndNest ends it.
func (e *Encoder) Nest(typ uint16) int {
	at := len(e.Buf)
	e.header(typ|Nested, 0)
	return at
}

// EndNest ends the attribute at the offset that Nest returned.
func (e *Encoder) EndNest(at int) { binary.NativeEndian.PutUint16(e.Buf[at:], uint16(len(e.Buf)-at)) }

// Bytes appends an attribute.
func (e *Encoder) Bytes(typ uint16, value []byte) {
	e.header(typ, len(value))
	e.Buf = append(e.Buf, value...)
	e.pad()
}

// Text appends a text, which ends with a zero.
func (e *Encoder) Text(typ uint16, value string) {
	e.header(typ, len(value)+1)
	e.Buf = append(append(e.Buf, value...), 0)
	e.pad()
}

// Uint8 appends a number of one byte.
func (e *Encoder) Uint8(typ uint16, value uint8) {
	e.header(typ, 1)
	e.Buf = append(e.Buf, value)
	e.pad()
}

// Uint16 appends a number in network byte order.
func (e *Encoder) Uint16(typ, value uint16) {
	e.header(typ, 2)
	e.Buf = binary.BigEndian.AppendUint16(e.Buf, value)
	e.pad()
}

// Uint32 appends a number in network byte order.
func (e *Encoder) Uint32(typ uint16, value uint32) {
	e.header(typ, 4)
	e.Buf = binary.BigEndian.AppendUint32(e.Buf, value)
}

// Uint64 appends a number in network byte order.
func (e *Encoder) Uint64(typ uint16, value uint64) {
	e.header(typ, 8)
	e.Buf = binary.BigEndian.AppendUint64(e.Buf, value)
}

// Native16 appends a number in the byte order of the machine.
func (e *Encoder) Native16(typ, value uint16) {
	e.header(typ, 2)
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, value)
	e.pad()
}

// Native32 appends a number in the byte order of the machine.
func (e *Encoder) Native32(typ uint16, value uint32) {
	e.header(typ, 4)
	e.Buf = binary.NativeEndian.AppendUint32(e.Buf, value)
}

// header appends the header of an attribute with a value of size bytes.
func (e *Encoder) header(typ uint16, size int) {
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, uint16(attributeHeader+size))
	e.Buf = binary.NativeEndian.AppendUint16(e.Buf, typ)
}

func (e *Encoder) pad() {
	for len(e.Buf)%alignment != 0 {
		e.Buf = append(e.Buf, 0)
	}
}

// Constants of include/uapi/linux/netfilter/nf_tables.h that golang.org/x/sys/unix lacks.
const (
	TableOwned      = 2    // NFT_TABLE_F_OWNER
	TableOwner      = 7    // NFTA_TABLE_OWNER
	ChainFlags      = 10   // NFTA_CHAIN_FLAGS
	ChainBase       = 1    // NFT_CHAIN_BASE
	SetConcatenated = 0x80 // NFT_SET_CONCAT
	SetDescConcat   = 2    // NFTA_SET_DESC_CONCAT
	SetFieldLen     = 1    // NFTA_SET_FIELD_LEN
	SetExpr         = 17   // NFTA_SET_EXPR
	SetExprs        = 18   // NFTA_SET_EXPRESSIONS
	ElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
	ElemExprs       = 11   // NFTA_SET_ELEM_EXPRESSIONS
	ElemCatchAll    = 2    // NFT_SET_ELEM_CATCHALL
	DynsetExprs     = 10   // NFTA_DYNSET_EXPRESSIONS
)

// Verdicts of netfilter, and policies (kernel: include/uapi/linux/netfilter.h).
const (
	Drop   = 0 // NF_DROP
	Accept = 1 // NF_ACCEPT
)

// FamilyName returns the name of nft(8) for the tables of f.
func FamilyName(f service.Family) string {
	if f == service.IPv6 {
		return "ip6"
	}
	return "ip"
}
