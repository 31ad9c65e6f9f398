// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// rule identifies a rule, or the policy of a base chain.
type rule struct {
	chain   Chain
	handle  uint64 // 0 for the policy
	comment string
	text    string // of a rule of iptables-legacy
	whole   bool   // the chain as a whole, no single rule
}

// doubt is a rule that may end the packet.
type doubt struct {
	rule
	does explain.Deed
	why  string
}

// finding is what a base chain does with a packet.
type finding struct {
	verdict explain.Deed
	by      rule
	doubts  []doubt
	empty   bool // it has no rules
}

// walker follows a packet through the rules of one base chain.
type walker struct {
	tables Tables
	packet *packet
	finding
	depth   int
	escapes string // why the packet may have left the base chain before
}

// flow is what happens to a packet in a chain.
type flow struct {
	ended   bool // it does not come back
	dropped bool // and it is not accepted
	mayEnd  bool // it may have been accepted
}

// run runs a base chain.
func (w *walker) run(b Base) error {
	f, err := w.chain(b.Chain, true)
	if rules, listErr := w.tables.Rules(b.Chain); listErr == nil {
		w.empty = len(rules) == 0
	}
	if err != nil || f.ended || !b.Drops {
		return err
	}
	w.end(explain.Drops, rule{chain: b.Chain}, !f.mayEnd)
	return nil
}

// end records that a rule drops or rejects the packet, if it comes there.
func (w *walker) end(v explain.Deed, r rule, sure bool) {
	if sure {
		w.verdict, w.by = v, r
		return
	}
	w.doubt(v, r, w.escapes)
}

func (w *walker) doubt(v explain.Deed, r rule, why string) {
	for _, d := range w.doubts {
		if d.rule == r {
			return
		}
	}
	w.doubts = append(w.doubts, doubt{r, v, why})
}

// deepest bounds how many chains lead to each other. The kernel bounds it lower (kernel:
// include/net/netfilter/nf_tables.h, NFT_JUMP_STACK_SIZE).
const deepest = 64

// visit is a packet in a chain.
type visit struct {
	*walker
	flow
	in Chain
	// sure means that the packet certainly comes to the next rule, unless it was dropped.
	sure bool
	// mayReturn means that it may have gone back to the chain that led here.
	mayReturn bool
}

func (w *walker) chain(c Chain, sure bool) (flow, error) {
	if w.depth == deepest {
		return flow{}, nil
	}
	w.depth++
	defer func() { w.depth-- }()
	rules, err := w.tables.Rules(c)
	if err != nil {
		return flow{}, err
	}
	v := &visit{walker: w, in: c, sure: sure}
	for i := range rules {
		at, tracked := rule{chain: c, handle: rules[i].Handle, comment: rules[i].Comment}, !w.packet.untracked
		e, err := w.evaluate(&rules[i], c, v.sure)
		if err != nil {
			return flow{}, err
		}
		if tracked && w.packet.untracked {
			w.verdict, w.by = explain.Untracks, at
		}
		if e.match == no {
			continue
		}
		for _, x := range e.ends {
			over, err := v.apply(x, &e, at)
			if err != nil || over {
				return v.flow, err
			}
		}
	}
	return v.flow, nil
}

// apply applies what ends a rule. It reports whether the chain is over.
func (v *visit) apply(x any, e *effect, at rule) (over bool, err error) {
	sure := v.sure && e.match == yes
	switch x := x.(type) {
	case Reject:
		return v.drop(explain.Refuses, e, at), nil
	case Translate:
		return v.translate(x, e, at), nil
	case Opaque:
		v.walker.doubt(explain.Drops, at, x.Name)
		return e.match == yes && v.finish(false), nil
	case Verdict:
		switch x.Code {
		case Drop:
			return v.drop(explain.Drops, e, at), nil
		case Jump, Goto:
			return v.enter(x, e, sure)
		case Return:
			return v.leave(e), nil
		}
	}
	return v.accept(e, at), nil
}

// finish ends the chain. It returns true.
func (v *visit) finish(dropped bool) bool {
	if v.mayReturn {
		v.mayEnd = v.mayEnd || !dropped
		return true
	}
	v.ended, v.dropped = true, dropped
	return true
}

func (v *visit) drop(how explain.Deed, e *effect, at rule) bool {
	if e.match == maybe {
		v.walker.doubt(how, at, e.reason())
		return false
	}
	v.end(how, at, v.sure)
	return v.finish(true)
}

func (v *visit) accept(e *effect, at rule) bool {
	if e.match == yes {
		return v.finish(false)
	}
	v.escape(e, at)
	return false
}

// escape records that the packet may have been accepted.
func (v *visit) escape(e *effect, at rule) {
	v.sure, v.mayEnd = false, true
	v.escapes = "unless " + at.describe() + " accepts it before: " + e.reason()
}

func (v *visit) leave(e *effect) bool {
	if e.match == yes {
		return true
	}
	v.sure, v.mayReturn = false, true
	v.escapes = "a rule before may not lead there: " + e.reason()
	return false
}

// enter follows a jump or goto.
func (v *visit) enter(x Verdict, e *effect, sure bool) (over bool, err error) {
	escapes := v.escapes
	if e.match == maybe {
		v.escapes = "if a rule before leads there: " + e.reason()
	}
	f, err := v.chain(Chain{v.in.Family, v.in.Table, x.Chain}, sure)
	v.escapes = escapes
	accepted := f.mayEnd || f.ended && !f.dropped
	if e.match == maybe {
		if accepted {
			v.sure, v.mayEnd = false, true
			v.escapes = "unless chain " + x.Chain + " accepts it before: " + e.reason()
		}
		if x.Code == Goto {
			v.sure, v.mayReturn = false, true
		}
		return false, err
	}
	if f.ended {
		return v.finish(f.dropped), err
	}
	if f.mayEnd {
		v.sure, v.mayEnd = false, true
	}
	return x.Code == Goto, err
}

// translate applies the replacement of an address. The first one of a connection counts.
func (v *visit) translate(x Translate, e *effect, at rule) bool {
	what := explain.Translates
	if x.Source {
		what = explain.Masquerades
	}
	if e.match == maybe || !v.sure {
		if !x.Source {
			v.walker.doubt(what, at, e.reason())
		}
		return v.accept(e, at)
	}
	v.verdict, v.by = what, at
	return v.finish(false)
}

// describe names the rule as a user can find it.
func (r rule) describe() string {
	where := "chain " + r.chain.Name + " of table " + r.chain.tableName()
	switch {
	case r.whole:
		return where
	case r.text != "":
		return "rule " + strconv.Quote(r.text) + " of " + where
	case r.handle == 0:
		return "the policy of " + where
	case r.comment != "":
		return fmt.Sprintf("rule %q (handle %d) of %s", r.comment, r.handle, where)
	}
	return fmt.Sprintf("the rule with handle %d of %s", r.handle, where)
}

func (c Chain) tableName() string {
	if c.Family == "" {
		return c.Table
	}
	return c.Family + " " + c.Table
}

// Tables are what the kernel has, without what this program follows elsewhere.
type Tables interface {
	// Bases returns the base chains of the family, in any order.
	Bases() []Base
	// Rules returns the rules of a chain.
	Rules(Chain) ([]Rule, error)
	// Set returns a set or map of a table. Its elements are those of now.
	Set(table Chain, name string) (*Set, error)
}

// Chain identifies a chain, or with an empty name its table. Those that iptables-save prints
// have no family.
type Chain struct{ Family, Table, Name string }

// Base is a base chain.
type Base struct {
	Chain
	Hook     Hook
	Priority int
	NAT      bool // of type nat
	Drops    bool // by its policy
	// Later means that the table is younger than the one of this program.
	Later bool
}

// Hook is a hook of netfilter.
type Hook uint8

// The hooks, numbered as in include/uapi/linux/netfilter.h.
const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

// String returns the name that nft uses.
func (h Hook) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[h]
}

// Rule is a rule of nftables, or one of iptables as iptables-save prints it after the name of
// its chain.
type Rule struct {
	Handle      uint64
	Comment     string
	Expressions []Expression

	Text  string
	words []string // of Text
}

// Set is a set or map.
type Set struct {
	// Intervals means that an element with End ends an interval which the one before it
	// began, as in sets of one field.
	Intervals bool
	// Fields are the lengths of the fields of a key, in bytes. They are empty if there is
	// one field.
	Fields   []int
	Elements []Element
}

// Element is an element of a Set.
type Element struct {
	Key []byte
	// KeyEnd is the end of an interval in a set of several fields, else nil.
	KeyEnd        []byte
	End, CatchAll bool
	// Conditional means that the element has an expression, such as a limit.
	Conditional bool
	Data        []byte
	Verdict     *Verdict
}

// Expression is one of the types below. Those of the kernel that are not among them are
// Opaque or Chance.
type Expression any

// PayloadLoad loads bytes of the packet.
type PayloadLoad struct {
	Base         uint8 // link, network or transport header, from 0
	Offset, Size int
	To           uint32
}

// PayloadStore alters bytes of the packet.
type PayloadStore struct{ Base uint8 }

// MetaLoad loads what the kernel knows of the packet.
type MetaLoad struct{ Key, To uint32 }

// MetaStore sets it.
type MetaStore struct{ Key, From uint32 }

// ConntrackLoad loads a property of the connection.
type ConntrackLoad struct {
	Key, To   uint32
	Direction uint8
}

// ConntrackStore sets it.
type ConntrackStore struct{ Key, From uint32 }

// Compare compares a register. Op is one of the kernel's nft_cmp_ops.
type Compare struct {
	Op   uint32
	From uint32
	Data []byte
}

// Range compares a register with the limits of an interval.
type Range struct {
	Not       bool
	From      uint32
	Low, High []byte
}

// Bitwise computes From & Mask ^ Flip.
type Bitwise struct {
	From, To   uint32
	Size       int
	Mask, Flip []byte
}

// ByteOrder reverses groups of bytes.
type ByteOrder struct {
	From, To     uint32
	Length, Size int
}

// Immediate loads constant data.
type Immediate struct {
	To   uint32
	Data []byte
}

// Verdict ends the rule.
type Verdict struct {
	Code  int32 // of the kernel: 0 drop, 1 accept, and nft_verdicts
	Chain string
}

// Codes of Verdict.
const (
	Drop     = 0
	Accept   = 1
	Continue = -1
	Break    = -2
	Jump     = -3
	Goto     = -4
	Return   = -5
)

// Lookup looks for a key in a set, or for its value in a map.
type Lookup struct {
	Set  string
	From uint32
	Not  bool
	// To is the register for the value of a map. 0 is the verdict. It counts if Map is set.
	To  uint32
	Map bool
}

// Fib asks the routing tables.
type Fib struct {
	To                 uint32
	Source, Interfaces bool // of what; else the destination
	Type               bool // asks for the type of the address, else for the interface
	Name, Present      bool // of the interface, or only whether there is one
}

// Translate replaces the destination or the source of the connection.
type Translate struct {
	Source     bool   // replaces the source
	Redirect   bool   // to the node itself
	Addr, Port uint32 // registers, 0 for none
}

// Reject refuses the packet.
type Reject struct{}

// NoTrack exempts the packet from connection tracking.
type NoTrack struct{}

// Passive decides nothing.
type Passive struct{}

// Chance matches some packets, and may load a register.
type Chance struct {
	Name string
	To   uint32 // 0 for none
}

// Opaque may do anything with the packet.
type Opaque struct{ Name string }

// Extension is a match or target of iptables.
type Extension struct {
	Target   bool
	Name     string
	Revision uint32
	Info     []byte
}

// Names of properties that are often not known, as nft writes them.
var (
	metaNames = map[uint32]string{
		0: "length", 2: "priority", metaMark: "mark", metaIn: "iif", metaOut: "oif", metaInName: "iifname", metaOutName: "oifname",
		8: "iiftype", 9: "oiftype", 10: "skuid", 11: "skgid", 13: "rtclassid", 17: "ibrname", 18: "obrname", 20: "cpu",
		21: "iifgroup", 22: "oifgroup", 23: "cgroup", 24: "random", 26: "iifkind", 27: "oifkind",
	}
	ctNames = map[uint32]string{
		ctStatus: "status", ctMarkKey: "mark", 4: "secmark", 5: "expiration", 6: "helper", ctSource: "saddr", ctSourceIP: "saddr", ctSourceIP6: "saddr",
		ctDest: "daddr", ctDestIP: "daddr", ctDestIP6: "daddr", 11: "proto-src", 13: "label", 14: "packets", 15: "bytes", 16: "avgpkt", 17: "zone",
	}
)

func nameOf(prefix string, names map[uint32]string, key uint32) string {
	if name := names[key]; name != "" {
		return prefix + " " + name
	}
	return prefix + " key " + strconv.Itoa(int(key))
}

// payloadName names a part of a header.
func payloadName(x PayloadLoad) string {
	switch {
	case x.Base == transportBase && x.Offset == 0 && x.Size == 2:
		return "the port of the client"
	case x.Base == transportBase:
		return "the transport header"
	case x.Base == networkBase:
		return "the network header"
	}
	return "bytes of the packet"
}

// Legacy is a table of iptables-legacy.
type Legacy struct {
	Family service.Family
	Name   string
	// Tables are what iptables-legacy-save prints of it, nil if it cannot be read.
	Tables *Saved
}

// legacyBases are the built-in chains of iptables-legacy (kernel: the table's file in
// net/ipv4/netfilter).
var legacyBases = map[string][]Base{
	"raw":    {{Hook: Prerouting, Priority: -300}, {Hook: Output, Priority: -300}},
	"mangle": {{Hook: Prerouting, Priority: -150}, {Hook: Input, Priority: -150}, {Hook: Forward, Priority: -150}, {Hook: Output, Priority: -150}, {Hook: Postrouting, Priority: -150}},
	"nat": {
		{Hook: Prerouting, Priority: dstNATPosition, NAT: true}, {Hook: Output, Priority: dstNATPosition, NAT: true},
		{Hook: Input, Priority: srcNATPosition, NAT: true}, {Hook: Postrouting, Priority: srcNATPosition, NAT: true},
	},
	"filter":   {{Hook: Input}, {Hook: Forward}, {Hook: Output}},
	"security": {{Hook: Input, Priority: 50}, {Hook: Forward, Priority: 50}, {Hook: Output, Priority: 50}},
}

func (l *Legacy) command() string {
	if l.Family == service.IPv6 {
		return "ip6tables-legacy-save -t " + l.Name
	}
	return "iptables-legacy-save -t " + l.Name
}

func (l *Legacy) stations(n Node) []*station {
	var all []*station
	for _, b := range legacyBases[l.Name] {
		b.Chain = Chain{Table: l.Name + " of iptables-legacy", Name: strings.ToUpper(b.Hook.String())}
		s := &station{Base: b, position: b.Priority, look: func(rule) string { return l.command() }}
		s.run = func(p *packet) (finding, error) { return l.run(n, b, p), nil }
		all = append(all, s)
	}
	return all
}

// run follows a packet through a built-in chain.
func (l *Legacy) run(n Node, b Base, p *packet) finding {
	if l.Tables == nil {
		return finding{verdict: explain.Passes, doubts: []doubt{{rule{chain: b.Chain}, explain.Drops, "its rules cannot be read without the command iptables-legacy-save"}}}
	}
	mark, known := p.mark.number()
	w := Walker{
		Tables: l.Tables, Node: Answers{Local: n.Local},
		Packet: Packet{
			Conn:    route.Conn{Protocol: p.protocol, From: p.from, To: p.to, Interface: p.in.Name},
			Dialled: p.dialled, Translated: p.translated, Untracked: p.untracked, Mark: mark, Vague: ^known,
		},
	}
	w.Node.AnyInterface = p.in.Unknown
	if p.out.Name != "" && !p.out.Unknown {
		w.Node.Leaves = func(netip.Addr) string { return p.out.Name }
	}
	at := Chain{Table: l.Name, Name: b.Name}
	r := w.Hook(at)
	p.mark = number(w.Packet.Mark, ^w.Packet.Vague)
	f := finding{verdict: cmp.Or(r.Does, explain.Passes), by: l.rule(b, r.By), empty: len(l.Tables.Rules(at)) == 0}
	if w.Packet.Untracked && !p.untracked {
		p.untracked, f.verdict = true, explain.Untracks
	}
	for _, s := range w.Doubtful {
		f.doubts = append(f.doubts, doubt{l.rule(b, s), explain.Drops, "a part of it that is not known here"})
	}
	if len(f.doubts) > 0 && (f.verdict == explain.Drops || f.verdict == explain.Refuses) {
		f.doubts = append(f.doubts, doubt{f.by, f.verdict, "unless a rule before accepts it"})
		f.verdict = explain.Passes
	}
	return f
}

func (l *Legacy) rule(b Base, s Step) rule {
	r := rule{chain: Chain{Table: b.Table, Name: s.Chain.Name}}
	if s.Rule != nil {
		r.text = s.Rule.Text
	}
	return r
}
