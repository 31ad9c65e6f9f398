// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"net/netip"
	"strings"
	"testing"

	netutils "k8s.io/utils/net"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestParseAddr reads what Kubernetes reads. The empty string stands for an error.
func TestParseAddr(t *testing.T) {
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
		if a, err := service.ParseAddr(in); err == nil {
			got = a.String()
		}
		kit.Check(t, got == want, "ParseAddr(%q) = %q, want %q", in, got, want)
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
		if p, err := service.ParsePrefix(in); err == nil {
			got = p.String()
		}
		kit.Check(t, got == want, "ParsePrefix(%q) = %q, want %q", in, got, want)
	}
}

// TestParseAddrPort does the same for an address with a port.
func TestParseAddrPort(t *testing.T) {
	for in, want := range map[string]string{
		"10.96.004.010:80":   "10.96.4.10:80",
		"[fd00::000a]:80":    "[fd00::a]:80",
		"[fe80::1%eth0]:80":  "[fe80::1%eth0]:80",
		"10.96.4.10":         "",
		"10.96.4.10:65536":   "",
		"web.example.org:80": "",
	} {
		got := ""
		if a, err := service.ParseAddrPort(in); err == nil {
			got = a.String()
		}
		kit.Check(t, got == want, "ParseAddrPort(%q) = %q, want %q", in, got, want)
	}
}

// TestParseAsKubernetes compares what is read with the parsers of Kubernetes.
func TestParseAsKubernetes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		part := rapid.SampledFrom([]string{"0", "010", "1", "0256", "ff", "0fFfF", "00000f", "12345", ".", ":", "::", "/", "%e", "x"})
		octets := rapid.SliceOfN(rapid.SampledFrom([]string{"0", "00", "010", "1", "12", "255", "0255"}), 4, 4)
		in := strings.Join(octets.Draw(t, "octets"), ".")
		switch rapid.IntRange(0, 3).Draw(t, "form") {
		case 1:
			in = strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"0", "0010", "00000f", "fFfF"}), 1, 6).Draw(t, "groups"), ":") + "::"
		case 2:
			in = "::0ffff:" + in
		case 3:
			in = strings.Join(rapid.SliceOfN(part, 1, 16).Draw(t, "parts"), "")
		}
		var want netip.Addr
		if ip := netutils.ParseIPSloppy(in); ip != nil {
			want, _ = netip.AddrFromSlice(ip)
		} else if a, err := netip.ParseAddr(in); err == nil {
			want = a
		}
		if got, _ := service.ParseAddr(in); got != want.Unmap() {
			t.Fatalf("ParseAddr(%q) = %v, want %v", in, got, want)
		}
		in += rapid.SampledFrom([]string{"/0", "/08", "/024", "/032", "/0128", "/129", "/", "/-1"}).Draw(t, "bits")
		ip, within, err := netutils.ParseCIDRSloppy(in)
		got, bad := service.ParsePrefix(in)
		if (err == nil) != (bad == nil) {
			t.Fatalf("ParsePrefix(%q) = %v, %v, want %v, %v", in, got, bad, within, err)
		}
		if err != nil {
			return
		}
		addr, _ := netip.AddrFromSlice(ip)
		bits, size := within.Mask.Size()
		if size == 32 {
			addr = addr.Unmap()
		}
		if want := netip.PrefixFrom(addr, bits); got != want {
			t.Fatalf("ParsePrefix(%q) = %v, want %v", in, got, want)
		}
	})
}

func TestParseReference(t *testing.T) {
	for _, tt := range []struct {
		text, namespace string
		want            service.Reference
	}{
		{"web", "", service.Reference{Name: "web"}},
		{"web", "shop", service.Reference{"shop", "web", "", ""}},
		{"shop/web", "", service.Reference{"shop", "web", "", ""}},
		{"shop/web", "shop", service.Reference{"shop", "web", "", ""}},
		{"svc/web", "shop", service.Reference{"shop", "web", "", ""}},
		{"svc/web", "", service.Reference{Name: "web"}},
		{"svc/shop/web", "", service.Reference{"shop", "web", "", ""}},
		{"service/shop/web", "", service.Reference{"shop", "web", "", ""}},
		{"services/web:http", "", service.Reference{Name: "web", Port: "http"}},
		{"svc", "shop", service.Reference{"shop", "svc", "", ""}},
		{"svc/svc/web", "", service.Reference{"svc", "web", "", ""}},
		{"svc/shop/tcp", "", service.Reference{"shop", "tcp", "", ""}},
		{"svc/shop/web/udp", "", service.Reference{"shop", "web", "", "udp"}},
		{"shop/web:53/UDP", "", service.Reference{"shop", "web", "53", "udp"}},
		{"web:80", "shop", service.Reference{"shop", "web", "80", ""}},
	} {
		got, err := service.ParseReference(tt.text, tt.namespace)
		kit.Check(t, err == nil && got == tt.want,
			"%q in %q: %+v, %v, want %+v", tt.text, tt.namespace, got, err, tt.want)
		if again, err := service.ParseReference(got.String(), ""); got.Namespace != "" && (err != nil || again != got) {
			t.Errorf("%s: %+v, %v, want %+v", got, again, err, got)
		}
	}
	for _, text := range []string{"", "/", "/web", "shop/", "svc/", "svc//web", "a/b/c", "a/b/c/d", "svc/a/b/c", "web:", "web:0", "web:65536", "web:-1", "web:80/", "web:80/icmp", "web:80/tcp/udp", "web:a:b", "shop/web/"} {
		got, err := service.ParseReference(text, "")
		kit.Check(t, err != nil, "%q: %+v", text, got)
	}
	if _, err := service.ParseReference("shop/web", "other"); err == nil || err.Error() != `service "shop/web" is not in the namespace of --namespace, "other"` {
		t.Error(err)
	}
}
