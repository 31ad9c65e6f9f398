// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// tables are those of a test.
type tables struct {
	bases []Base
	rules map[string][]Rule
	sets  map[string]*Set
}

func (t *tables) Bases() []Base                          { return t.bases }
func (t *tables) Rules(c Chain) ([]Rule, error)          { return t.rules[c.Name], nil }
func (t *tables) Set(_ Chain, name string) (*Set, error) { return t.sets[name], nil }

// lab is a node with one interface for everything.
type lab struct{}

func (lab) Local(a netip.Addr) bool        { return a == netip.MustParseAddr("192.0.2.10") }
func (lab) Route(netip.Addr) (Link, uint8) { return Link{Name: "eth0", Index: 2}, 1 }
func (lab) conn() *Connection {
	return &Connection{
		Conn:    route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("10.244.1.7"), To: netip.MustParseAddrPort("10.96.0.10:80"), Interface: "veth"},
		In:      Link{Name: "veth", Index: 7},
		Action:  route.Forward,
		Targets: map[netip.AddrPort]bool{netip.MustParseAddrPort("10.244.2.11:8080"): false},
		Marks:   1 << 14,
	}
}

// daddr is "ip daddr ADDRESS".
func daddr(a string) []Expression {
	return []Expression{PayloadLoad{NetworkBase, 16, 4, 1}, Compare{CmpEqual, 1, netip.MustParseAddr(a).AsSlice()}}
}

func rulesOf(all ...[]Expression) []Rule {
	var rules []Rule
	for i, x := range all {
		rules = append(rules, Rule{Handle: uint64(i + 1), Expressions: x})
	}
	return rules
}

func with(x []Expression, more ...Expression) []Expression { return append(x[:len(x):len(x)], more...) }

var (
	drop   = Verdict{Code: Drop}
	accept = Verdict{Code: Accept}
	limit  = Chance{Name: "limit"}
)

// TestFollow checks verdicts, and what counts as certain.
func TestFollow(t *testing.T) {
	target := daddr("10.244.2.11")
	sub := func(code int32) Verdict { return Verdict{code, "sub"} }
	for name, tt := range map[string]struct {
		base  Base
		rules []Rule
		sub   []Rule
		want  string
	}{
		"drops the target":             {Base{Hook: Forward}, rulesOf(with(target, drop)), nil, "forward drop 1 []"},
		"not the Service's address":    {Base{Hook: Forward}, rulesOf(with(daddr("10.96.0.10"), drop)), nil, "forward pass 0 []"},
		"before the translation":       {Base{Hook: Prerouting, Priority: -150}, rulesOf(with(daddr("10.96.0.10"), drop)), nil, "prerouting drop 1 []"},
		"after it":                     {Base{Hook: Prerouting, Priority: -50}, rulesOf(with(target, drop)), nil, "prerouting drop 1 []"},
		"another hook":                 {Base{Hook: Input}, rulesOf([]Expression{drop}), nil, ""},
		"policy":                       {Base{Hook: Forward, Drops: true}, rulesOf(with(daddr("10.0.0.1"), accept)), nil, "forward drop 0 []"},
		"accepted":                     {Base{Hook: Forward, Drops: true}, rulesOf(with(target, accept)), nil, "forward pass 0 []"},
		"accepted perhaps":             {Base{Hook: Forward, Drops: true}, rulesOf([]Expression{limit, accept}), nil, "forward pass 0 [0]"},
		"dropped perhaps":              {Base{Hook: Forward}, rulesOf([]Expression{limit, drop}), nil, "forward pass 0 [1]"},
		"dropped perhaps, then surely": {Base{Hook: Forward}, rulesOf([]Expression{limit, drop}, []Expression{drop}), nil, "forward drop 2 [1]"},
		"unknown expression":           {Base{Hook: Forward}, rulesOf([]Expression{Opaque{"synproxy"}}), nil, "forward pass 0 [1]"},
		"jump and back":                {Base{Hook: Forward}, rulesOf([]Expression{sub(Jump)}, []Expression{drop}), rulesOf([]Expression{Verdict{Code: Return}}), "forward drop 2 []"},
		"goto":                         {Base{Hook: Forward}, rulesOf([]Expression{sub(Goto)}, []Expression{drop}), nil, "forward pass 0 []"},
		"goto perhaps":                 {Base{Hook: Forward, Drops: true}, rulesOf([]Expression{limit, sub(Goto)}, []Expression{accept}), nil, "forward pass 0 [0]"},
		"goto perhaps, then drop":      {Base{Hook: Forward}, rulesOf([]Expression{limit, sub(Goto)}, []Expression{drop}), nil, "forward pass 0 [2]"},
		"jump perhaps, then drop":      {Base{Hook: Forward}, rulesOf([]Expression{limit, sub(Jump)}, []Expression{drop}), nil, "forward drop 2 []"},
		"jump perhaps to accept":       {Base{Hook: Forward}, rulesOf([]Expression{limit, sub(Jump)}, []Expression{drop}), rulesOf([]Expression{accept}), "forward pass 0 [2]"},
		"return perhaps":               {Base{Hook: Forward, Drops: true}, rulesOf([]Expression{sub(Jump)}), rulesOf([]Expression{limit, Verdict{Code: Return}}, []Expression{accept}), "forward pass 0 [0]"},
		"mark":                         {Base{Hook: Forward}, rulesOf([]Expression{Immediate{1, number(5, 0).known}, MetaStore{MetaMark, 1}, MetaLoad{MetaMark, 2}, Compare{CmpEqual, 2, make([]byte, 4)}, drop}), nil, "forward drop 1 []"},
		"mark of kube-proxy":           {Base{Hook: Forward}, rulesOf([]Expression{MetaLoad{MetaMark, 2}, Compare{CmpEqual, 2, make([]byte, 4)}, drop}), nil, "forward pass 0 [1]"},
		"other bits of that mark":      {Base{Hook: Forward}, rulesOf([]Expression{MetaLoad{MetaMark, 2}, Bitwise{2, 2, 4, number(0xff, 0xff).value, make([]byte, 4)}, Compare{CmpEqual, 2, make([]byte, 4)}, drop}), nil, "forward drop 1 []"},
		"younger DNAT":                 {Base{Hook: Prerouting, Priority: -100, NAT: true, Later: true}, rulesOf([]Expression{Translate{}}), nil, "prerouting translate 1 []"},
		"DNAT of unknown age":          {Base{Hook: Prerouting, Priority: -100, NAT: true}, rulesOf([]Expression{Translate{}}), nil, "prerouting pass 0 [1]"},
		"DNAT that comes too late":     {Base{Hook: Prerouting, Priority: -90, NAT: true}, rulesOf([]Expression{Translate{}}), nil, ""},
		"untracked":                    {Base{Hook: Prerouting, Priority: -300}, rulesOf([]Expression{NoTrack{}}), nil, "prerouting untrack 1 []"},
	} {
		tt.base.Chain = Chain{"inet", "t", "base"}
		all, err := Follow(&tables{[]Base{tt.base}, map[string][]Rule{"base": tt.rules, "sub": tt.sub}, nil}, nil, lab{}, lab{}.conn())
		got := ""
		for i := range all {
			got += summary(&all[i])
		}
		kit.Check(t, err == nil && got == tt.want, "%s: %q, %v; want %q", name, got, err, tt.want)
	}
}

// TestDiverted checks that what follows a rule that may translate a packet, or not track it, is
// in doubt.
func TestDiverted(t *testing.T) {
	source := []Expression{PayloadLoad{NetworkBase, 12, 4, 1}, Compare{CmpEqual, 1, netip.MustParseAddr("10.244.1.7").AsSlice()}, drop}
	for name, tt := range map[string]struct {
		first, second Base
		rules         []Rule // of the first
		then          []Expression
		want          string
	}{
		"translated":         {Base{Hook: Prerouting, Priority: -110, NAT: true}, Base{Hook: Forward}, rulesOf([]Expression{limit, Translate{}}), []Expression{drop}, "prerouting pass 0 [1] forward pass 0 [1] "},
		"policy after it":    {Base{Hook: Prerouting, Priority: -110, NAT: true}, Base{Hook: Forward, Drops: true}, rulesOf([]Expression{limit, Translate{}}), nil, "prerouting pass 0 [1] forward pass 0 [0] "},
		"after a jump":       {Base{Hook: Prerouting, Priority: -110, NAT: true}, Base{Hook: Forward}, rulesOf([]Expression{limit, Verdict{Jump, "sub"}}), []Expression{drop}, "prerouting pass 0 [1] forward pass 0 [1] "},
		"untracked":          {Base{Hook: Prerouting, Priority: -300}, Base{Hook: Forward}, rulesOf([]Expression{limit, NoTrack{}}), []Expression{drop}, "prerouting pass 0 [1] forward pass 0 [1] "},
		"untracked too late": {Base{Hook: Prerouting}, Base{Hook: Forward}, rulesOf([]Expression{limit, NoTrack{}}), []Expression{drop}, "prerouting pass 0 [] forward drop 1 [] "},
		"mark without entry": {Base{Hook: Prerouting, Priority: -300}, Base{Hook: Forward}, rulesOf([]Expression{Immediate{1, []byte{7, 0, 0, 0}}, ConntrackStore{ctMarkKey, 1}}), []Expression{ConntrackLoad{Key: ctMarkKey, To: 1}, Compare{CmpEqual, 1, make([]byte, 4)}, drop}, "prerouting pass 0 [] forward drop 1 [] "},
		"masqueraded":        {Base{Hook: Postrouting, NAT: true}, Base{Hook: Postrouting, Priority: 150}, rulesOf([]Expression{limit, Translate{Source: true}}), source, "postrouting pass 0 [1] postrouting pass 0 [1] "},
		"any source":         {Base{Hook: Postrouting, NAT: true}, Base{Hook: Postrouting, Priority: 150}, rulesOf([]Expression{limit, Translate{Source: true}}), []Expression{drop}, "postrouting pass 0 [1] postrouting drop 1 [] "},
		"masqueraded twice":  {Base{Hook: Postrouting, NAT: true}, Base{Hook: Postrouting, Priority: 5, NAT: true}, rulesOf([]Expression{limit, Translate{Source: true}}), []Expression{drop}, "postrouting pass 0 [1] postrouting pass 0 [1] "},
		"unknown age":        {Base{Hook: Prerouting, Priority: -100, NAT: true}, Base{Hook: Forward}, rulesOf([]Expression{Translate{}}), []Expression{drop}, "prerouting pass 0 [1] forward pass 0 [1] "},
		"taken":              {Base{Hook: Forward}, Base{Hook: Postrouting}, rulesOf([]Expression{limit, Opaque{"queue"}}, []Expression{drop}), nil, "forward pass 0 [1 2] "},
	} {
		tt.first.Chain, tt.second.Chain = Chain{"inet", "t", "first"}, Chain{"inet", "t", "second"}
		rules := map[string][]Rule{"first": tt.rules, "sub": rulesOf([]Expression{Translate{}})}
		if tt.then != nil {
			rules["second"] = rulesOf(tt.then)
		}
		all, err := Follow(&tables{[]Base{tt.first, tt.second}, rules, nil}, nil, lab{}, lab{}.conn())
		got := ""
		for i := range all {
			got += summary(&all[i]) + " "
		}
		kit.Check(t, err == nil && got == tt.want, "%s: %q, %v; want %q", name, got, err, tt.want)
	}
}

// serving is a node with mode ipvs, on which the address of the Service is local.
type serving struct{ lab }

func (serving) Local(a netip.Addr) bool { return a == netip.MustParseAddr("10.96.0.10") }

// TestServed checks that packets reach IPVS by the input hook, and those to the destination
// leave by the output hook.
func TestServed(t *testing.T) {
	conn := serving{}.conn()
	conn.Served = true
	for name, tt := range map[string]struct {
		base Base
		addr string
		want string
	}{
		"before IPVS":          {Base{Hook: Input}, "10.96.0.10", "input drop 1 []"},
		"after IPVS":           {Base{Hook: Input, Priority: 100}, "10.96.0.10", ""},
		"forwarded by no rule": {Base{Hook: Forward}, "10.96.0.10", ""},
		"to the destination":   {Base{Hook: Output}, "10.244.2.11", "output drop 1 []"},
	} {
		tt.base.Chain = Chain{"inet", "t", "base"}
		all, err := Follow(&tables{[]Base{tt.base}, map[string][]Rule{"base": rulesOf(with(daddr(tt.addr), drop))}, nil}, nil, serving{}, conn)
		got := ""
		for i := range all {
			got += summary(&all[i])
		}
		kit.Check(t, err == nil && got == tt.want, "%s: %q, %v; want %q", name, got, err, tt.want)
	}
}

// summary has the handles of rules in place of their names, 0 for none and for policies.
func summary(o *explain.Other) string {
	handle := func(text string) (h int) {
		_, _ = fmt.Sscanf(text, "the rule with handle %d", &h)
		return h
	}
	var doubts []int
	for _, d := range o.Doubts {
		doubts = append(doubts, handle(d.Rule))
	}
	return fmt.Sprintf("%s %s %d %v", o.Hook, o.Does, handle(o.Rule), doubts)
}

// TestLegacyMark checks rules of iptables-legacy about the mark that the mode may set.
func TestLegacyMark(t *testing.T) {
	for rule, want := range map[string]string{
		"-m mark --mark 0x4000/0x4000 -j DROP":   "forward pass -m mark --mark 0x4000/0x4000 -j DROP",
		"-m mark ! --mark 0x4000/0x4000 -j DROP": "forward pass -m mark ! --mark 0x4000/0x4000 -j DROP",
		"-m mark --mark 0x1/0x1 -j DROP":         "forward pass ",
		"-m mark --mark 0x0/0x1 -j DROP":         "forward drop ",
	} {
		x := NewSaved(nil)
		x.Append(Chain{Table: "filter", Name: "FORWARD"}, rule)
		all, err := Follow(&tables{}, []*Legacy{{Name: "filter", Tables: x}}, lab{}, lab{}.conn())
		got := ""
		for _, o := range all {
			if o.Hook != "forward" {
				continue
			}
			got = o.Hook + " " + string(o.Does) + " "
			for _, d := range o.Doubts {
				got += strings.Split(d.Rule, `"`)[1]
			}
		}
		kit.Check(t, err == nil && got == want, "%s: %q, %v; want %q", rule, got, err, want)
	}
}

// TestSets looks keys up that are known, partly known or unknown.
func TestSets(t *testing.T) {
	intervals := &Set{Intervals: true, Elements: []Element{{Key: []byte{0, 90}, End: true}, {Key: []byte{0, 80}}, {Key: []byte{1, 0}}, {Key: []byte{0, 90}}}}
	intervals.sort()
	ranges := &Set{Fields: []int{1, 2}, Elements: []Element{{Key: []byte{6, 0, 0, 0, 31, 64, 0, 0}, KeyEnd: []byte{17, 0, 0, 0, 31, 164, 0, 0}}}}
	hash := &Set{Elements: []Element{{Key: []byte{0, 80}}, {Key: []byte{1, 187}, Conditional: true}, {CatchAll: true, Data: []byte{1}}}}
	for name, tt := range map[string]struct {
		in   *Set
		key  bits
		want Match
	}{
		"begins":            {intervals, certain(0, 80), Yes},
		"within":            {intervals, certain(0, 200), Yes},
		"below":             {intervals, certain(0, 79), No},
		"open end":          {intervals, certain(255, 255), Yes},
		"unknown":           {intervals, unknown(2), Maybe},
		"high byte unknown": {intervals, bits{[]byte{0, 80}, []byte{0, 255}}, Maybe},
		"fields":            {ranges, certain(17, 0, 0, 0, 31, 144, 0, 0), Yes},
		"one field too low": {ranges, certain(5, 0, 0, 0, 31, 144, 0, 0), No},
		"one unknown":       {ranges, bits{[]byte{6, 0, 0, 0, 0, 0, 0, 0}, []byte{255, 255, 255, 255, 0, 0, 255, 255}}, Maybe},
		"hash":              {hash, certain(0, 80), Yes},
		"conditional":       {hash, certain(1, 187), Maybe},
		"all others":        {hash, certain(9, 9), Yes},
	} {
		found, _ := tt.in.find(func(size int) bits { return tt.key.part(0, size) })
		kit.Check(t, found == tt.want, "%s: %d, want %d", name, found, tt.want)
	}
}

// TestClearedMark checks that a cleared mark stops clients, and not the node itself.
func TestClearedMark(t *testing.T) {
	clear := rulesOf([]Expression{Immediate{1, make([]byte, 4)}, MetaStore{MetaMark, 1}})
	base := Base{Chain: Chain{"inet", "t", "base"}, Hook: Postrouting, Priority: -150}
	for from, want := range map[string]string{"veth": "postrouting unmark 0 []", "": "postrouting pass 0 []"} {
		conn := lab{}.conn()
		conn.Interface = from
		for to := range conn.Targets {
			conn.Targets[to] = true
		}
		all, err := Follow(&tables{[]Base{base}, map[string][]Rule{"base": clear}, nil}, nil, lab{}, conn)
		kit.Check(t, err == nil && len(all) == 1 && summary(&all[0]) == want,
			"from %q: %v, %v; want %s", from, all, err, want)
	}
}

// TestMasqueradedSource checks that rules which run after the mode has masqueraded a packet do
// not see the client any more.
func TestMasqueradedSource(t *testing.T) {
	source := []Expression{PayloadLoad{NetworkBase, 12, 4, 1}, Compare{CmpEqual, 1, netip.MustParseAddr("10.244.1.7").AsSlice()}, drop}
	for priority, want := range map[int]string{0: "postrouting drop 1 []", 150: "postrouting pass 0 [1]"} {
		conn := lab{}.conn()
		for to := range conn.Targets {
			conn.Targets[to] = true
		}
		base := Base{Chain: Chain{"inet", "t", "base"}, Hook: Postrouting, Priority: priority}
		all, err := Follow(&tables{[]Base{base}, map[string][]Rule{"base": rulesOf(source)}, nil}, nil, lab{}, conn)
		kit.Check(t, err == nil && len(all) == 1 && summary(&all[0]) == want,
			"priority %d: %v, %v; want %s", priority, all, err, want)
	}
}

// TestManyTargets checks that it is said if some endpoints are not followed.
func TestManyTargets(t *testing.T) {
	for n, want := range map[int]string{
		mostTargets:     "",
		mostTargets + 1: "the rules of others were followed to 64 of 65 endpoints",
	} {
		conn := lab{}.conn()
		clear(conn.Targets)
		for i := range n {
			conn.Targets[netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 2, byte(i)}), 8080)] = false
		}
		base := Base{Chain: Chain{"inet", "t", "base"}, Hook: Forward, Drops: true}
		all, err := Follow(&tables{bases: []Base{base}}, nil, lab{}, conn)
		if err != nil || len(all) != 1 || len(all[0].To) != mostTargets || conn.Note() != want {
			t.Errorf("%d endpoints: %v, %v, note %q; want %d of them, and %q", n, all, err, conn.Note(), mostTargets, want)
		}
	}
}

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
	security   Security
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
func (r *roadLab) Secures(*Leg, service.Protocol, uint16) Security       { return r.security }
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
		"at another interface":    {lab: roadLab{neighbours: map[string]Neighbour{target: {Asking: true, At: "eth1"}}}, want: "nobody answers ARP for 10.244.2.11 on interface eth0, the receiver of packets of 10.244.1.7 to 10.244.2.11: it answers on eth1, and the route leads astray []"},
		"dead long ago":           {lab: roadLab{neighbours: map[string]Neighbour{target: {Failed: true, Age: time.Hour}}}, want: "?nobody answers ARP for 10.244.2.11 on interface eth0, the receiver of packets of 10.244.1.7 to 10.244.2.11: it is down, or elsewhere"},
		"IPsec that blocks":       {lab: roadLab{security: Security{"from A to B", true}}, want: "the IPsec policy from A to B blocks packets of 10.244.1.7 to 10.244.2.11 []"},
		"IPsec that encrypts":     {lab: roadLab{security: Security{"from A to B", false}}, want: "?the IPsec policy from A to B takes packets of 10.244.1.7 to 10.244.2.11, which needs a security association; ?the IPsec policy from A to B takes answers of 10.244.2.11 to 10.244.1.7, which needs a security association"},
		"a program of a device":   {lab: roadLab{devices: map[string]Device{"eth0": {Doubts: []explain.Doubt{{Rule: "a program"}}}, "eth9": {Doubts: []explain.Doubt{{Rule: "another"}}}}}, want: "?a program"},
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
		text := strings.Join(got, "; ")
		kit.Check(t, err == nil && text == tt.want, "%s: %v\n got %s\nwant %s", name, err, text, tt.want)
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
		kit.Equal(t, strings.Join(got, ", "), want, "%s", devices)
	}
}

var (
	client = netip.MustParseAddr("192.0.2.7")
	front  = netip.MustParseAddrPort("10.0.0.1:80")
)

// near is a node that knows only its own address.
type near struct{}

func (near) Local(a netip.Addr) bool { return a == front.Addr() }
func (near) Route(a netip.Addr) (Link, uint8) {
	if a == front.Addr() {
		return Loopback(), Local
	}
	return Link{Unknown: true}, 0
}

// syn is a packet to front with a mark of which the bits in known are known.
func syn(mark, known uint32) *Packet {
	p := New(near{}, route.Conn{Protocol: service.TCP, From: client, To: front, Interface: "eth0"})
	p.In, p.Seen, p.mark = Link{Name: "eth0"}, true, number(mark, known)
	p.Out, _ = near{}.Route(front.Addr())
	return p
}

// start is the chain that tests begin with.
var start = Chain{Table: "filter", Name: "START"}

// matchOf returns whether a rule that drops matches p.
func matchOf(t *testing.T, rule string, p *Packet) Match {
	tables := NewSaved(nil)
	tables.Append(start, rule+" -j DROP")
	w := Walk{Tables: tables, Packet: p}
	f, err := w.Run(Base{Chain: start})
	switch {
	case err != nil:
		t.Fatal(err)
	case f.Does == explain.Drops:
		return Yes
	case len(f.Doubts) > 0:
		return Maybe
	}
	return No
}

func TestMatches(t *testing.T) {
	for rule, want := range map[string]Match{
		"": Yes, "-s 192.0.2.0/24": Yes, "! -s 192.0.2.0/24": No, "-d 10.0.0.2/32": No, "-d 10.0.0.1": Yes,
		"-i eth+": Yes, "-i eth": No, "! -i eth1": Yes, "-p tcp -m tcp --dport 80": Yes, "-p udp": No, "-m tcp --dport 81:90": No,
		"-m multiport --dports 22,79:81": Yes, "-m multiport ! --dports 22,79:81": No,
		"-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN": Yes, "-p tcp -m tcp --tcp-flags FIN FIN": No,
		"-p tcp -m tcp --tcp-flags ACK NONE": Yes, "-p tcp -m tcp --tcp-flags FIN,SYN NONE": No, "-p tcp -m tcp ! --tcp-flags ACK NONE": No,
		"-p tcp -m tcp --tcp-flags NONE NONE": Yes, "-p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK": No, "-p tcp -m tcp --tcp-flags ALL SYN": Yes,
		"-m addrtype --dst-type LOCAL": Yes, "-m addrtype ! --dst-type LOCAL": No, "-m addrtype --src-type LOCAL": No, "-m addrtype --dst-type MULTICAST": No, "-m addrtype --src-type MULTICAST": No, "-m addrtype --src-type UNICAST": Maybe, "-m addrtype --src-type UNICAST,BROADCAST,ANYCAST": Yes,
		"-m conntrack --ctstate NEW": Yes, "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT": Yes, "-m conntrack --ctdir REPLY": No, "-m state --state ESTABLISHED": No,
		"-m conntrack --ctorigdst 10.0.0.0/8": Yes, "-m mark --mark 0x4000/0x4000": Yes, "-m mark ! --mark 0x4000/0x4000": No, "-m mark --mark 0x4000": Yes,
		"-o lo": Yes, "! -o lo": No, "-o eth0": No,
		`-m comment --comment "a -s 1.2.3.4 \" b" -s 192.0.2.7/32`:  Yes,
		"-m statistic --mode random --probability 0.5":              Maybe,
		"-m statistic --mode random --probability 0.5 -s 10.0.0.0":  No,
		"-m recent --set --name A --mask 255.255.255.255 --rsource": Yes,
		"-m geoip --source-country DE":                              Maybe, "-m geoip --source-country DE -p udp": No, "! -f": Yes, "-f": No, "-p tcp -m tcp --sport 1024:65535": Maybe, "-p tcp -m tcp --sport 0:65535": Yes,
		"-m connmark --mark 0x4000/0x4000": No, "-m connmark --mark 0x0/0xffff": Yes, "-m policy --dir in --pol none --mode tunnel": Maybe,
		"-p 6": Yes, "-p icmp": No, "-d 10.0.0.0/255.0.0.255": Maybe, "-i eth+ -m physdev --physdev-in eth1": Maybe,
		"-m set --match-set X dst": Maybe, "-m bpf --bytecode \"1,6 0 0 0\"": Maybe, "-m owner --uid-owner 0": Maybe,
	} {
		kit.Equal(t, matchOf(t, rule, syn(0x4000, ^uint32(0))), want, "%q", rule)
	}
}

// routed is a node that knows the types of addresses by their last byte. Some have no route.
type routed struct{}

func (routed) Local(a netip.Addr) bool { return a.AsSlice()[a.BitLen()/8-1] == Local }
func (routed) Route(a netip.Addr) (Link, uint8) {
	return Link{Name: "eth0", Index: 2}, a.AsSlice()[a.BitLen()/8-1]
}

// TestAddressTypes checks what iptables and nftables call an address. Types of IPv6 are all to
// hold, apart from those by route.
func TestAddressTypes(t *testing.T) {
	const net4, net6 = "192.0.2.", "2001:db8::"
	for _, tt := range []struct {
		addr, types string
		want        Match
		fib         uint32
	}{
		{net4 + "2", "LOCAL,UNICAST", Yes, Local}, {net4 + "1", "LOCAL,UNICAST", Yes, Unicast}, {net4 + "1", "LOCAL", No, Unicast},
		{net4 + "3", "BROADCAST", Yes, broadcast}, {net4 + "3", "UNICAST", No, broadcast}, {"224.0.0.1", "MULTICAST", Yes, multicast},
		{net4 + "6", "BLACKHOLE", No, Unicast}, {net4 + "0", "UNICAST", Yes, Unicast}, {net4 + "0", "UNSPEC", No, Unicast},
		{net6 + "2", "LOCAL,UNICAST", Yes, Local}, {net6 + "1", "LOCAL,UNICAST", No, Unicast}, {net6 + "1", "UNICAST", Yes, Unicast},
		{net6 + "2", "UNICAST", Yes, Local}, {net6 + "4", "LOCAL,ANYCAST", Yes, anycast}, {net6 + "2", "UNICAST,MULTICAST", No, Local},
		{net6 + "6", "UNREACHABLE", Yes, 6}, {net6 + "0", "UNREACHABLE", Yes, 0}, {net6 + "1", "UNREACHABLE", No, Unicast},
		{"ff02::1", "MULTICAST", Yes, multicast}, {"ff02::1", "UNICAST", No, multicast}, {net6 + "1", "UNSPEC", No, Unicast},
	} {
		p := New(routed{}, route.Conn{Protocol: service.TCP, From: client, To: netip.AddrPortFrom(netip.MustParseAddr(tt.addr), 80)})
		kit.Equal(t, matchOf(t, "-m addrtype --dst-type "+tt.types, p), tt.want, "%s %s", tt.addr, tt.types)
		if got := matchOf(t, "-m addrtype ! --dst-type "+tt.types, p); got != tt.want.negated() {
			t.Errorf("%s ! %s: %d, want %d", tt.addr, tt.types, got, tt.want.negated())
		}
		value, known := p.fib(Fib{Type: true}).number()
		kit.Check(t, value == tt.fib && (tt.fib == 0 || known == ^uint32(0)),
			"%s: fib says %d of %#x, want %d", tt.addr, value, known, tt.fib)
		if _, known = p.fib(Fib{Type: true, Interfaces: true}).number(); (known != 0) != (tt.fib == Unicast) {
			t.Errorf("%s: fib knows %#x of the type on an interface", tt.addr, known)
		}
	}
}

// TestFlags: the first packet of TCP has SYN alone, apart from the flags for congestion.
func TestFlags(t *testing.T) {
	for flags, want := range map[string]Match{
		"SYN SYN": Yes, "FIN,SYN,RST,ACK SYN": Yes, "ALL SYN": Yes, "ACK NONE": Yes, "FIN,RST NONE": Yes,
		"SYN NONE": No, "SYN,ACK SYN,ACK": No, "ALL NONE": No, "ACK ACK": No,
	} {
		p := New(routed{}, route.Conn{Protocol: service.TCP, From: client, To: netip.MustParseAddrPort("192.0.2.1:80")})
		kit.Equal(t, matchOf(t, "-p tcp -m tcp --tcp-flags "+flags, p), want, "%s", flags)
		if got := matchOf(t, "-p tcp -m tcp ! --tcp-flags "+flags, p); got != want.negated() {
			t.Errorf("! %s: %d, want %d", flags, got, want.negated())
		}
	}
}

// TestVagueMark checks marks of which not all bits are known, and what makes them so.
func TestVagueMark(t *testing.T) {
	for rule, want := range map[string]Match{
		"--mark 0x4000/0x4000": Maybe, "! --mark 0x4000/0x4000": Maybe, "--mark 0x1/0x1": Yes, "! --mark 0x1/0x1": No, "--mark 0x2/0x4002": No,
	} {
		kit.Equal(t, matchOf(t, "-m mark "+rule, syn(1, ^uint32(0x4000))), want, "%q", rule)
	}
	for rule, want := range map[string][2]uint32{
		"-j MARK --set-xmark 0x2/0xff":                                      {0x2, 0x4000},
		"-j MARK --set-xmark 0x4000/0x4000":                                 {0x4001, 0},
		"-m geoip --cc DE -j MARK --set-xmark 0x2/0x3":                      {0, 0x4003},
		"-m geoip --cc DE -j MARK --set-xmark 0x1/0x1":                      {0x1, 0x4000},
		"-m statistic --probability 0.5 -j MARK --set-xmark 0x0/0xffffffff": {0, 0x4001},
	} {
		tables := NewSaved(nil)
		tables.Append(start, rule)
		w := &Walk{Tables: tables, Packet: syn(1, ^uint32(0x4000))}
		_, err := w.Run(Base{Chain: start})
		value, known := w.Packet.mark.number()
		got := [2]uint32{value, ^known}
		kit.Check(t, got == want && err == nil, "%q: mark and unknown bits %#x, %v, want %#x", rule, got, err, want)
	}
}

func TestConcerns(t *testing.T) {
	for rule, want := range map[string]bool{
		"-m conntrack ! --ctstate NEW": true, "-m mark ! --mark 0x4000/0x4000": true, "-s 10.0.0.0/8": false, "-p tcp -m tcp --dport 81": false, "-i eth1": false,
	} {
		tables := NewSaved(nil)
		tables.Append(start, rule+" -j DROP")
		kit.Equal(t, Concerns(&tables.List(start)[0], *syn(0, 0)), want, "%q", rule)
	}
}

// walked runs the chain START of a table.
func walked(t *testing.T, table string, chains map[string][]string, owns func(Chain) bool) Finding {
	tables := NewSaved(nil)
	for name, rules := range chains {
		tables.Append(Chain{Table: table, Name: name}, rules...)
	}
	w := Walk{Tables: tables, Packet: syn(0x4000, ^uint32(0)), Owns: owns}
	f, err := w.Run(Base{Chain: Chain{Table: table, Name: "START"}})
	kit.Must(t, err)
	return f
}

func TestVerdicts(t *testing.T) {
	for _, tc := range []struct {
		chains   map[string][]string
		want     explain.Deed
		by       string
		doubtful int
	}{
		{nil, explain.Passes, "", 0},
		{map[string][]string{"START": {"-j NEXT", "-j DROP"}, "NEXT": {"-p udp -j ACCEPT"}}, explain.Drops, "-j DROP", 0},
		{map[string][]string{"START": {"-g NEXT", "-j DROP"}, "NEXT": {"-p udp -j ACCEPT"}}, explain.Passes, "", 0},
		{map[string][]string{"START": {"-j NEXT", "-j REJECT"}, "NEXT": {"-j RETURN", "-j DROP"}}, explain.Refuses, "-j REJECT", 0},
		{map[string][]string{"START": {"-j MARK --set-xmark 0x4000/0x0", "-m mark --mark 0x4000/0x4000 -j DROP", "-j ACCEPT"}}, explain.Passes, "-j ACCEPT", 0},
		{map[string][]string{"START": {"-m geoip --cc DE -j DROP", "-m geoip --cc DE -j LOG", "-j ACCEPT"}}, explain.Passes, "-j ACCEPT", 1},
		{map[string][]string{"START": {"-j NFQUEUE --queue-num 1"}}, explain.Passes, "", 1},
		{map[string][]string{"START": {"-j START"}}, explain.Passes, "", 0}, // the kernel refuses that
	} {
		f := walked(t, "filter", tc.chains, nil)
		by := f.By.Text + f.Accepted.Text
		kit.Check(t, f.Does == tc.want && by == tc.by && len(f.Doubts) == tc.doubtful,
			"%q: %q by %q, doubts %v; want %q by %q", tc.chains, f.Does, by, f.Doubts, tc.want, tc.by)
	}
}

// TestOwned checks that chances are followed in chains of the mode, and not elsewhere.
func TestOwned(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	half, all := "-m statistic --mode random --probability 0.5 -j DNAT --to-destination "+a.String(), "-j DNAT --to-destination "+b.String()
	chains := map[string][]string{"START": {"-j NEXT"}, "NEXT": {"-p tcp " + half, "-p tcp " + all, half}}
	for name, tc := range map[string]struct {
		owns    func(Chain) bool
		targets []netip.AddrPort
		steps   int // two chains, the jump, two rules
		doubts  int
	}{
		"all":  {func(Chain) bool { return true }, []netip.AddrPort{a, b}, 5, 0},
		"none": {nil, nil, 4, 2},
	} {
		f := walked(t, "nat", chains, tc.owns)
		if is := f.Does == explain.Translates; is != (tc.owns != nil) || !slices.Equal(f.Targets, tc.targets) || len(f.Steps) != tc.steps || len(f.Doubts) != tc.doubts {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestAlone has rules of others before and behind a jump to a chain of the mode. Only where none of
// them may match, nor a policy decides, the packet met nothing else.
func TestAlone(t *testing.T) {
	owns := func(c Chain) bool { return c.Name == "OURS" }
	for _, tc := range []struct {
		start []string
		drops bool // the policy
		want  bool
	}{
		{start: []string{"-j OURS"}, want: true},
		{start: []string{"-p udp -j ACCEPT", "-p tcp -j OURS", "-p udp -j DROP"}, want: true},
		{start: []string{"-j ACCEPT"}},
		{start: []string{"-j OURS", "-j THEIRS"}},
		{start: []string{"-j MARK --set-xmark 0x1/0x1", "-j OURS"}},
		{start: []string{"-m geoip --cc DE -j ACCEPT", "-j OURS"}},
		{start: []string{"-m geoip --cc DE -j OURS"}},
		{start: []string{"-j OURS"}, drops: true},
	} {
		tables := NewSaved(nil)
		start := Chain{Table: "filter", Name: "START"}
		tables.Append(start, tc.start...)
		tables.Append(Chain{Table: "filter", Name: "OURS"}, "-j RETURN", "-m geoip --cc DE -j RETURN")
		tables.Append(Chain{Table: "filter", Name: "THEIRS"}, "-p udp -j ACCEPT")
		w := Walk{Tables: tables, Packet: syn(0, ^uint32(0)), Owns: owns}
		f, err := w.Run(Base{Chain: start, Drops: tc.drops})
		if kit.Must(t, err); f.Alone != tc.want {
			t.Errorf("%q, policy drops: %t: alone %t, want %t", tc.start, tc.drops, f.Alone, tc.want)
		}
	}
}

func TestParse(t *testing.T) {
	tables := Parse("# by iptables\n*filter\n:INPUT DROP [0:0]\n:MINE - [0:0]\n-A INPUT -s 10.0.0.0/8 -j MINE\n-A MINE -j RETURN\nCOMMIT\n")
	w := Walk{Tables: tables, Packet: syn(0, 0)}
	input := Chain{Table: "filter", Name: "INPUT"}
	if f, err := w.Run(tables.Base(input)); err != nil || f.Does != explain.Drops || f.By.String() != "the policy of chain INPUT of table filter" {
		t.Errorf("%+v, %v, want what the policy says", f, err)
	}
	got := tables.List(Chain{Table: "filter", Name: "MINE"})
	kit.Check(t, len(got) == 1 && got[0].Text == "-j RETURN", "rules %+v", got)
	if tables.Remove("filter"); tables.Has(Chain{Table: "filter", Name: "INPUT"}) {
		t.Error("the table is still there")
	}
}
