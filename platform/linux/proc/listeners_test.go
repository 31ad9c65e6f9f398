// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func table(lines ...string) *fstest.MapFile {
	var b strings.Builder
	b.WriteString(heading)
	for i, l := range lines {
		fmt.Fprintf(&b, "%4d: %s 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n", i, l)
	}
	return &fstest.MapFile{Data: []byte(b.String())}
}

// TestListeners needs a little-endian machine, as all supported ones are.
func TestListeners(t *testing.T) {
	const any6 = "00000000000000000000000000000000"
	for situation, test := range map[string]struct {
		net  fstest.MapFS
		want string
		err  string
	}{
		"nothing": {fstest.MapFS{}, "", ""},
		"both families, connected ones left out": {fstest.MapFS{
			"tcp":  table("0100007F:1F90 00000000:0000 0A", "00000000:7582 00000000:0000 0A", "0A0200C0:7583 0B0002C0:1234 01"),
			"tcp6": table(any6 + ":7584 " + any6 + ":0000 0A"),
			"udp":  table("0A0200C0:7585 0B0002C0:0035 01", "0A0200C0:7586 00000000:0000 07"),
			"udp6": table("B80D01200000000000000000" + "0A000000:7587 " + any6 + ":0000 07"),
		}, "tcp 127.0.0.1:8080, tcp 0.0.0.0:30082, tcp [::]:30084, udp 192.0.2.10:30086, udp [2001:db8::a]:30087", ""},
		"nonsense":     {fstest.MapFS{"tcp": table("here:1F90 00000000:0000 0A")}, "", `list sockets of tcp: unexpected address "here:1F90"`},
		"a short line": {fstest.MapFS{"udp": {Data: []byte(heading + "0: 1\n")}}, "", `list sockets of udp: unexpected line "0: 1"`},
	} {
		t.Run(situation, func(t *testing.T) {
			all, err := Listeners(test.net)
			text := ""
			if err != nil {
				text = err.Error()
			}
			var got []string
			for _, l := range all {
				got = append(got, l.Protocol.String()+" "+l.Addr.String())
			}
			if diff := cmp.Diff(test.want, strings.Join(got, ", ")) + cmp.Diff(test.err, text); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestConflictsWith(t *testing.T) {
	for _, c := range []struct {
		own, other string
		want       bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{"127.0.0.1:80", "127.0.0.2:80", false},
		{"0.0.0.0:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "0.0.0.0:80", true},
		{"[::]:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "[::]:80", true},
		{"0.0.0.0:80", "[::1]:80", false},
		{"[::1]:80", "0.0.0.0:80", false},
	} {
		l := Listener{Addr: netip.MustParseAddrPort(c.own)}
		if got := l.ConflictsWith(netip.MustParseAddrPort(c.other)); got != c.want {
			t.Errorf("%s keeps others from %s: %t, want %t", c.own, c.other, got, c.want)
		}
	}
}
