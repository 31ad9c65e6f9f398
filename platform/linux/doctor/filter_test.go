// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"testing"

	"kubeproxy/common/service"
)

func TestInputPolicy(t *testing.T) {
	nft := func(rules ...string) Chain {
		return Chain{Hook: Input, Family: "ip", Table: "filter", Name: "INPUT", Rules: rules}
	}
	own := Chain{Hook: Input, Family: "inet", Table: "firewall", Name: "in"}
	legacy := Chain{Hook: Input, Family: "ip6", Table: "filter", Name: "INPUT", Legacy: true}
	for situation, test := range map[string]struct {
		chain  Chain
		mode   string
		checks []uint16
		want   []string
	}{
		"nothing accepted": {nft("type filter hook input priority filter; policy drop;"), "nftables", []uint16{31000, 30100},
			[]string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 30100,31000 -j ACCEPT"}},
		"of nftables": {own, "nftables", []uint16{31000},
			[]string{"input-policy | chain in of table inet firewall of nftables | nft insert rule inet firewall in tcp dport '{ 31000 }' accept"}},
		"of iptables-legacy": {legacy, "nftables", []uint16{31000},
			[]string{"input-policy | chain INPUT of ip6tables-legacy | ip6tables-legacy -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"one of two accepted": {nft("tcp dport 31000 accept"), "nftables", []uint16{31000, 31001},
			[]string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31001 -j ACCEPT"}},
		"accepted as a set":       {nft("ip protocol tcp tcp dport { 22, 30000-32767 } counter packets 0 bytes 0 accept"), "nftables", []uint16{31000}, nil},
		"accepted by multiport":   {nft("-A INPUT -p tcp -m multiport --dports 22,31000:31002 -j ACCEPT"), "nftables", []uint16{31001}, nil},
		"accepted by a range":     {nft("-A INPUT -p tcp -m tcp --dport 30000:32767 -j ACCEPT"), "nftables", []uint16{31001}, nil},
		"dropped":                 {nft("tcp dport 31000 drop"), "nftables", []uint16{31000}, []string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"all but it":              {nft("tcp dport != 31000 accept"), "nftables", []uint16{31000}, []string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"no health checks":        {nft(), "nftables", nil, nil},
		"a mode that accepts":     {nft(), "iptables", []uint16{31000}, nil},
		"a chain for other hooks": {Chain{Hook: Forward}, "nftables", []uint16{31000}, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(nil)
			n.Modes, n.Kernel = mode(test.mode), &fakeKernel{chains: []Chain{test.chain}}
			var ports []*service.Port
			for i, p := range test.checks {
				ports = append(ports, &service.Port{Name: service.PortName{Name: string(rune('a' + i))}, HealthCheck: p})
			}
			n.Services = func(context.Context) (*service.Snapshot, error) { return service.New(1, &service.Node{}, ports), nil }
			expect(t, n.inputPolicy, test.want)
		})
	}
	n := newNode(nil) // no Services are known
	n.Kernel = &fakeKernel{chains: []Chain{nft()}}
	expect(t, n.inputPolicy, nil)
}

func TestForwardPolicy(t *testing.T) {
	for situation, test := range map[string]struct {
		chain Chain
		mode  string
		want  []string
	}{
		"docker alone": {Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD", Rules: []string{
			"type filter hook forward priority filter; policy drop;", "counter packets 0 bytes 0 jump DOCKER-USER", `oifname "docker0" counter jump DOCKER`}}, "nftables",
			[]string{"forward-policy | chain FORWARD of table ip filter of nftables | iptables-nft -P FORWARD ACCEPT"}},
		"of iptables-legacy": {Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD", Legacy: true, Rules: []string{"-P FORWARD DROP", "-A FORWARD -j DOCKER-USER"}}, "nftables",
			[]string{"forward-policy | chain FORWARD of iptables-legacy | iptables-legacy -P FORWARD ACCEPT"}},
		"of nftables": {Chain{Hook: Forward, Family: "inet", Table: "firewall", Name: "fwd"}, "nftables",
			[]string{"forward-policy | chain fwd of table inet firewall of nftables | nft add chain inet firewall fwd '{ policy accept; }'"}},
		"a network plugin accepts": {Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD", Rules: []string{"jump DOCKER-USER", "jump FLANNEL-FWD"}}, "nftables", nil},
		"an address is accepted":   {Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD", Legacy: true, Rules: []string{"-A FORWARD -s 10.244.0.0/16 -j ACCEPT"}}, "nftables", nil},
		"a mode that accepts":      {Chain{Hook: Forward}, "ipvs", nil},
		"another hook":             {Chain{Hook: Input}, "nftables", nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(nil)
			n.Modes, n.Kernel = mode(test.mode), &fakeKernel{chains: []Chain{test.chain}}
			expect(t, n.forwardPolicy, test.want)
		})
	}
}

func TestFirewalls(t *testing.T) {
	for name, want := range map[string][]string{
		"kube-services":    nil,
		"firewalld":        {"firewall | firewalld | systemctl disable --now firewalld"},
		"ufw-before-input": {"firewall | ufw | ufw disable"},
	} {
		n := newNode(nil)
		n.Kernel = &fakeKernel{names: []string{"filter", name}}
		expect(t, n.firewalls, want)
	}
}
