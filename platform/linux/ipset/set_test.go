// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// entry parses an address and, unless it is empty, a prefix.
func entry(addr string, p service.Protocol, port uint16, prefix string) Entry {
	e := Entry{Addr: netip.MustParseAddr(addr), Protocol: p, Port: port}
	if prefix != "" {
		e.Net = netip.MustParsePrefix(prefix)
	}
	return e
}

func TestCompare(t *testing.T) {
	ordered := []Entry{
		entry("10.0.0.1", 0, 0, ""),
		entry("10.0.0.1", service.TCP, 443, "10.0.0.0/8"),
		entry("10.0.0.1", service.UDP, 53, "10.0.0.0/8"),
		entry("10.0.0.1", service.UDP, 53, "10.0.0.0/16"),
		entry("10.0.0.1", service.UDP, 53, "11.0.0.0/8"),
		entry("10.0.0.1", service.UDP, 80, "10.0.0.0/8"),
		entry("10.0.0.2", service.TCP, 1, "10.0.0.0/8"),
		entry("::1", service.TCP, 1, "::/1"),
	}
	for i, a := range ordered {
		for j, b := range ordered {
			got, want := a.Compare(b), cmp.Compare(i, j)
			kit.Check(t, got == want, "%v to %v = %d, want %d", a, b, got, want)
		}
	}
}

func TestHalves(t *testing.T) {
	for whole, want := range map[string][]string{
		"0.0.0.0/0":   {"0.0.0.0/1", "128.0.0.0/1"},
		"192.0.2.1/0": {"0.0.0.0/1", "128.0.0.0/1"},
		"::/0":        {"::/1", "8000::/1"},
		"10.0.0.0/8":  {"10.0.0.0/8"},
		"::1/128":     {"::1/128"},
	} {
		var got []string
		for _, p := range Halves(netip.MustParsePrefix(whole)) {
			got = append(got, p.String())
		}
		kit.Check(t, slices.Equal(got, want), "halves of %s = %v, want %v", whole, got, want)
	}
}

func TestNormalize(t *testing.T) {
	for _, tt := range []struct {
		typ   Type
		entry Entry
		want  string
	}{
		{HashIP, entry("192.0.2.1", 0, 0, ""), "192.0.2.1"},
		{HashIP, entry("2001:DB8:0:0::1", 0, 0, ""), "2001:db8::1"},
		{HashIP, entry("2001:db8:0:1:1:1:1:1", 0, 0, ""), "2001:db8:0:1:1:1:1:1"},
		{HashIP, entry("::1", 0, 0, ""), "::1"},
		{HashIP, entry("::ffff", 0, 0, ""), "::ffff"},
		{HashIP, entry("::102:304", 0, 0, ""), "::1.2.3.4"},
		{HashIP, entry("::1:0", 0, 0, ""), "::0.1.0.0"},
		{HashIP, entry("::1:102:304", 0, 0, ""), "::1:102:304"},
		{HashIPPort, entry("192.0.2.1", service.TCP, 80, ""), "192.0.2.1,tcp:80"},
		{HashIPPort, entry("192.0.2.1", service.SCTP, 65535, ""), "192.0.2.1,sctp:65535"},
		{HashIPPort, entry("2001:db8::1", service.UDP, 53, ""), "2001:db8::1,udp:53"},
		{HashIPPortNet, entry("192.0.2.1", service.TCP, 80, "10.0.0.0/8"), "192.0.2.1,tcp:80,10.0.0.0/8"},
		{HashIPPortNet, entry("192.0.2.1", service.TCP, 80, "10.0.0.1/32"), "192.0.2.1,tcp:80,10.0.0.1"},
		{HashIPPortNet, entry("::1", service.TCP, 80, "2001:db8::1/128"), "::1,tcp:80,2001:db8::1"},
		{HashIPPortNet, entry("::1", service.TCP, 80, "::/1"), "::1,tcp:80,::/1"},
	} {
		s := Set{Type: tt.typ}
		kit.Equal(t, s.Text(tt.entry), tt.want, "%s of %v", tt.typ, tt.entry)
	}
}

func TestWriteText(t *testing.T) {
	s := Set{"KUBE-LB", HashIPPortNet, service.IPv4}
	var text strings.Builder
	write := func(line, _ string) { text.WriteString(line) }
	s.Write([]Member{
		{entry("192.0.2.1", service.TCP, 80, "0.0.0.0/0"), `default/web:"http"`},
		{entry("192.0.2.1", service.TCP, 80, "128.0.0.0/1"), "again"},
		{entry("10.0.0.1", service.UDP, 53, "10.0.0.0/8"), ""},
	}, write)
	want := `create KUBE-LB hash:ip,port,net family inet hashsize 1024 maxelem 1048576 comment
add KUBE-LB 10.0.0.1,udp:53,10.0.0.0/8
add KUBE-LB 192.0.2.1,tcp:80,0.0.0.0/1 comment "default/web:'http'"
add KUBE-LB 192.0.2.1,tcp:80,128.0.0.0/1 comment "default/web:'http'"
`
	kit.Same(t, "text (-want +got)", want, text.String())
	text.Reset()
	Set{"A", HashIP, service.IPv6}.Write(nil, write)
	kit.Equal(t, text.String(), "create A hash:ip family inet6 hashsize 1024 maxelem 1048576 comment\n", "text of an empty set")
}

func TestSanitizeComment(t *testing.T) {
	for comment, want := range map[string]string{
		"":                              "",
		"default/web:http":              "default/web:http",
		"a \"b\"\n\tc\x00\x7f \\ é":     "a 'b'  c   \\ é",
		"\xff":                          "\ufffd",
		strings.Repeat("x", 300):        strings.Repeat("x", 255),
		strings.Repeat("x", 254) + "é":  strings.Repeat("x", 254),
		strings.Repeat("x", 253) + "é":  strings.Repeat("x", 253) + "é",
		strings.Repeat("x", 254) + "€y": strings.Repeat("x", 254),
		strings.Repeat("\xff", 255):     strings.Repeat("\ufffd", 85),
	} {
		got := Comment(comment)
		kit.Check(t, got == want, "%q fits as %q, want %q", comment, got, want)
	}
}
