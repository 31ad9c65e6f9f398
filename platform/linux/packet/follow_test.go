// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

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
