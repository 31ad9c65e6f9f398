// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"cmp"
	"errors"
	"net/netip"

	"kubeproxy/common/service"
)

// Type is what elements of a set are made of, as ipset calls it.
type Type string

// The types that sets are made of here; others may be anybody's.
const (
	HashIP        Type = "hash:ip"
	HashIPPort    Type = "hash:ip,port"
	HashIPPortNet Type = "hash:ip,port,net"
)

// nameSize is the most bytes that a set's name can have.
const nameSize = 31

// maxElements is how many elements a set takes. The kernel's memory grows with
// those that are there.
const maxElements = 1 << 20

// Set is a set by its name, which has at most 31 bytes.
type Set struct {
	Name   string
	Type   Type
	Family service.Family
}

// Entry is an element. Fields that the type of its set has not are zero, and
// so are the bits of Net beyond its length.
type Entry struct {
	Addr     netip.Addr
	Protocol service.Protocol
	Port     uint16
	Net      netip.Prefix
}

// Compare orders entries as their fields are declared.
func (e Entry) Compare(o Entry) int {
	return cmp.Or(
		e.Addr.Compare(o.Addr),
		cmp.Compare(e.Protocol, o.Protocol),
		cmp.Compare(e.Port, o.Port),
		// Prefix.Compare would mask both each time.
		e.Net.Addr().Compare(o.Net.Addr()),
		cmp.Compare(e.Net.Bits(), o.Net.Bits()),
	)
}

// Member is an Entry with a comment for people, "" for none. The kernel gets
// at most 255 bytes of it, and none that the text form of ipset cannot hold.
type Member struct {
	Entry
	Comment string
}

// Header is what the kernel says about a set beside its elements.
type Header struct {
	Name       string
	Type       Type
	Family     service.Family // IPv4 if the type has none
	Entries    int            // elements; 0 from old kernels, which do not say
	References int            // rules, and sets of sets
	// Altered says that it was not made by Create: it has room for another number of
	// elements, has them end by themselves, or notes other things about them.
	Altered bool
}

// What a set that was asked for can lack.
var (
	ErrMissing      = errors.New("no such ipset")
	ErrTypeMismatch = errors.New("the ipset is of another type or family")
)

// Halves returns p or, as no set holds a prefix of length 0, the two prefixes
// of length 1 that make it up.
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

// normalize returns members as a set can hold them: prefixes of length 0 are
// halved, and comments are fit for it.
func normalize(members []Member) []Member {
	all := make([]Member, 0, len(members))
	for _, m := range members {
		m.Comment = sanitizeComment(m.Comment)
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
