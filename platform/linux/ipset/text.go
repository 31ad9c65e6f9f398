// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"kubeproxy/common/service"
)

// Text returns e in the format of "ipset save", for example 192.0.2.1,tcp:80,10.0.0.0/8.
func (s Set) Text(e Entry) string {
	text := addrText(e.Addr)
	if s.Type != HashIP {
		text += fmt.Sprintf(",%s:%d", e.Protocol, e.Port)
	}
	if s.Type == HashIPPortNet {
		text += "," + netText(e.Net)
	}
	return text
}

// addrText formats a like the C library: the last 32 bits of an IPv6 address that begins
// with 96 zero bits are in IPv4 format.
func addrText(a netip.Addr) string {
	if !a.Is6() {
		return a.String()
	}
	b := a.As16()
	if [12]byte(b[:12]) != [12]byte{} || b[12] == 0 && b[13] == 0 {
		return a.String()
	}
	return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
}

func netText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return addrText(p.Addr())
	}
	return fmt.Sprintf("%s/%d", addrText(p.Addr()), p.Bits())
}

// WriteText writes the set in the format of "ipset save", sorted and without duplicates.
// "ipset restore" creates the set from it if there is none of that name. hashsize is
// always the initial size.
func (s Set) WriteText(w io.Writer, members []Member) {
	family := "inet"
	if s.Family == service.IPv6 {
		family = "inet6"
	}
	fmt.Fprintf(w, "create %s %s family %s hashsize 1024 maxelem %d comment\n", s.Name, s.Type, family, maxElements)
	all := normalize(members)
	slices.SortStableFunc(all, func(a, b Member) int { return a.Compare(b.Entry) })
	all = slices.CompactFunc(all, func(a, b Member) bool { return a.Entry == b.Entry })
	for _, m := range all {
		fmt.Fprintf(w, "add %s %s", s.Name, s.Text(m.Entry))
		if m.Comment != "" {
			fmt.Fprintf(w, " comment \"%s\"", m.Comment)
		}
		fmt.Fprintln(w)
	}
}

// commentSize is the maximum length of a comment in bytes (kernel:
// include/uapi/linux/netfilter/ipset/ip_set.h).
const commentSize = 255

// Comment returns comment in the form in which the kernel gets it. It replaces the
// characters that would end the comment or its line in the text format. It truncates the
// comment at the end of a character to the maximum length of the kernel.
func Comment(comment string) string {
	comment = strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r < ' ' || r == 0x7f:
			return ' '
		}
		return r
	}, comment)
	if len(comment) <= commentSize {
		return comment
	}
	end := commentSize
	for !utf8.RuneStart(comment[end]) {
		end--
	}
	return comment[:end]
}
