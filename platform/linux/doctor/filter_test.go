// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// with gives c its rules, and an empty chain OTHER, as iptables-save prints them.
func (c Chain) with(rules ...string) Chain {
	tables := packet.NewSaved()
	tables.Append(packet.Chain{Table: "filter", Name: "OTHER"})
	tables.Append(packet.Chain{Table: "filter", Name: "FLANNEL-FWD"}, "-s 10.244.0.0/16 -j ACCEPT")
	tables.Append(packet.Chain{Table: "filter", Name: "DOCKER-USER"}, "-j RETURN")
	c.Base = packet.Base{Chain: packet.Chain{Table: "filter", Name: c.Name}, Drops: true}
	tables.Append(c.Base.Chain, rules...)
	c.Tables = tables
	return c
}

func TestInputPolicy(t *testing.T) {
	nft := Chain{Hook: Input, Family: "ip", Table: "filter", Name: "INPUT"}.with
	own := Chain{Hook: Input, Family: "inet", Table: "firewall", Name: "in"}.with()
	legacy := Chain{Hook: Input, Family: "ip6", Table: "filter", Name: "INPUT", Legacy: true}.with()
	for situation, test := range map[string]struct {
		chain  Chain
		mode   string
		checks []uint16
		want   []string
	}{
		"nothing accepted": {nft("-i lo -j ACCEPT", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-i docker0 -j ACCEPT", "-j OTHER"), "nftables", []uint16{31000, 30100},
			[]string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 30100,31000 -j ACCEPT"}},
		"of nftables": {own, "nftables", []uint16{31000},
			[]string{"input-policy | chain in of table inet firewall of nftables | nft insert rule inet firewall in tcp dport '{ 31000 }' accept"}},
		"of iptables-legacy": {legacy, "nftables", []uint16{31000},
			[]string{"input-policy | chain INPUT of ip6tables-legacy | ip6tables-legacy -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"one of two accepted": {nft("-p tcp -m tcp --dport 31000 -j ACCEPT"), "nftables", []uint16{31000, 31001},
			[]string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31001 -j ACCEPT"}},
		"accepted on the way in":  {nft("-i eth0 -j ACCEPT"), "nftables", []uint16{31000}, nil},
		"accepted for some":       {nft("-s 10.0.0.0/8 -p tcp -m tcp --dport 31000 -j ACCEPT"), "nftables", []uint16{31000}, nil},
		"accepted by multiport":   {nft("-p tcp -m multiport --dports 22,31000:31002 -j ACCEPT"), "nftables", []uint16{31001}, nil},
		"accepted by a range":     {nft("-p tcp -m tcp --dport 30000:32767 -j ACCEPT"), "nftables", []uint16{31001}, nil},
		"dropped":                 {nft("-p tcp -m tcp --dport 31000 -j DROP", "-j ACCEPT"), "nftables", []uint16{31000}, []string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"all but it":              {nft("-p tcp -m tcp ! --dport 31000 -j ACCEPT"), "nftables", []uint16{31000}, []string{"input-policy | chain INPUT of table ip filter of nftables | iptables-nft -I INPUT -p tcp -m multiport --dports 31000 -j ACCEPT"}},
		"no health checks":        {nft(), "nftables", nil, nil},
		"a mode that accepts":     {nft(), "iptables", []uint16{31000}, nil},
		"a chain for other hooks": {Chain{Hook: Forward}.with(), "nftables", []uint16{31000}, nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(nil)
			n.Modes, n.Kernel = mode(test.mode), &fakeKernel{links: []Link{link("eth0", "")}, chains: []Chain{test.chain}}
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
	filter := Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD"}.with
	for situation, test := range map[string]struct {
		chain Chain
		mode  string
		want  []string
	}{
		"docker alone": {filter("-j DOCKER-USER", "-o docker0 -j ACCEPT", "-i docker0 ! -o docker0 -j ACCEPT", "-i br-12ab -j ACCEPT"), "nftables",
			[]string{"forward-policy | chain FORWARD of table ip filter of nftables | iptables-nft -P FORWARD ACCEPT"}},
		"known connections": {filter("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-j OTHER"), "nftables",
			[]string{"forward-policy | chain FORWARD of table ip filter of nftables | iptables-nft -P FORWARD ACCEPT"}},
		"of iptables-legacy": {Chain{Hook: Forward, Family: "ip", Table: "filter", Name: "FORWARD", Legacy: true}.with("-j DOCKER-USER"), "nftables",
			[]string{"forward-policy | chain FORWARD of iptables-legacy | iptables-legacy -P FORWARD ACCEPT"}},
		"of nftables": {Chain{Hook: Forward, Family: "inet", Table: "firewall", Name: "fwd"}.with(), "nftables",
			[]string{"forward-policy | chain fwd of table inet firewall of nftables | nft add chain inet firewall fwd '{ policy accept; }'"}},
		"a network plugin accepts": {filter("-j DOCKER-USER", "-j FLANNEL-FWD"), "nftables", nil},
		"addresses of pods":        {filter("-d 10.244.0.0/16 -j ACCEPT"), "nftables", nil},
		"an interface of pods":     {filter("-i cni0 -j ACCEPT"), "nftables", nil},
		"what was translated":      {filter("-m conntrack --ctstate DNAT -j ACCEPT"), "nftables", nil},
		"a mode that accepts":      {filter(), "ipvs", nil},
		"another hook":             {Chain{Hook: Input}.with(), "nftables", nil},
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
