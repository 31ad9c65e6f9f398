// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
)

// lettered returns an endpoint for each letter, in order.
func lettered(letters string) []service.Endpoint {
	var list []service.Endpoint
	for _, c := range letters {
		list = append(list, service.Endpoint{Addr: addrPort(fmt.Sprintf("10.244.1.%d:80", c))})
	}
	return list
}

// laid writes a layout as letters in slot order.
func laid(l layout, w which) string {
	var b strings.Builder
	for _, a := range l.targets(w) {
		b.WriteByte(a.Addr().As4()[3])
	}
	return b.String()
}

// asLaid returns a layout of endpoints that lie as the letters do.
func asLaid(letters string) layout {
	sorted := []byte(letters)
	slices.Sort(sorted)
	l := layout{port: &service.Port{Cluster: lettered(string(sorted))}}
	for _, c := range []byte(letters) {
		l.slots[cluster] = append(l.slots[cluster], uint16(slices.Index(sorted, c)))
	}
	return l
}

func TestArrange(t *testing.T) {
	for name, tt := range map[string]struct{ old, want, now string }{
		"from nothing":                         {"", "abc", "abc"},
		"nothing left":                         {"abc", "", ""},
		"as it was":                            {"abc", "abc", "abc"},
		"out of order, as it was":              {"cab", "abc", "cab"},
		"one replaced":                         {"abc", "acd", "adc"},
		"the first one leaves, the last moves": {"abcd", "bcd", "dbc"},
		"the last one leaves":                  {"abcd", "abc", "abc"},
		"one comes":                            {"bcd", "abcd", "bcda"},
		"two come, in order":                   {"cb", "abcd", "cbad"},
		"all replaced":                         {"abc", "xyz", "xyz"},
		"two of four leave":                    {"abcd", "bd", "db"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := laid(asLaid(tt.old).next(&service.Port{Cluster: lettered(tt.want)}), cluster); got != tt.now {
				t.Errorf("%q lies as %q, want %q", tt.want, got, tt.now)
			}
		})
	}
}

// A table that was read may hold an endpoint twice, which nobody but a
// stranger would do.
func TestArrangeAfterAStranger(t *testing.T) {
	old := []netip.AddrPort{lettered("b")[0].Addr, lettered("b")[0].Addr, {}}
	if diff := cmp.Diff([]uint16{1, 0, 2}, arrange(old, lettered("abc"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Who can stay stays, so no arrangement changes fewer slots; everybody has a
// slot; and an arrangement in order needs no memory.
func TestArrangeChangesAsLittleAsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfNDistinct(rapid.ByteRange('a', 'z'), 0, 20, rapid.ID[byte])
		old, want := string(letters.Draw(t, "old")), letters.Draw(t, "want")
		slices.Sort(want)
		perm := arrange(asLaid(old).targets(cluster), lettered(string(want)))
		l := layout{port: &service.Port{Cluster: lettered(string(want))}, slots: slots{cluster: perm}}
		now := laid(l, cluster)
		for i := range min(len(old), len(want)) {
			if strings.IndexByte(string(want), old[i]) >= 0 && now[i] != old[i] {
				t.Fatalf("%s to %s: %c was moved", old, now, old[i])
			}
		}
		sorted := []byte(now)
		slices.Sort(sorted)
		if string(sorted) != string(want) {
			t.Fatalf("%s to %s: not %s", old, now, want)
		}
		if (perm == nil) != (now == string(want)) {
			t.Fatalf("%s is kept as %v", now, perm)
		}
	})
}

// A list that did not change keeps its slots without a copy, and each list
// has its own.
func TestNextKeepsTheOtherList(t *testing.T) {
	l := asLaid("cab")
	l.port.Local = lettered("xy")
	next := l.next(&service.Port{Cluster: lettered("abc"), Local: lettered("yz")})
	if got := laid(next, cluster); got != "cab" || &next.slots[cluster][0] != &l.slots[cluster][0] {
		t.Errorf("unchanged list lies as %q", got)
	}
	if got := laid(next, local); got != "zy" {
		t.Errorf("local list lies as %q, want zy", got)
	}
	if next.slots.identity() || !(slots{}).identity() || (slots{local: {1, 0}}).identity() {
		t.Error("identity is wrong")
	}
}
