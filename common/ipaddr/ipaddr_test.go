// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipaddr_test

import (
	"testing"

	"kubeproxy/common/ipaddr"
)

// TestParse reads what Kubernetes reads. The empty string stands for an error.
func TestParse(t *testing.T) {
	for in, want := range map[string]string{
		"10.96.0.10":             "10.96.0.10",
		"010.096.000.010":        "10.96.0.10",
		"10.96.0.0000010":        "10.96.0.10",
		"::ffff:203.0.113.042":   "203.0.113.42",
		"FD00:0010::0:00ff":      "fd00:10::ff",
		"fe80::1%eth0":           "fe80::1%eth0",
		"10.96.0.0x0a":           "",
		"10.96.0":                "",
		"10.96.0.256":            "",
		" 10.96.0.1":             "",
		"":                       "",
		"kubernetes.example.org": "",
	} {
		got := ""
		if a, err := ipaddr.Parse(in); err == nil {
			got = a.String()
		}
		if got != want {
			t.Errorf("Parse(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestParsePrefix does the same for prefixes.
func TestParsePrefix(t *testing.T) {
	for in, want := range map[string]string{
		"10.96.0.0/12":            "10.96.0.0/12",
		"010.096.000.000/12":      "10.96.0.0/12",
		"10.244.001.010/024":      "10.244.1.10/24",
		"fd00:0010::/0112":        "fd00:10::/112",
		"::ffff:010.96.0.0/112":   "::ffff:10.96.0.0/112",
		"10.96.0.0/33":            "",
		"10.96.0.0":               "",
		"10.96.0.0/":              "",
		"10.96.0.0/-1":            "",
		"2001:db8::/64%eth0":      "",
		"010.096.000.000/12 bits": "",
	} {
		got := ""
		if p, err := ipaddr.ParsePrefix(in); err == nil {
			got = p.String()
		}
		if got != want {
			t.Errorf("ParsePrefix(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestParsePort does the same for an address with a port.
func TestParsePort(t *testing.T) {
	for in, want := range map[string]string{
		"10.96.004.010:80":   "10.96.4.10:80",
		"[fd00::000a]:80":    "[fd00::a]:80",
		"[fe80::1%eth0]:80":  "[fe80::1%eth0]:80",
		"10.96.4.10":         "",
		"10.96.4.10:65536":   "",
		"web.example.org:80": "",
	} {
		got := ""
		if a, err := ipaddr.ParsePort(in); err == nil {
			got = a.String()
		}
		if got != want {
			t.Errorf("ParsePort(%q) = %q, want %q", in, got, want)
		}
	}
}
