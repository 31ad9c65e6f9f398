// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"cmp"
	"errors"
	"net/netip"

	"kubeproxy/common/service"
)

// Type is the type of a set, as in ipset(8).
type Type string

// The types that this package creates. Foreign sets may have others.
const (
	HashIP        Type = "hash:ip"
	HashIPPort    Type = "hash:ip,port"
	HashIPPortNet Type = "hash:ip,port,net"
)

// nameSize is the maximum length of a set's name in bytes.
const nameSize = 31

// maxElements is the maximum number of elements of a set. Kernel memory is used only for
// existing elements.
const maxElements = 1 << 20

// Set identifies a set. Name has at most 31 bytes.
type Set struct {
	Name   string
	Type   Type
	Family service.Family
}

// Entry is an element of a set. Fields that the type of the set does not have are zero.
// The bits of Net beyond its length are zero, too.
type Entry struct {
	Addr     netip.Addr
	Protocol service.Protocol
	Port     uint16
	Net      netip.Prefix
}

// Compare orders entries by their fields, in the order of declaration.
func (e Entry) Compare(o Entry) int {
	return cmp.Or(
		e.Addr.Compare(o.Addr),
		cmp.Compare(e.Protocol, o.Protocol),
		cmp.Compare(e.Port, o.Port),
		// Prefix.Compare would mask both prefixes on each call.
		e.Net.Addr().Compare(o.Net.Addr()),
		cmp.Compare(e.Net.Bits(), o.Net.Bits()),
	)
}

// Member is an Entry with a comment, "" for none. The kernel gets at most 255 bytes of
// it, without characters that the text format of ipset does not allow.
type Member struct {
	Entry
	Comment string
}

// Header describes a set without its elements.
type Header struct {
	Name       string
	Type       Type
	Family     service.Family // IPv4 if the type has no family
	Entries    int            // elements; 0 from old kernels, which do not report it
	References int            // rules, and sets of type list:set
	// Altered means that Create did not make the set: it has another maximum number of
	// elements, a timeout, or other extensions.
	Altered bool
}

// Errors about a set.
var (
	ErrMissing      = errors.New("no such ipset")
	ErrTypeMismatch = errors.New("the ipset is of another type or family")
)

// Halves returns p itself or, for a prefix of length 0, the two prefixes of length 1
// that it consists of: no set can hold a prefix of length 0 (ipset(8)).
func Halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() != 0 {
		return []netip.Prefix{p}
	}
	low := netip.PrefixFrom(p.Masked().Addr(), 1)
	b := low.Addr().AsSlice()
	b[0] = 0x80
	high, _ := netip.AddrFromSlice(b)
	return []netip.Prefix{low, netip.PrefixFrom(high, 1)}
}

// normalize returns members in a form that a set can hold: prefixes of length 0 are
// split, and comments are sanitized.
func normalize(members []Member) []Member {
	all := make([]Member, 0, len(members))
	for _, m := range members {
		m.Comment = Comment(m.Comment)
		whole := m.Net
		if whole.Bits() != 0 {
			all = append(all, m)
			continue
		}
		for _, m.Net = range Halves(whole) {
			all = append(all, m)
		}
	}
	return all
}
