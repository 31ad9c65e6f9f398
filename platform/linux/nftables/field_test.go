// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

func TestFields(t *testing.T) {
	for name, tt := range map[string]struct {
		field field
		text  [2]string
		size  [2]int
	}{
		"source":               {saddr, [2]string{"ip saddr", "ip6 saddr"}, [2]int{4, 16}},
		"destination":          {daddr, [2]string{"ip daddr", "ip6 daddr"}, [2]int{4, 16}},
		"protocol":             {proto, [2]string{"meta l4proto", "meta l4proto"}, [2]int{4, 4}},
		"port":                 {dport, [2]string{"th dport", "th dport"}, [2]int{4, 4}},
		"original source":      {origSaddr, [2]string{"ct original ip saddr", "ct original ip6 saddr"}, [2]int{4, 16}},
		"original destination": {origDaddr, [2]string{"ct original ip daddr", "ct original ip6 daddr"}, [2]int{4, 16}},
		"original port":        {origDport, [2]string{"ct original proto-dst", "ct original proto-dst"}, [2]int{4, 4}},
		"slot":                 {slot, [2]string{"numgen random mod 65536", "numgen random mod 65536"}, [2]int{4, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range service.Families {
				if got := tt.field.text(f); got != tt.text[f] {
					t.Errorf("%s: text %q, want %q", f, got, tt.text[f])
				}
				if got := tt.field.size(f); got != tt.size[f] {
					t.Errorf("%s: %d bytes, want %d", f, got, tt.size[f])
				}
			}
		})
	}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestKeyText(t *testing.T) {
	tcp80 := func(a string) []byte {
		return appendPort(appendProto(appendAddr(nil, addr(a)), service.TCP), 80)
	}
	for name, tt := range map[string]struct {
		fields   []field
		family   service.Family
		key, end []byte
		want     string
	}{
		"address":          {[]field{daddr}, service.IPv4, appendAddr(nil, addr("10.96.0.10")), nil, "10.96.0.10"},
		"frontend":         {addrKey, service.IPv4, tcp80("10.96.0.10"), nil, "10.96.0.10 . tcp . 80"},
		"IPv6 frontend":    {addrKey, service.IPv6, tcp80("fd00:10:96::a"), nil, "fd00:10:96::a . tcp . 80"},
		"node port":        {nodePortKey, service.IPv6, appendPort(appendProto(nil, service.SCTP), 30080), nil, "sctp . 30080"},
		"slot":             {[]field{proto, dport, slot}, service.IPv4, appendSlot(appendPort(appendProto(nil, service.UDP), 53), 258), nil, "udp . 53 . 258"},
		"target":           {targetFields, service.IPv4, appendPort(appendAddr(nil, addr("10.244.1.5")), 8080), nil, "10.244.1.5 . 8080"},
		"unknown protocol": {nodePortKey, service.IPv4, appendPort(appendProto(nil, 99), 1), nil, "unknown . 1"},
		"a range of sources": {
			sources.key, service.IPv4,
			appendAddr(tcp80("203.0.113.5"), addr("192.0.2.0")), appendAddr(tcp80("203.0.113.5"), addr("192.0.2.127")),
			"203.0.113.5 . tcp . 80 . 192.0.2.0/25",
		},
		"a range of IPv6 sources": {
			sources.key, service.IPv6,
			appendAddr(tcp80("2001:db8::5"), addr("2001:db8:2::")), appendAddr(tcp80("2001:db8::5"), addr("2001:db8:2::ffff")),
			"2001:db8::5 . tcp . 80 . 2001:db8:2::/112",
		},
		"too short a key, as only others write": {addrKey, service.IPv6, tcp80("10.96.0.10"), nil, "0a60000a060000000050" + "0000"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := keyText(tt.fields, tt.family, tt.key, tt.end); got != tt.want {
				t.Errorf("keyText = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestKeySize(t *testing.T) {
	got := [2]int{keySize(sources.key, service.IPv4), keySize(sources.key, service.IPv6)}
	if want := [2]int{16, 40}; got != want {
		t.Errorf("keys of sources have %v bytes, want %v", got, want)
	}
}

// The text of each prefix of either family is the prefix, or its address if it holds only
// one.
func TestPrefixes(t *testing.T) {
	for _, a := range []string{"203.0.113.86", "2001:db8:aaaa:5555:f0f0:1234:5678:9abc"} {
		for bits := range addr(a).BitLen() + 1 {
			p := netip.PrefixFrom(addr(a), bits).Masked()
			want := p.String()
			if p.IsSingleIP() {
				want = p.Addr().String()
			}
			last := lastAddr(p)
			if got := prefixText(p.Addr().AsSlice(), last.AsSlice()); got != want {
				t.Errorf("%s to %s is written %s, want %s", p.Addr(), last, got, want)
			}
			if next := last.Next(); !p.Contains(last) || next.IsValid() && p.Contains(next) {
				t.Errorf("last address of %s = %s", p, last)
			}
		}
	}
}

func TestLoopbackPrefix(t *testing.T) {
	got := []string{loopbackPrefix(service.IPv4).String(), loopbackPrefix(service.IPv6).String()}
	if diff := cmp.Diff([]string{"127.0.0.0/8", "::1/128"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTargetOf(t *testing.T) {
	for _, s := range []string{"10.244.1.5:8080", "[fd00:10:244:1::5]:65535"} {
		a := addrPort(s)
		if got := targetOf(appendPort(appendAddr(nil, a.Addr()), a.Port())); got != a {
			t.Errorf("target %s is read as %s", a, got)
		}
	}
	if got := targetOf([]byte{1, 2, 3}); got.IsValid() {
		t.Errorf("target of three bytes = %s, want none", got)
	}
}
