// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import "kubeproxy/common/service"

// Flags of sets (kernel: include/uapi/linux/netfilter/nf_tables.h).
const (
	setInterval = 1 << 2
	setMap      = 1 << 3
	setTimeout  = 1 << 4
	setEval     = 1 << 5
	setConcat   = 1 << 7
)

func (s *set) flags() uint32 {
	flags := uint32(0)
	if s.kind != plainSet {
		flags |= setMap
	}
	if s.interval {
		flags |= setInterval | setConcat
	}
	if s.timeout != 0 {
		flags |= setTimeout | setEval
	}
	return flags
}

// setSpec holds the properties of a set, in numbers that do not depend on the system. The
// kernel fixes most of them. A size can change later since Linux 6.5, see
// https://git.kernel.org/torvalds/c/96b2ef9b16cb.
type setSpec struct {
	flags       uint32
	key, value  int // bytes
	verdicts    bool
	timeout     uint64 // ms
	size        uint32
	expressions bool // expressions that run for each matching element
}

func (s *set) spec(f service.Family) setSpec {
	return setSpec{
		flags: s.flags(), key: keySize(s.key, f), value: keySize(s.valueFields(), f), verdicts: s.kind == verdictMap,
		timeout: uint64(s.timeout.Milliseconds()), size: s.limit,
	}
}

// elementKey identifies an element within a set. No other key is as short as that of a
// catch-all element.
func elementKey(e element) string {
	if e.catchAll {
		return "*"
	}
	return string(e.key) + string(e.end)
}
