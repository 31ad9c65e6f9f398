// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"net/netip"
	"testing"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/kit"
)

// TestMatches matches a TCP packet from 192.0.2.7 to port 80 of 10.0.0.1 against rules.
func TestMatches(t *testing.T) {
	sets := NewSets()
	client, to := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddrPort("10.0.0.1:80")
	front := ipset.Entry{Addr: to.Addr(), Protocol: service.TCP, Port: 80}
	from := front
	from.Net = netip.MustParsePrefix("192.0.2.0/24")
	for set, e := range map[ipset.Set]ipset.Entry{
		{Name: "A", Type: ipset.HashIP}: {Addr: to.Addr()}, {Name: "P", Type: ipset.HashIPPort}: front, {Name: "N", Type: ipset.HashIPPortNet}: from,
	} {
		kit.Must(t, sets.Create(set))
		kit.Must(t, sets.Add(set, []ipset.Member{{Entry: e}}))
	}
	local := func(a netip.Addr) bool { return a == to.Addr() }
	for rule, matches := range map[string]bool{
		"-s 192.0.2.0/24": true, "! -s 192.0.2.0/24": false, "-d 10.0.0.2/32": false, "-i eth+": true, "-i eth": false,
		"-p tcp -m tcp --dport 80": true, "-p udp": false, "-m tcp --dport 81:90": false,
		"-m set --match-set A dst": true, "-m set ! --match-set A dst": false, "-m set --match-set P dst,dst": true,
		"-m set --match-set P dst,dst -m set ! --match-set N dst,dst,src": false,
		"-m addrtype --dst-type LOCAL":                                    true, "-m addrtype ! --dst-type LOCAL": false, "-m addrtype --src-type LOCAL": false,
		"-m conntrack --ctstate NEW": true, "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT": true, "-m conntrack --ctdir REPLY": false,
		"-o lo": true, "! -o lo": false, "-m mark --mark 0x4000/0x4000": false, "-m mark ! --mark 0x4000/0x4000": true,
	} {
		k := New(sets)
		k.Tables["filter"]["INPUT"] = []string{rule + " -j DROP"}
		x := &Tracer{System: k, Conn: route.Conn{Protocol: service.TCP, From: client, To: to, Interface: "eth0"}, Local: local, Loops: local}
		if x.Hook("filter", "INPUT"); (x.Out.Action == route.Drop) != matches {
			t.Errorf("%q: %s, want a match: %t", rule, x.Out.Action, matches)
		}
	}
}

// TestGoto checks that a return after a goto goes back to the chain of the last jump.
func TestGoto(t *testing.T) {
	for rule, want := range map[string]route.Action{"-g LAST": route.Reject, "-j LAST": route.Drop} {
		k := New(nil)
		k.Tables["filter"] = Table{
			"INPUT": {"-j FIRST", "-j REJECT"},
			"FIRST": {rule, "-j DROP"},
			"LAST":  {"-p udp -j ACCEPT"},
		}
		x := &Tracer{System: k, Conn: route.Conn{Protocol: service.TCP}}
		if x.Hook("filter", "INPUT"); x.Out.Action != want {
			t.Errorf("%q: %s, want %s", rule, x.Out.Action, want)
		}
	}
}
