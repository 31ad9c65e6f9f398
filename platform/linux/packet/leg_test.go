// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
)

// roadLab is a node that answers by tables.
type roadLab struct {
	lab
	roads      map[string]Road // by "DESTINATION iif mark", of which the last two may be left out
	refusals   map[string]Refusal
	policies   []Policy
	settings   map[string]string
	devices    map[string]Device
	neighbours map[string]Neighbour
	refuses    uint8
	byDefault  bool
	idle       bool // nobody listens
}

func (r *roadLab) Road(l Leg) (Road, Refusal) {
	if x, is := r.refusals[l.To.String()+" "+l.In.Name]; is {
		return Road{}, x
	}
	if x, is := r.roads[l.To.String()+" "+l.In.Name]; is {
		return x, 0
	}
	if x, is := r.roads[l.To.String()]; is {
		return x, 0
	}
	return Road{Type: Unicast, Out: Link{Name: "eth0", Index: 2}, Table: tableMain}, 0
}
func (r *roadLab) ByDefault(netip.Addr) bool                             { return r.byDefault }
func (r *roadLab) Policies(service.Family) []Policy                      { return r.policies }
func (r *roadLab) Setting(name string) string                            { return r.settings[name] }
func (r *roadLab) Device(name string) Device                             { return r.devices[name] }
func (r *roadLab) Neighbour(_ Link, a netip.Addr) Neighbour              { return r.neighbours[a.String()] }
func (r *roadLab) Listens(service.Protocol, netip.AddrPort) (bool, bool) { return !r.idle, true }
func (r *roadLab) Refuses(_ uint32, to netip.Addr) (uint8, netip.Prefix) {
	return r.refuses, netip.PrefixFrom(to, 24).Masked()
}

// TestWays checks what is said of the way of a packet and its answer, and what is certain.
func TestWays(t *testing.T) {
	const target, client = "10.244.2.11", "10.244.1.7"
	gateway := Road{Type: Unicast, Out: Link{Name: "eth0", Index: 2}, Gateway: netip.MustParseAddr("192.0.2.1"), Table: 77}
	rule := Policy{Priority: 100, From: netip.MustParsePrefix(client + "/32"), Table: 77}
	for name, tt := range map[string]struct {
		lab        roadLab
		masquerade bool
		here       bool
		want       string // doubts begin with "?"
	}{
		"a sound node":            {},
		"forwarding":              {lab: roadLab{refusals: map[string]Refusal{target + " veth": Unreachable}, settings: map[string]string{"ipv4/conf/veth/forwarding": "0", "ipv4/ip_forward": "0"}}, want: "net.ipv4.ip_forward is 0, so the node forwards nothing, also no packets of 10.244.1.7 to 10.244.2.11 [sysctl -w net.ipv4.ip_forward=1]"},
		"of one interface":        {lab: roadLab{refusals: map[string]Refusal{target + " veth": Unreachable}, settings: map[string]string{"ipv4/conf/veth/forwarding": "0", "ipv4/ip_forward": "1"}}, want: "net.ipv4.conf.veth.forwarding is 0, so the node forwards nothing that comes in by veth, also no packets of 10.244.1.7 to 10.244.2.11 [sysctl -w net.ipv4.conf.veth.forwarding=1]"},
		"unreachable":             {lab: roadLab{refusals: map[string]Refusal{target + " veth": Unreachable}}, want: "the node has no route for packets of 10.244.1.7 to 10.244.2.11: no route to host []"},
		"blackhole":               {lab: roadLab{refusals: map[string]Refusal{target + " veth": Invalid}, policies: []Policy{rule}, refuses: 6}, want: `the node has no route for packets of 10.244.1.7 to 10.244.2.11: blackhole 10.244.2.0/24 of table 77, by rule "from 10.244.1.7 lookup 77" []`},
		"rule of another client":  {lab: roadLab{refusals: map[string]Refusal{target + " veth": Prohibited}, policies: []Policy{{From: netip.MustParsePrefix("10.9.0.0/16"), Refuses: true}}}, want: "the node has no route for packets of 10.244.1.7 to 10.244.2.11: prohibited []"},
		"rule that refuses":       {lab: roadLab{refusals: map[string]Refusal{target + " veth": Prohibited}, policies: []Policy{{In: "veth", Refuses: true}}}, want: `the node has no route for packets of 10.244.1.7 to 10.244.2.11: prohibit, by rule "from all iif veth prohibit" []`},
		"no route for answers":    {lab: roadLab{refusals: map[string]Refusal{client + " eth0": NoRoute}}, want: "the node has no route for answers of 10.244.2.11 to 10.244.1.7: network is unreachable []"},
		"loose filter":            {lab: roadLab{refusals: map[string]Refusal{client + " eth0": Invalid, target + " ": NoRoute}, settings: map[string]string{"ipv4/conf/all/rp_filter": "2"}}, want: "rp_filter of interface eth0 is 2, and the node has no route to it: it drops packets of 10.244.2.11 []"},
		"filter, by a rule":       {lab: roadLab{refusals: map[string]Refusal{target + " veth": Invalid}, settings: map[string]string{"ipv4/conf/all/rp_filter": "2"}, policies: []Policy{{In: "eth0", To: netip.MustParsePrefix(client + "/32"), Table: 77}}, refuses: 6}, want: `rp_filter of interface veth is 2, and the node has no route for answers that come in by eth0: blackhole 10.244.1.0/24 of table 77, by rule "from all to 10.244.1.7 iif eth0 lookup 77": it drops packets of 10.244.1.7 []`},
		"answers elsewhere":       {lab: roadLab{roads: map[string]Road{client + " eth0": gateway, client: {Type: Unicast, Out: Link{Name: "veth", Index: 7}, Table: tableMain}}, policies: []Policy{{To: netip.MustParsePrefix(client + "/32"), Table: 77}}}, want: `rule "from all to 10.244.1.7 lookup 77" sends answers of 10.244.2.11 to 10.244.1.7 to table 77: via 192.0.2.1, interface eth0, and not direct, interface veth []`},
		"packets by another hop":  {lab: roadLab{roads: map[string]Road{target + " veth": gateway}, policies: []Policy{rule}}, want: `?rule "from 10.244.1.7 lookup 77" sends packets of 10.244.1.7 to 10.244.2.11 to table 77: via 192.0.2.1, interface eth0, and not direct, interface eth0`},
		"of this node":            {here: true, lab: roadLab{roads: map[string]Road{target + " veth": gateway}, policies: []Policy{rule}}, want: `rule "from 10.244.1.7 lookup 77" sends packets of 10.244.1.7 to 10.244.2.11 to table 77: via 192.0.2.1, interface eth0, and not direct, interface eth0 []`},
		"of this node, no route":  {here: true, lab: roadLab{byDefault: true}, want: "10.244.2.11 is an endpoint on this node, and only the default route leads there, direct, interface eth0: its interface is down or gone []"},
		"of another, by default":  {lab: roadLab{byDefault: true}},
		"no carrier":              {lab: roadLab{devices: map[string]Device{"eth0": {NoCarrier: true}}}, want: "interface eth0 has no carrier, its other end is down or unplugged: nothing carries packets of 10.244.1.7 to 10.244.2.11 []"},
		"dead":                    {lab: roadLab{neighbours: map[string]Neighbour{target: {Failed: true}}}, want: "nobody answers ARP for 10.244.2.11 on interface eth0, the receiver of packets of 10.244.1.7 to 10.244.2.11: it is down, or elsewhere []"},
		"dead long ago":           {lab: roadLab{neighbours: map[string]Neighbour{target: {Failed: true, Age: time.Hour}}}, want: "?nobody answers ARP for 10.244.2.11 on interface eth0, the receiver of packets of 10.244.1.7 to 10.244.2.11: it is down, or elsewhere"},
		"nobody listens":          {lab: roadLab{idle: true, roads: map[string]Road{target: {Type: Local}}}, want: "no program listens at 10.244.2.11:8080/tcp, which is an address of this node: it refuses connections []"},
		"one bridge":              {lab: roadLab{devices: map[string]Device{"veth": {Master: "eth0"}, "eth0": {Bridge: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}, settings: map[string]string{"bridge/bridge-nf-call-iptables": "0"}}, want: "the client and 10.244.2.11 are on bridge eth0, and net.bridge.bridge-nf-call-iptables is 0: between its ports, answers go past the rules and are not translated back, so the client takes none [sysctl -w net.bridge.bridge-nf-call-iptables=1]"},
		"one bridge, masqueraded": {masquerade: true, lab: roadLab{devices: map[string]Device{"veth": {Master: "eth0"}, "eth0": {Bridge: true}}, settings: map[string]string{"bridge/bridge-nf-call-iptables": "0"}}},
	} {
		c := lab{}.conn()
		to := netip.AddrPortFrom(netip.MustParseAddr(target), 8080)
		c.Targets = map[netip.AddrPort]bool{to: tt.masquerade}
		c.Here = func(netip.AddrPort) bool { return tt.here }
		_, err := Follow(&tables{}, nil, &tt.lab, c)
		var got []string
		for _, o := range c.Way.Obstacles {
			got = append(got, o.What+" ["+o.Fix+"]")
		}
		for _, d := range c.Way.Doubts {
			got = append(got, "?"+d.Rule)
		}
		if text := strings.Join(got, "; "); err != nil || text != tt.want {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, text, tt.want)
		}
	}
}

// TestDisabled6 checks that IPv6 which is off on the way is named.
func TestDisabled6(t *testing.T) {
	const target = "fd00:2::11"
	off := func(on string) map[string]string { return map[string]string{"ipv6/conf/" + on + "/disable_ipv6": "1"} }
	for name, tt := range map[string]struct {
		lab  roadLab
		in   Link
		want string
	}{
		"on":                {roadLab{}, Link{Name: "veth", Index: 7}, ""},
		"where it enters":   {roadLab{settings: off("veth")}, Link{Name: "veth", Index: 7}, "veth"},
		"where it leaves":   {roadLab{settings: off("eth0")}, Link{Name: "veth", Index: 7}, "eth0"},
		"on all, no route":  {roadLab{settings: off("all"), refusals: map[string]Refusal{target + " veth": NoRoute}}, Link{Name: "veth", Index: 7}, "all"},
		"on all, no client": {roadLab{settings: off("all")}, Link{Unknown: true}, "all"},
		"on again":          {roadLab{settings: off("all")}, Link{Name: "veth", Index: 7}, ""},
	} {
		c := lab{}.conn()
		c.From, c.To, c.In = netip.MustParseAddr("fd00:1::7"), netip.MustParseAddrPort("[fd00:96::1]:80"), tt.in
		c.Targets = map[netip.AddrPort]bool{netip.AddrPortFrom(netip.MustParseAddr(target), 8080): false}
		_, err := Follow(&tables{}, nil, &tt.lab, c)
		got := ""
		for _, o := range c.Way.Obstacles {
			got += o.What + "; "
		}
		if want := "net.ipv6.conf." + tt.want + ".disable_ipv6 is 1"; err != nil || tt.want == "" && got != "" || tt.want != "" && !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, %v; want %s", name, got, err, want)
		}
	}
}

// TestReply checks that rules see the answer of an endpoint as one of an established connection.
func TestReply(t *testing.T) {
	from := func(port byte) []Expression {
		return []Expression{PayloadLoad{NetworkBase, 12, 4, 1}, Compare{CmpEqual, 1, netip.MustParseAddr("10.244.2.11").AsSlice()}, PayloadLoad{TransportBase, 0, 2, 2}, Compare{CmpEqual, 2, []byte{31, port}}, drop}
	}
	state := func(s uint32) []Expression {
		return []Expression{ConntrackLoad{Key: CtState, To: 1}, Bitwise{1, 1, 4, number(s, s).value, make([]byte, 4)}, Compare{CmpNotEqual, 1, make([]byte, 4)}, accept}
	}
	for name, tt := range map[string]struct {
		rules [][]Expression
		want  string
	}{
		"drops answers":         {[][]Expression{from(144)}, "drops answers of 10.244.2.11:8080"},
		"of another port":       {[][]Expression{from(145)}, ""},
		"accepts established":   {[][]Expression{state(StateEstablished), from(144)}, ""},
		"accepts only new ones": {[][]Expression{state(stateNew), {drop}}, "drops answers of 10.244.2.11:8080"},
	} {
		base := Base{Chain: Chain{"inet", "t", "base"}, Hook: Forward}
		all, err := Follow(&tables{[]Base{base}, map[string][]Rule{"base": rulesOf(tt.rules...)}, nil}, nil, &roadLab{}, lab{}.conn())
		x := &explain.Explanation{Action: "forward"}
		x.Compare(&explain.Path{Action: "forward", Others: all})
		if got := strings.Join(x.Differences, "; "); err != nil || !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s: %q, %v; want %q", name, got, err, tt.want)
		}
	}
}

// TestUnfollowed checks which tables beside the families of IP are on the way.
func TestUnfollowed(t *testing.T) {
	all := []Unfollowed{{"bridge", "corp", nil}, {"netdev", "far", []string{"eth1"}}, {"netdev", "near", []string{"eth0"}}, {"netdev", "port", []string{"veth"}}}
	for devices, want := range map[string]string{"": "netdev near", "bridge": "bridge corp, netdev near, netdev port"} {
		r := &roadLab{}
		if devices != "" {
			r.devices = map[string]Device{"eth0": {Bridge: true}, "veth": {Master: "eth0"}}
		}
		w := &ways{Roads: r, links: []string{"eth0"}}
		var got []string
		for _, d := range w.unfollowed(all) {
			got = append(got, strings.TrimPrefix(d.Rule, "table "))
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: %s, want %s", devices, text, want)
		}
	}
}
