// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

func TestSharedMark(t *testing.T) {
	const all = math.MaxUint32
	wireguard := markRule{32764, true, 0xca6c, all, 51820}
	for name, tt := range map[string]struct {
		family service.Family
		bit    int
		rules  []markRule
		want   string // in the text, empty for none
	}{
		"no rules":           {service.IPv4, 14, nil, ""},
		"wg-quick":           {service.IPv4, 14, []markRule{{100, false, 1, all, 100}, wireguard}, `bit 0x4000 (ip rule has "32764: not fwmark 0xca6c lookup 51820")`},
		"wg-quick, IPv6":     {service.IPv6, 14, []markRule{wireguard}, `(ip -6 rule has "32764: not fwmark 0xca6c lookup 51820")`},
		"another bit":        {service.IPv4, 16, []markRule{wireguard}, ""},
		"the highest bit":    {service.IPv4, 31, []markRule{{7, false, 1 << 31, all, 9}}, `0x80000000 (ip rule has "7: fwmark 0x80000000 lookup 9")`},
		"a transparent one":  {service.IPv4, 14, []markRule{{100, false, 1, all, 100}}, ""},
		"beside the mask":    {service.IPv4, 14, []markRule{{9, false, 0x200, 0xf00, 2004}}, ""},
		"a field of marks":   {service.IPv4, 14, []markRule{{9, false, 0x2000, 0x6000, 5}}, `"9: fwmark 0x2000/0x6000 lookup 5"`},
		"a mark out of mask": {service.IPv4, 14, []markRule{{9, false, 0x4200, 0xf00, 5}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Options{MasqueradeBit: tt.bit}.sharedMark(tt.family, tt.rules)
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestSharedMarkIsShown has a program come that uses the masquerade bit, and go. A failure
// to read the rules changes nothing.
func TestSharedMarkIsShown(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackendWithRules(service.IPv4, k, Options{MasqueradeBit: 14})
	shown := "nothing"
	b.showSharedMark = func(text string) { shown = text }
	s := snapshot(web(0, 1, service.TCP))
	step := func(want bool, rules []markRule, err error) {
		t.Helper()
		k.marks, k.marksErr = rules, err
		k.clock = k.clock.Add(b.options.SyncPeriod)
		apply(t, b, s)
		if strings.Contains(shown, "0xca6c") != want || !want && shown != "" {
			t.Errorf("shown is %q", shown)
		}
		if err != nil {
			return
		}
		w, err := b.Trace(t.Context(), s, route.Conn{To: netip.MustParseAddrPort("192.0.2.99:51820"), Protocol: service.UDP, From: generate.NodeAddr[0]}, generate.IsNodeLocal)
		if err != nil || (len(w.Notes) == 1) != want {
			t.Errorf("explain notes %v, %v", w, err)
		}
	}
	rules := []markRule{{32764, true, 0xca6c, math.MaxUint32, 51820}}
	step(false, nil, nil)
	step(true, rules, nil)
	step(true, nil, errors.New("interrupted"))
	step(false, nil, nil)
	k.marks = rules
	w, err := b.Trace(t.Context(), s, route.Conn{To: netip.AddrPortFrom(first.Addr, first.Port), Protocol: service.TCP, From: generate.NodeAddr[0]}, generate.IsNodeLocal)
	if err != nil || len(w.Notes) > 0 {
		t.Errorf("explain of a Service notes %v, %v", w, err)
	}
}
