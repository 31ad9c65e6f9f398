// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"maps"
	"strings"
	"testing"
	"time"

	"kubeproxy/platform/linux/sysctl"
)

const forward4, forward6 = "proc/sys/net/ipv4/ip_forward", "proc/sys/net/ipv6/conf/all/forwarding"

func TestForwarding(t *testing.T) {
	for situation, test := range map[string]struct {
		v4, v6, mode string
		addr6        bool
		want         []string
	}{
		"both":                   {"1", "1", "nftables", true, nil},
		"neither":                {"0", "0", "nftables", true, []string{"ip-forward | net.ipv4.ip_forward | sysctl -w net.ipv4.ip_forward=1", "ip-forward | net.ipv6.conf.all.forwarding | sysctl -w net.ipv6.conf.all.forwarding=1"}},
		"no IPv6 on the node":    {"1", "0", "iptables", false, nil},
		"2 is enough":            {"1", "2", "ipvs", true, nil},
		"relayed by the process": {"0", "0", "userspace", true, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(map[string]string{forward4: test.v4, forward6: test.v6})
			n.Modes = mode(test.mode)
			n.Kernel = &fakeKernel{links: []Link{{Name: "eth0", Global: both(true, test.addr6)}}}
			expect(t, n.forwarding, test.want)
		})
	}
	if _, err := newNode(nil).forwarding(t.Context()); err == nil {
		t.Error("a setting that cannot be read is no error")
	}
}

func TestReversePathFilter(t *testing.T) {
	const all, eth0, eth1 = "proc/sys/net/ipv4/conf/all/rp_filter", "proc/sys/net/ipv4/conf/eth0/rp_filter", "proc/sys/net/ipv4/conf/eth1/rp_filter"
	pod := Link{Name: "veth2", Global: both(true, false)}
	two := []Link{link("eth1", ""), link("eth0", ""), {Name: "cni0", Bridge: true, Subnet: true}, link("veth1", "cni0"), pod}
	fix := []string{"rp-filter |  | sysctl -w net.ipv4.conf.all.rp_filter=2"}
	for situation, test := range map[string]struct {
		all, eth0, eth1 string
		links           []Link
		want            []string
		words           string
	}{
		"off":                         {"0", "0", "0", two, nil, ""},
		"loose everywhere":            {"2", "1", "1", two, nil, ""},
		"strict everywhere":           {"1", "0", "0", two, fix, "eth0, eth1"},
		"strict on one":               {"0", "2", "1", two, fix, "on eth1,"},
		"one interface is never hurt": {"1", "1", "0", two[1:], nil, ""},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(map[string]string{all: test.all, eth0: test.eth0, eth1: test.eth1})
			n.Kernel = &fakeKernel{links: test.links}
			expect(t, n.reversePathFilter, test.want, strings.Fields(test.words)...)
		})
	}
}

func TestBridges(t *testing.T) {
	const v4, v6 = "proc/sys/net/bridge/bridge-nf-call-iptables", "proc/sys/net/bridge/bridge-nf-call-ip6tables"
	const fix = "sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1"
	bridge := []Link{link("eth0", ""), {Name: "cni0", Bridge: true}, link("veth1", "cni0")}
	for situation, test := range map[string]struct {
		files map[string]string
		mode  string
		links []Link
		want  []string
	}{
		"passes":         {map[string]string{v4: "1", v6: "1"}, "nftables", bridge, nil},
		"off":            {map[string]string{v4: "0", v6: "1"}, "nftables", bridge, []string{"br-netfilter |  | " + fix}},
		"not loaded":     {nil, "iptables", bridge, []string{"br-netfilter |  | modprobe br_netfilter && " + fix}},
		"no ports":       {nil, "nftables", bridge[:2], nil},
		"no bridge":      {nil, "nftables", bridge[:1], nil},
		"mode userspace": {nil, "userspace", bridge, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(test.files)
			n.Modes, n.Kernel = mode(test.mode), &fakeKernel{links: test.links}
			expect(t, n.bridges, test.want)
		})
	}
}

func TestSettings(t *testing.T) {
	const liberal, timeout = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "proc/sys/net/netfilter/nf_conntrack_udp_timeout"
	const hashsize, limit = "sys/module/nf_conntrack/parameters/hashsize", "proc/sys/net/netfilter/nf_conntrack_max"
	files := map[string]string{liberal: "0", timeout: "30", hashsize: "1024", limit: "65536"}
	with := func(name, value string) map[string]string {
		now := maps.Clone(files)
		now[name] = value
		return now
	}
	wants := sysctl.Settings{UDP: 40 * time.Second}
	for situation, test := range map[string]struct {
		files    map[string]string
		settings sysctl.Settings
		writable bool
		mode     string
		want     []string
	}{
		"nothing asked for":      {files, sysctl.Settings{}, false, "nftables", nil},
		"the proxy can write it": {files, wants, true, "nftables", nil},
		"it cannot":              {files, wants, false, "nftables", []string{"setting | net.netfilter.nf_conntrack_udp_timeout | sysctl -w net.netfilter.nf_conntrack_udp_timeout=40"}},
		"of a module": {files, sysctl.Settings{MaxPerCore: 65536, CPUs: 1}, false, "nftables",
			[]string{"setting | nf_conntrack hashsize | echo 16384 > /sys/module/nf_conntrack/parameters/hashsize"}},
		"no conntrack yet":   {nil, wants, false, "nftables", nil},
		"liberal":            {with(liberal, "1"), sysctl.Settings{}, false, "iptables", []string{"be-liberal | net.netfilter.nf_conntrack_tcp_be_liberal | sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=0"}},
		"liberal, asked for": {with(liberal, "1"), sysctl.Settings{TCPBeLiberal: true}, false, "iptables", nil},
		"liberal, relayed":   {with(liberal, "1"), sysctl.Settings{}, false, "userspace", nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(test.files)
			n.Settings, n.Modes = test.settings, mode(test.mode)
			n.Writable = func(string) bool { return test.writable }
			expect(t, n.settings, test.want)
		})
	}
}

// lossy is the file of Linux 6.18 on two processors, whose columns stand further apart than
// one space.
const lossy = `entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart
00040000  00000000 00000003 00000000 00000011 00000000 00000000 00000000 00000000 00000200 00000000 00000000 00000000  00000000 00000000 00000000 00000000
00040000  00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 000001f0 00000000 0000009e 00000000  00000000 00000000 00000000 00000002
`

func TestConntrack(t *testing.T) {
	const count, limit, statistics = "proc/sys/net/netfilter/nf_conntrack_count", "proc/sys/net/netfilter/nf_conntrack_max", "proc/thread-self/net/stat/nf_conntrack"
	const head = "entries  insert_failed drop early_drop icmp_error\n"
	for situation, test := range map[string]struct {
		count, statistics string
		want              []string
	}{
		"room":               {"899", head + "00000001 00000000 00000001 00000000 00000000", nil},
		"nearly full":        {"900", head, []string{"conntrack-full |  | sysctl -w net.netfilter.nf_conntrack_max=2000"}},
		"was full":           {"1", head + "00000001 00000000 00000000 00000001 00000000\n00000001 00000000 00000000 0000000a 00000000", []string{"early-drop |  | sysctl -w net.netfilter.nf_conntrack_max=2000"}},
		"a file of a kernel": {"1", lossy, []string{"early-drop |  | sysctl -w net.netfilter.nf_conntrack_max=2000", "insert-failed |  | "}},
		"a few races":        {"1", head + "00000001 000003e7 00000000 00000000 00000000", nil},
		"many, on two cores": {"1", head + "00000001 000001f4 00000000 00000000 00000000\n00000001 000001f4 00000000 00000000 00000000", []string{"insert-failed |  | "}},
	} {
		t.Run(situation, func(t *testing.T) {
			expect(t, newNode(map[string]string{count: test.count, limit: "1000", statistics: test.statistics}).conntrack, test.want)
		})
	}
	expect(t, newNode(map[string]string{count: "1", limit: "1000"}).conntrack, nil) // built without statistics
	expect(t, newNode(nil).conntrack, nil)
	if _, err := newNode(map[string]string{count: "1", limit: "1000", statistics: head + "x"}).conntrack(t.Context()); err == nil {
		t.Error("an odd line is no error")
	}
}
