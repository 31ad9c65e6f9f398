// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

var (
	client = netip.MustParseAddr("192.0.2.7")
	front  = netip.MustParseAddrPort("10.0.0.1:80")
	node   = Answers{Local: func(a netip.Addr) bool { return a == front.Addr() }}
	syn    = Packet{Conn: route.Conn{Protocol: service.TCP, From: client, To: front, Interface: "eth0"}, Dialled: front, Mark: 0x4000}
)

func TestMatches(t *testing.T) {
	for rule, want := range map[string]Match{
		"": Yes, "-s 192.0.2.0/24": Yes, "! -s 192.0.2.0/24": No, "-d 10.0.0.2/32": No, "-d 10.0.0.1": Yes,
		"-i eth+": Yes, "-i eth": No, "! -i eth1": Yes, "-p tcp -m tcp --dport 80": Yes, "-p udp": No, "-m tcp --dport 81:90": No,
		"-m multiport --dports 22,79:81": Yes, "-m multiport ! --dports 22,79:81": No,
		"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN": Yes, "-p tcp -m tcp --tcp-flags FIN FIN": No,
		"-p tcp -m tcp --tcp-flags ACK NONE": Yes, "-p tcp -m tcp --tcp-flags FIN,SYN NONE": No, "-p tcp -m tcp ! --tcp-flags ACK NONE": No,
		"-p tcp -m tcp --tcp-flags NONE NONE": Yes, "-p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK": No, "-p tcp -m tcp --tcp-flags ALL SYN": Yes,
		"-m addrtype --dst-type LOCAL": Yes, "-m addrtype ! --dst-type LOCAL": No, "-m addrtype --src-type LOCAL": No, "-m addrtype --dst-type MULTICAST": Unknown,
		"-m conntrack --ctstate NEW": Yes, "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT": Yes, "-m conntrack --ctdir REPLY": No, "-m state --state ESTABLISHED": No,
		"-m conntrack --ctorigdst 10.0.0.0/8": Yes, "-m mark --mark 0x4000/0x4000": Yes, "-m mark ! --mark 0x4000/0x4000": No, "-m mark --mark 0x4000": Yes,
		"-o lo": Yes, "! -o lo": No, "-o eth0": No,
		`-m comment --comment "a -s 1.2.3.4 \" b" -s 192.0.2.7/32`:  Yes,
		"-m statistic --mode random --probability 0.5":              Random,
		"-m statistic --mode random --probability 0.5 -s 10.0.0.0":  No,
		"-m recent --set --name A --mask 255.255.255.255 --rsource": Yes,
		"-m geoip --source-country DE":                              Unknown, "-m geoip --source-country DE -p udp": No, "! -f": Unknown,
		"-m set --match-set X dst": Unknown, "-m bpf --bytecode \"1,6 0 0 0\"": Unknown, "-m owner --uid-owner 0": Unknown,
	} {
		if got := node.Matches(&Rule{Text: rule + " -j DROP"}, syn); got != want {
			t.Errorf("%q: %d, want %d", rule, got, want)
		}
	}
}

// TestVagueMark checks marks of which not all bits are known, and what makes them so.
func TestVagueMark(t *testing.T) {
	vague := syn
	vague.Mark, vague.Vague = 0x1, 0x4000
	for rule, want := range map[string]Match{
		"--mark 0x4000/0x4000": Unknown, "! --mark 0x4000/0x4000": Unknown, "--mark 0x1/0x1": Yes, "! --mark 0x1/0x1": No, "--mark 0x2/0x4002": No,
	} {
		if got := node.Matches(&Rule{Text: "-m mark " + rule + " -j DROP"}, vague); got != want {
			t.Errorf("%q: %d, want %d", rule, got, want)
		}
	}
	for rule, want := range map[string][2]uint32{
		"-j MARK --set-xmark 0x2/0xff":                                      {0x2, 0x4000},
		"-j MARK --set-xmark 0x4000/0x4000":                                 {0x4001, 0},
		"-m geoip --cc DE -j MARK --set-xmark 0x2/0x3":                      {0, 0x4003},
		"-m geoip --cc DE -j MARK --set-xmark 0x1/0x1":                      {0x1, 0x4000},
		"-m statistic --probability 0.5 -j MARK --set-xmark 0x0/0xffffffff": {0, 0x4001},
	} {
		tables := NewSaved()
		tables.Append(Chain{Table: "filter", Name: "START"}, rule)
		w := &Walker{Tables: tables, Node: node, Packet: vague}
		w.Hook(Chain{Table: "filter", Name: "START"})
		if got := [2]uint32{w.Packet.Mark, w.Packet.Vague}; got != want {
			t.Errorf("%q: mark and vague bits %#x, want %#x", rule, got, want)
		}
	}
}

func TestConcerns(t *testing.T) {
	for rule, want := range map[string]bool{
		"-m conntrack ! --ctstate NEW": true, "-m mark ! --mark 0x4000/0x4000": true, "-s 10.0.0.0/8": false, "-p tcp -m tcp --dport 81": false, "-i eth1": false,
	} {
		if got := node.Concerns(&Rule{Text: rule + " -j DROP"}, syn); got != want {
			t.Errorf("%q: %t, want %t", rule, got, want)
		}
	}
}

// walked runs the chain START of table filter or nat.
func walked(table string, chains map[string][]string) (Result, *Walker) {
	t := NewSaved()
	for name, rules := range chains {
		t.Append(Chain{Table: table, Name: name}, rules...)
	}
	w := &Walker{Tables: t, Node: node, Packet: syn}
	return w.Hook(Chain{Table: table, Name: "START"}), w
}

func TestVerdicts(t *testing.T) {
	for _, tc := range []struct {
		chains   map[string][]string
		want     explain.Deed
		by       string
		doubtful int
	}{
		{nil, "", "", 0},
		{map[string][]string{"START": {"-j NEXT", "-j DROP"}, "NEXT": {"-p udp -j ACCEPT"}}, explain.Drops, "-j DROP", 0},
		{map[string][]string{"START": {"-g NEXT", "-j DROP"}, "NEXT": {"-p udp -j ACCEPT"}}, "", "", 0},
		{map[string][]string{"START": {"-j NEXT", "-j REJECT"}, "NEXT": {"-j RETURN", "-j DROP"}}, explain.Refuses, "-j REJECT", 0},
		{map[string][]string{"START": {"-j MARK --set-xmark 0x4000/0x0", "-m mark --mark 0x4000/0x4000 -j DROP", "-j ACCEPT"}}, explain.Passes, "-j ACCEPT", 0},
		{map[string][]string{"START": {"-m geoip --cc DE -j DROP", "-m geoip --cc DE -j LOG", "-j ACCEPT"}}, explain.Passes, "-j ACCEPT", 1},
		{map[string][]string{"START": {"-j NFQUEUE --queue-num 1"}}, explain.Translates, "-j NFQUEUE --queue-num 1", 0},
		{map[string][]string{"START": {"-j START"}}, "", "", 0}, // the kernel refuses that
	} {
		r, w := walked("filter", tc.chains)
		by := ""
		if r.By.Rule != nil {
			by = r.By.Rule.Text
		}
		if r.Does != tc.want || by != tc.by || len(w.Doubtful) != tc.doubtful {
			t.Errorf("%q: %q by %q, doubtful %v; want %q by %q", tc.chains, r.Does, by, w.Doubtful, tc.want, tc.by)
		}
	}
}

func TestTargets(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	half, all := "-m statistic --mode random --probability 0.5 -j DNAT --to-destination "+a.String(), "-j DNAT --to-destination "+b.String()
	r, w := walked("nat", map[string][]string{"START": {"-j NEXT"}, "NEXT": {"-p tcp " + half, "-p tcp " + all, half}})
	if r.Does != explain.Translates || !slices.Equal(r.Targets, []netip.AddrPort{a, b}) {
		t.Errorf("%+v", r)
	}
	if len(w.Steps) != 5 { // two chains, the jump, two rules
		t.Errorf("steps %+v", w.Steps)
	}
}

func TestParse(t *testing.T) {
	tables := Parse("# by iptables\n*filter\n:INPUT DROP [0:0]\n:MINE - [0:0]\n-A INPUT -s 10.0.0.0/8 -j MINE\n-A MINE -j RETURN\nCOMMIT\n")
	w := &Walker{Tables: tables, Node: node, Packet: syn}
	if r := w.Hook(Chain{Table: "filter", Name: "INPUT"}); r.Does != explain.Drops || r.By.Rule != nil || r.By.Chain.Name != "INPUT" {
		t.Errorf("%+v, want what the policy says", r)
	}
	if got := tables.Rules(Chain{Table: "filter", Name: "MINE"}); len(got) != 1 || got[0].Text != "-j RETURN" {
		t.Errorf("rules %v", got)
	}
	if tables.Remove("filter"); tables.Has(Chain{Table: "filter", Name: "INPUT"}) {
		t.Error("the table is still there")
	}
}
