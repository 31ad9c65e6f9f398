// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hive writes empty registry hives. Windows refuses to unpack an image whose
// lowest layer lacks them, although a HostProcess container uses the registry of the
// node. Windows Server 2025 refuses empty files in their place, see
// https://github.com/microsoft/windows-host-process-containers-base-image
package hive

import (
	"encoding/binary"
	"slices"
)

// Names are the hives that Windows wants in a lowest layer, see ensureBaseLayer in
// https://github.com/microsoft/hcsshim/blob/main/internal/wclayer/converttobaselayer.go
var Names = []string{"DEFAULT", "SAM", "SECURITY", "SOFTWARE", "SYSTEM"}

// The layout of a hive is that of
// https://github.com/msuhanov/regf/blob/master/Windows%20registry%20file%20format%20specification.md
const (
	block     = 4096 // the size of the base block, and of the only bin
	binHeader = 32
	none      = 0xffffffff
	rootFlags = 0x04 | 0x08 | 0x20 // root of a hive, not to be deleted, name in ASCII
)

// Empty returns a hive that has a root key and nothing else. It is always the same.
func Empty() []byte {
	sk := cell(securityKey(binHeader))
	nk := cell(keyNode("ROOT", binHeader))
	root := uint32(binHeader + len(sk))
	bin := le([]byte("hbin"), uint32(0), uint32(block), uint64(0), uint64(0), uint32(0))
	bin = slices.Concat(bin, sk, nk)
	free := block - len(bin)
	bin = append(le(bin, uint32(free)), make([]byte, free-4)...)

	base := le([]byte("regf"), uint32(1), uint32(1), uint64(0), uint32(1), uint32(3), uint32(0), uint32(1), root, uint32(block), uint32(1))
	base = append(base, make([]byte, block-len(base))...)
	binary.LittleEndian.PutUint32(base[508:], checksum(base[:508]))
	return append(base, bin...)
}

// le appends numbers in little-endian order.
func le(to []byte, numbers ...any) []byte {
	for _, n := range numbers {
		switch n := n.(type) {
		case uint16:
			to = binary.LittleEndian.AppendUint16(to, n)
		case uint32:
			to = binary.LittleEndian.AppendUint32(to, n)
		case uint64:
			to = binary.LittleEndian.AppendUint64(to, n)
		}
	}
	return to
}

// cell returns a cell in use. Its size is negative, and a multiple of eight.
func cell(content []byte) []byte {
	size := (len(content) + 4 + 7) &^ 7
	c := append(le(nil, -uint32(size)), content...)
	return append(c, make([]byte, size-len(c))...)
}

// keyNode returns a key without subkeys and values, with a security key at an offset.
func keyNode(name string, security uint32) []byte {
	n := le([]byte("nk"), uint16(rootFlags), uint64(0), uint32(0), uint32(none))
	n = le(n, uint32(0), uint32(0), uint32(none), uint32(none)) // subkeys
	n = le(n, uint32(0), uint32(none))                          // values
	n = le(n, security, uint32(none))
	n = le(n, uint32(0), uint32(0), uint32(0), uint32(0), uint32(0))
	n = le(n, uint16(len(name)), uint16(0))
	return append(n, name...)
}

// securityKey returns the only security key of a list, which is at an offset.
func securityKey(at uint32) []byte {
	d := descriptor()
	return append(le([]byte("sk"), uint16(0), at, at, uint32(1), uint32(len(d))), d...)
}

// descriptor returns the security descriptor of a key that administrators and the system
// may use, see
// https://learn.microsoft.com/openspecs/windows_protocols/ms-dtyp/7d4dac05-9cef-4563-a058-f108abecce1d
func descriptor() []byte {
	const (
		header       = 20
		aclHeader    = 8
		selfRelative = 0x8000
		daclPresent  = 0x0004
		allAccess    = 0xf003f
	)
	administrators := le([]byte{1, 2, 0, 0, 0, 0, 0, 5}, uint32(32), uint32(544))
	system := le([]byte{1, 1, 0, 0, 0, 0, 0, 5}, uint32(18))
	var entries []byte
	for _, sid := range [][]byte{administrators, system} {
		const inherit = 2
		entries = append(le(append(entries, 0, inherit), uint16(8+len(sid)), uint32(allAccess)), sid...)
	}
	acl := append(le([]byte{2, 0}, uint16(aclHeader+len(entries)), uint16(2), uint16(0)), entries...)
	owner := uint32(header + len(acl))
	d := le([]byte{1, 0}, uint16(selfRelative|daclPresent), owner, owner+uint32(len(administrators)), uint32(0), uint32(header))
	return slices.Concat(d, acl, administrators, system)
}

// checksum is the exclusive or of the words of a base block, except for two values that
// mean something else.
func checksum(words []byte) uint32 {
	var sum uint32
	for i := 0; i < len(words); i += 4 {
		sum ^= binary.LittleEndian.Uint32(words[i:])
	}
	switch sum {
	case 0:
		return 1
	case none:
		return none - 1
	}
	return sum
}
