// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestStatementTexts(t *testing.T) {
	clients := &set{name: "clients"}
	for _, tt := range []struct {
		statement statement
		v4, v6    string // v6 only if it differs
	}{
		{lookup{[]field{daddr}, clusterIPs, false}, "ip daddr @cluster-ips", "ip6 daddr @cluster-ips"},
		{lookup{[]field{saddr, daddr}, hairpin, false}, "ip saddr . ip daddr @hairpin", "ip6 saddr . ip6 daddr @hairpin"},
		{dispatch{nodePortKey, nodePorts}, "meta l4proto . th dport vmap @nodeports", ""},
		{dnat{addrKey, 0, endpoints}, "dnat ip to ip daddr . meta l4proto . th dport map @endpoints", "dnat ip6 to ip6 daddr . meta l4proto . th dport map @endpoints"},
		{dnat{slotKey, 3, endpoints}, "dnat ip to numgen random mod 3 map @endpoints", "dnat ip6 to numgen random mod 3 map @endpoints"},
		{affinityDNAT{clients, 8080}, "dnat ip to ip saddr map @clients : 8080", "dnat ip6 to ip6 saddr map @clients : 8080"},
		{recordClient{clients}, "update @clients { ct original ip saddr : ip daddr }", "update @clients { ct original ip6 saddr : ip6 daddr }"},
		{countConnection{connections},
			"update @connections { ct original ip daddr . meta l4proto . ct original proto-dst . ip daddr . th dport counter }",
			"update @connections { ct original ip6 daddr . meta l4proto . ct original proto-dst . ip6 daddr . th dport counter }"},
		{toPort{53}, "th dport 53", ""},
		{within{saddr, prefix("10.0.0.0/8"), false}, "ip saddr 10.0.0.0/8", "ip6 saddr 10.0.0.0/8"},
		{within{daddr, prefix("192.0.2.1/32"), true}, "ip daddr != 192.0.2.1", "ip6 daddr != 192.0.2.1"},
		{fromInterface{"cbr0"}, `iifname "cbr0"`, ""},
		{isProto{service.SCTP}, "meta l4proto sctp", ""},
		{isLocal{saddr}, "fib saddr type local", ""},
		{isLocal{daddr}, "fib daddr type local", ""},
		{translated{}, "ct status dnat", ""},
		{invalid{}, "ct state invalid", ""},
		{marked{1 << 14}, "meta mark & 0x00004000 == 0x00004000", ""},
		{mark{1 << 31}, "meta mark set meta mark | 0x80000000", ""},
		{unmark{1}, "meta mark set meta mark & 0xfffffffe", ""},
		{masquerade{}, "masquerade fully-random", ""},
		{reject{tcp: true}, "reject with tcp reset", ""},
		{reject{}, "reject", ""},
		{counter{}, "counter", ""},
		{jumpVerdict("a"), "jump a", ""},
		{gotoVerdict("a"), "goto a", ""},
		{verdict{code: verdictReturn}, "return", ""},
		{verdict{code: verdictDrop}, "drop", ""},
		{verdict{code: verdictAccept}, "accept", ""},
	} {
		if tt.v6 == "" {
			tt.v6 = tt.v4
		}
		got := [2]string{tt.statement.text(service.IPv4), tt.statement.text(service.IPv6)}
		if want := [2]string{tt.v4, tt.v6}; got != want {
			t.Errorf("%#v is written %q, want %q", tt.statement, got, want)
		}
	}
}

func TestSetTexts(t *testing.T) {
	for _, tt := range []struct {
		set  *set
		want string
	}{
		{services, "\tmap services {\n\t\ttypeof ip6 daddr . meta l4proto . th dport : verdict\n"},
		{endpoints, "\tmap endpoints {\n\t\ttypeof ip6 daddr . meta l4proto . th dport . numgen random mod 65536 : ip6 daddr . th dport\n"},
		{clusterIPs, "\tset cluster-ips {\n\t\ttypeof ip6 daddr\n"},
		{sources, "\tset sources {\n\t\ttypeof ip6 daddr . meta l4proto . th dport . ip6 saddr\n\t\tflags interval\n"},
		{
			&set{name: "c", kind: addrMap, key: clientKey, timeout: 3 * time.Hour, limit: clientLimit},
			"\tmap c {\n\t\ttypeof ip6 saddr : ip6 daddr\n\t\tsize 1048576\n\t\tflags dynamic,timeout\n\t\ttimeout 10800s\n",
		},
	} {
		if diff := cmp.Diff(tt.want, tt.set.text(service.IPv6)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.set.name, diff)
		}
	}
}

func TestElementTexts(t *testing.T) {
	key := appendPort(appendProto(appendAddr(nil, addr("10.96.0.10")), service.TCP), 80)
	to := appendPort(appendAddr(nil, addr("10.244.1.5")), 8080)
	for _, tt := range []struct {
		element element
		want    string
	}{
		{element{in: services, key: key, verdict: gotoVerdict("cluster-2"), comment: "shop/web:http"}, `10.96.0.10 . tcp . 80 comment "shop/web:http" : goto cluster-2`},
		{element{in: services, key: key, verdict: verdict{code: verdictDrop}}, "10.96.0.10 . tcp . 80 : drop"},
		{element{in: endpoints, key: appendSlot(key, 3), value: to}, "10.96.0.10 . tcp . 80 . 3 : 10.244.1.5 . 8080"},
		{element{in: clusterIPs, key: key[:4]}, "10.96.0.10"},
	} {
		if got := tt.element.text(service.IPv4); got != tt.want {
			t.Errorf("element is written %q, want %q", got, tt.want)
		}
	}
}

func TestOpTexts(t *testing.T) {
	c := &chain{name: "c", rules: []rule{{reject{}}, {reject{}}}}
	e := element{in: clusterIPs, key: []byte{10, 96, 0, 1}}
	for _, tt := range []struct {
		op   op
		want string
	}{
		{op{verb: delTable}, "- table kube-services"},
		{op{verb: addTable}, "+ table kube-services"},
		{op{verb: addSet, set: services}, "+ set services"},
		{op{verb: delSet, set: services}, "- set services"},
		{op{verb: addChain, chain: c}, "+ chain c"},
		{op{verb: delChain, chain: c}, "- chain c"},
		{op{verb: flushChain, chain: c}, "- rules of chain c"},
		{op{verb: addRules, chain: c}, "+ rules of chain c (2)"},
		{op{verb: addElement, element: e}, "+ cluster-ips: 10.96.0.1"},
		{op{verb: delElement, element: e}, "- cluster-ips: 10.96.0.1"},
	} {
		if got := tt.op.text(service.IPv4); got != tt.want {
			t.Errorf("op is written %q, want %q", got, tt.want)
		}
	}
}
