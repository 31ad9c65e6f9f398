// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"testing"
)

func TestLocalhostNodePorts(t *testing.T) {
	for prefix, want := range map[string][2]bool{
		"127.0.0.0/8":  {true, false},
		"127.0.0.1/32": {true, false},
		"127.0.0.2/32": {},
		"0.0.0.0/0":    {},
		"126.0.0.0/7":  {},
		"127.0.0.0/7":  {}, // not masked
		"192.0.2.0/24": {},
		"::1/128":      {false, true},
		"::/0":         {},
		"::/127":       {},
	} {
		n := Node{NodePorts: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		if got := [2]bool{n.LocalhostNodePorts(IPv4), n.LocalhostNodePorts(IPv6)}; got != want {
			t.Errorf("%s: %v, want %v", prefix, got, want)
		}
	}
	if new(Node).LocalhostNodePorts(IPv4) {
		t.Error("loopback addresses answer without being asked for")
	}
}
