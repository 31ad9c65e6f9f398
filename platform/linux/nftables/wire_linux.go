// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// wire encodes netlink messages into one buffer. Closing a message or attribute fills in
// its length.
type wire struct {
	buf []byte
	seq uint32
	// start is the offset of the current message.
	start int
}

// nft returns the netlink type of an nftables message.
func nft(msg int) uint16 { return uint16(unix.NFNL_SUBSYS_NFTABLES<<8 | msg) }

// open begins a message with the header of netfilter. res is the subsystem for batch
// messages, otherwise 0.
func (w *wire) open(typ, flags uint16, family uint8, res uint16) {
	w.start = len(w.buf)
	w.seq++
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, flags|unix.NLM_F_REQUEST)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, w.seq)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = append(w.buf, family, unix.NFNETLINK_V0)
	w.buf = binary.BigEndian.AppendUint16(w.buf, res)
}

func (w *wire) close() {
	binary.NativeEndian.PutUint32(w.buf[w.start:], uint32(len(w.buf)-w.start))
}

// addFlags adds flags to the message that was closed last.
func (w *wire) addFlags(flags uint16) {
	at := w.buf[w.start+6:]
	binary.NativeEndian.PutUint16(at, binary.NativeEndian.Uint16(at)|flags)
}

// nest opens a nested attribute. end closes it.
func (w *wire) nest(typ uint16) int {
	at := len(w.buf)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, 0)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ|unix.NLA_F_NESTED)
	return at
}

func (w *wire) end(at int) {
	binary.NativeEndian.PutUint16(w.buf[at:], uint16(len(w.buf)-at))
}

func (w *wire) bytes(typ uint16, value []byte) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(4+len(value)))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	w.buf = append(w.buf, value...)
	w.pad()
}

func (w *wire) str(typ uint16, value string) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, uint16(4+len(value)+1))
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	w.buf = append(append(w.buf, value...), 0)
	w.pad()
}

func (w *wire) u32(typ uint16, value uint32) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, 8)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	w.buf = binary.BigEndian.AppendUint32(w.buf, value)
}

func (w *wire) u64(typ uint16, value uint64) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, 12)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, typ)
	w.buf = binary.BigEndian.AppendUint64(w.buf, value)
}

func (w *wire) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

// attributes yields the type and value of each attribute in b. A truncated attribute ends
// the sequence.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			n := int(binary.NativeEndian.Uint16(b))
			if n < 4 || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[4:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// attribute returns the value of the first attribute of a type in b, or nil.
func attribute(b []byte, typ uint16) []byte {
	for t, v := range attributes(b) {
		if t == typ {
			return v
		}
	}
	return nil
}

func stringOf(v []byte) string {
	for i, c := range v {
		if c == 0 {
			return string(v[:i])
		}
	}
	return string(v)
}

func u32Of(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// reply is one message from the kernel.
type reply struct {
	typ, flags  uint16
	seq, portID uint32
	family      uint8
	body        []byte // after the netfilter header; the whole body of an error
}

// replies yields the messages in one datagram.
func replies(b []byte) iter.Seq2[reply, error] {
	return func(yield func(reply, error) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			n := int(binary.NativeEndian.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				yield(reply{}, fmt.Errorf("netlink message of %d bytes in %d", n, len(b)))
				return
			}
			r := reply{
				typ: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]),
				seq: binary.NativeEndian.Uint32(b[8:]), portID: binary.NativeEndian.Uint32(b[12:]),
				body: b[unix.SizeofNlMsghdr:n],
			}
			if r.typ > unix.NLMSG_MIN_TYPE && len(r.body) >= 4 {
				r.family, r.body = r.body[0], r.body[4:]
			}
			if !yield(r, nil) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}
