// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"fmt"
	"iter"
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

// Netfilter returns the family in the header of netfilter, and what follows this header.
// Both are zero if m is too short.
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
