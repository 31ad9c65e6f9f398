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

// Text returns e as "ipset save" prints it, 192.0.2.1,tcp:80,10.0.0.0/8 for
// one.
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

// addrText is what the C library writes: an address that starts with 96 zeros
// ends as one of IPv4 does.
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

// WriteText writes the set in the form of "ipset save", sorted and each entry
// once, so that "ipset restore" makes it where there is none of that name. It
// writes of the size only what a set starts with.
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

// commentSize is the most bytes that the kernel takes for a comment.
const commentSize = 255

// sanitizeComment returns a comment without what would end it or its line in the text
// form, cut to what the kernel takes but not within a character.
func sanitizeComment(comment string) string {
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
