// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"iter"
)

const (
	attributeHeader = 4
	alignment       = 4
)

// Attributes yields the type, without flags, and the value of each attribute in b. A
// truncated attribute ends the sequence.
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

// Uint32 returns the number in network byte order at the start of an attribute's value, 0
// if the value is too short.
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
