// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	mathbits "math/bits"
)

// Of returns the hash of data, scaled as by reciprocal_scale (kernel: nft_hash.c, nft_jhash_eval).
func (h Hash) Of(data []byte) uint32 {
	return uint32(uint64(jhash(data, h.Seed)) * uint64(h.Below) >> 32)
}

// jhash is lookup3 by Bob Jenkins, who placed it in the public domain
// (https://burtleburtle.net/bob/c/lookup3.c), with the start of the kernel (include/linux/jhash.h).
func jhash(k []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(k)) + seed
	b, c := a, a
	for ; len(k) > 12; k = k[12:] {
		a += binary.NativeEndian.Uint32(k)
		b += binary.NativeEndian.Uint32(k[4:])
		c += binary.NativeEndian.Uint32(k[8:])
		for _, r := range [...]int{4, 6, 8, 16, 19, 4} {
			a, b, c = b, c+b, (a-c)^mathbits.RotateLeft32(c, r)
		}
	}
	if len(k) == 0 {
		return c
	}
	var last [12]byte
	copy(last[:], k)
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])
	for _, r := range [...]int{14, 11, 25, 16, 4, 14, 24} {
		a, b, c = b, (c^b)-mathbits.RotateLeft32(b, r), a
	}
	return b
}
