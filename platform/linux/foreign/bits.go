// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import "encoding/binary"

// bits is data of which some bits are known. Unknown bits are 0 in value.
type bits struct{ value, known []byte }

// certain returns b, all known.
func certain(b ...byte) bits {
	known := make([]byte, len(b))
	for i := range known {
		known[i] = 0xff
	}
	return bits{b, known}
}

// unknown returns size bytes of which nothing is known.
func unknown(size int) bits { return bits{make([]byte, size), make([]byte, size)} }

// number returns a number in the byte order of the machine, of which the bits in known are
// known.
func number(value, known uint32) bits {
	return bits{binary.NativeEndian.AppendUint32(nil, value&known), binary.NativeEndian.AppendUint32(nil, known)}
}

func (b bits) number() (value, known uint32) {
	if len(b.value) < 4 {
		return 0, 0
	}
	return binary.NativeEndian.Uint32(b.value), binary.NativeEndian.Uint32(b.known)
}

// part returns size bytes at an offset. What lies behind the end is unknown.
func (b bits) part(offset, size int) bits {
	p := unknown(size)
	if offset >= 0 && offset < len(b.value) {
		copy(p.value, b.value[offset:])
		copy(p.known, b.known[offset:])
	}
	return p
}

// isKnown reports whether every bit is known.
func (b bits) isKnown() bool {
	for _, k := range b.known {
		if k != 0xff {
			return false
		}
	}
	return true
}

// equals compares b with data.
func (b bits) equals(data []byte) match {
	result := yes
	for i, v := range b.value {
		if i >= len(data) {
			break
		}
		if (v^data[i])&b.known[i] != 0 {
			return no
		}
		if b.known[i] != 0xff {
			result = maybe
		}
	}
	return result
}

// least and most are the limits of what b may be, in network byte order.
func (b bits) least() []byte { return b.value }

func (b bits) most() []byte {
	most := make([]byte, len(b.value))
	for i, v := range b.value {
		most[i] = v | ^b.known[i]
	}
	return most
}

// masked returns b & mask ^ flip.
func (b bits) masked(mask, flip []byte) bits {
	r := unknown(len(b.value))
	for i := range r.value {
		m, f := at(mask, i), at(flip, i)
		r.known[i] = b.known[i] | ^m
		r.value[i] = (b.value[i]&m ^ f) & r.known[i]
	}
	return r
}

func at(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// swapped returns b with the bytes of each group of size bytes in reverse order.
func (b bits) swapped(size int) bits {
	if size <= 0 || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 { // a machine of network byte order
		return b
	}
	r := unknown(len(b.value))
	for i := range b.value {
		j := i/size*size + size - 1 - i%size
		if j < len(b.value) {
			r.value[j], r.known[j] = b.value[i], b.known[i]
		}
	}
	return r
}

// match says whether a packet matches.
type match uint8

const (
	no match = iota
	maybe
	yes
)

func matches(b bool) match {
	if b {
		return yes
	}
	return no
}

func (m match) negated() match { return yes - m }

// registers are those of the kernel: 64 bytes, addressed in words of 4 or 16 bytes (kernel:
// include/uapi/linux/netfilter/nf_tables.h, nft_registers).
type registers struct{ bits }

const registerBytes, firstShort = 64, 8

func newRegisters() registers { return registers{unknown(registerBytes)} }

func offset(register uint32) int {
	if register >= firstShort {
		return int(register-firstShort) * 4
	}
	return int(register-1) * 16
}

func (r registers) load(register uint32, size int) bits { return r.part(offset(register), size) }

// store writes b. The kernel fills the last word up with zeros.
func (r registers) store(register uint32, b bits) {
	for len(b.value)%4 != 0 {
		b = bits{append(b.value[:len(b.value):len(b.value)], 0), append(b.known[:len(b.known):len(b.known)], 0xff)}
	}
	if o := offset(register); o >= 0 && o < registerBytes {
		copy(r.value[o:], b.value)
		copy(r.known[o:], b.known)
	}
}
