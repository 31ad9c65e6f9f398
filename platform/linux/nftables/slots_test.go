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

// letterEndpoints returns an endpoint for each letter, in order.
func letterEndpoints(letters string) []service.Endpoint {
	var list []service.Endpoint
	for _, c := range letters {
		list = append(list, service.Endpoint{Addr: addrPort(fmt.Sprintf("10.244.1.%d:80", c))})
	}
	return list
}

// slotOrder returns the letters of the endpoints in slot order.
func slotOrder(l layout, w endpointList) string {
	var b strings.Builder
	for _, a := range l.targets(w) {
		b.WriteByte(a.Addr().As4()[3])
	}
	return b.String()
}

// layoutOf returns a layout whose endpoints have the order of letters.
func layoutOf(letters string) layout {
	sorted := []byte(letters)
	slices.Sort(sorted)
	l := layout{port: &service.Port{Cluster: letterEndpoints(string(sorted))}}
	for _, c := range []byte(letters) {
		l.slots[clusterList] = append(l.slots[clusterList], uint16(slices.Index(sorted, c)))
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
			if got := slotOrder(layoutOf(tt.old).next(&service.Port{Cluster: letterEndpoints(tt.want)}), clusterList); got != tt.now {
				t.Errorf("%q lies as %q, want %q", tt.want, got, tt.now)
			}
		})
	}
}

// A table may hold an endpoint twice if another process changed it.
func TestArrangeWithDuplicateEndpoints(t *testing.T) {
	old := []netip.AddrPort{letterEndpoints("b")[0].Addr, letterEndpoints("b")[0].Addr, {}}
	if diff := cmp.Diff([]uint16{1, 0, 2}, arrange(old, letterEndpoints("abc"))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An endpoint keeps its slot if possible, so no arrangement changes fewer slots. Every
// endpoint has a slot. An arrangement in order is nil.
func TestArrangeChangesAsLittleAsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SliceOfNDistinct(rapid.ByteRange('a', 'z'), 0, 20, rapid.ID[byte])
		old, want := string(letters.Draw(t, "old")), letters.Draw(t, "want")
		slices.Sort(want)
		perm := arrange(layoutOf(old).targets(clusterList), letterEndpoints(string(want)))
		l := layout{port: &service.Port{Cluster: letterEndpoints(string(want))}, slots: slots{clusterList: perm}}
		now := slotOrder(l, clusterList)
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

// An unchanged list keeps its slots without a copy. Each list has its own slots.
func TestNextKeepsTheOtherList(t *testing.T) {
	l := layoutOf("cab")
	l.port.Local = letterEndpoints("xy")
	next := l.next(&service.Port{Cluster: letterEndpoints("abc"), Local: letterEndpoints("yz")})
	if got := slotOrder(next, clusterList); got != "cab" || &next.slots[clusterList][0] != &l.slots[clusterList][0] {
		t.Errorf("unchanged list lies as %q", got)
	}
	if got := slotOrder(next, localList); got != "zy" {
		t.Errorf("local list lies as %q, want zy", got)
	}
	if next.slots.identity() || !(slots{}).identity() || (slots{localList: {1, 0}}).identity() {
		t.Error("identity is wrong")
	}
}
