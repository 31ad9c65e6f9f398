// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"kubeproxy/common/explain"
)

// Place identifies a rule, the policy of a base chain, or a chain as a whole.
type Place struct {
	Chain   Chain
	Text    string // of a rule of iptables
	handle  uint64 // of one of nftables
	comment string
	whole   bool
}

// Doubt is a rule that may end the packet.
type Doubt struct {
	Place
	Does explain.Deed
	Why  string
}

// Step is a chain that the packet entered, or a rule that matched it.
type Step struct {
	Chain Chain
	Rule  *Rule // nil for entering the chain
	// To is the new destination, if the rule translates it.
	To netip.AddrPort
}

// Finding is what a base chain does with a packet.
type Finding struct {
	Does explain.Deed
	By   Place
	// To is where By translates to, if it says so. Targets has what other rules may choose, too.
	To      netip.AddrPort
	Targets []netip.AddrPort
	// Accepted is the rule that lets the packet pass, so that later ones do not see it.
	Accepted Place
	Doubts   []Doubt
	// Steps are what the packet has met.
	Steps []Step
	// Alone means that no policy and no rule of others mattered, but those that lead to our chains.
	Alone bool
	empty bool // it has no rules
}

// Walk follows a packet through the rules of one base chain. It may change the packet.
type Walk struct {
	Tables Tables
	Packet *Packet
	// Owns, if set, reports whether a chain is the mode's. Rules there that match at random are
	// followed, those that may match for another reason count as not matching, and verdicts
	// count even if a rule of others may have ended the packet before.
	Owns func(Chain) bool
	Finding
	depth   int
	escapes string // why the packet may have left the base chain before
}

// flow is what happens to a packet in a chain.
type flow struct {
	ended   bool // it does not come back
	dropped bool // and it is not accepted
	mayEnd  bool // it may have been accepted
}

// Run runs a base chain. A missing one lets the packet pass.
func (w *Walk) Run(b Base) (Finding, error) {
	w.Finding = Finding{Does: explain.Passes, Alone: true}
	if w.escapes = w.Packet.unsure; b.NAT {
		w.escapes = cmp.Or(w.escapes, w.Packet.unsureNAT)
	}
	sure := w.escapes == ""
	f, err := w.chain(b.Chain, sure)
	if rules, listErr := w.Tables.Rules(b.Chain); listErr == nil {
		w.empty = len(rules) == 0
	}
	if err == nil && !f.ended && b.Drops {
		w.Alone = false
		w.end(explain.Drops, Place{Chain: b.Chain}, sure && !f.mayEnd)
	}
	if w.Packet.unsureNAT != "" {
		w.Packet.From = netip.Addr{}
	}
	return w.Finding, err
}

// end records that a rule drops or rejects the packet, if it comes there.
func (w *Walk) end(v explain.Deed, at Place, sure bool) {
	if sure || w.owns(at.Chain) {
		w.Does, w.By = v, at
		return
	}
	w.doubt(v, at, w.escapes)
}

func (w *Walk) owns(c Chain) bool { return w.Owns != nil && w.Owns(c) }

// doubt records what a rule of others may do.
func (w *Walk) doubt(v explain.Deed, at Place, why string) {
	if w.owns(at.Chain) || slices.ContainsFunc(w.Doubts, func(d Doubt) bool { return d.Place == at }) {
		return
	}
	w.Doubts = append(w.Doubts, Doubt{at, v, why})
}

// deepest bounds how many chains lead to each other. The kernel bounds it lower (kernel:
// include/net/netfilter/nf_tables.h, NFT_JUMP_STACK_SIZE), and refuses loops.
const deepest = 64

// visit is a packet in a chain.
type visit struct {
	*Walk
	flow
	in  Chain
	own bool // the chain is the mode's
	// sure means that the packet certainly comes to the next rule, unless it was dropped.
	sure bool
	// mayReturn means that it may have gone back to the chain that led here.
	mayReturn bool
}

func (w *Walk) chain(c Chain, sure bool) (flow, error) {
	if w.depth == deepest {
		return flow{}, nil
	}
	w.depth++
	defer func() { w.depth-- }()
	rules, err := w.Tables.Rules(c)
	if err != nil {
		return flow{}, err
	}
	w.Steps = append(w.Steps, Step{Chain: c})
	v := &visit{Walk: w, in: c, own: w.owns(c), sure: sure}
	for i := range rules {
		r, tracked := &rules[i], !w.Packet.Untracked
		at := Place{Chain: c, Text: r.Text, handle: r.Handle, comment: r.Comment}
		e, err := v.evaluate(r)
		if err != nil {
			return flow{}, err
		}
		if tracked && w.Packet.Untracked {
			w.Does, w.By = explain.Untracks, at
		}
		if e.untracks {
			v.mayDivert(explain.Untracks, &e, at)
		}
		if e.match == Yes || v.own && e.byChance() {
			w.Steps = append(w.Steps, Step{c, r, e.dest()})
		}
		if e.match == No {
			continue
		}
		w.Alone = w.Alone && (v.own || v.leadsToOwn(&e))
		for _, x := range e.ends {
			over, err := v.apply(x, &e, at)
			if err != nil || over {
				return v.flow, err
			}
		}
	}
	return v.flow, nil
}

// leadsToOwn reports whether a rule that matches leads to a chain of the mode.
func (v *visit) leadsToOwn(e *effect) bool {
	if len(e.ends) != 1 || e.match != Yes {
		return false
	}
	x, is := e.ends[0].(Verdict)
	return is && x.Code == Jump && v.owns(Chain{v.in.Family, v.in.Table, x.Chain})
}

// apply applies what ends a rule. It reports whether the chain is over.
func (v *visit) apply(x any, e *effect, at Place) (over bool, err error) {
	switch x := x.(type) {
	case Reject:
		return v.drop(explain.Refuses, e, at), nil
	case Translate:
		return v.translate(x, e, at), nil
	case Opaque:
		v.doubt(explain.Drops, at, x.Name)
		if e.match == Yes {
			return v.finish(false), nil
		}
		v.escape(e, "unless "+at.String()+" takes it before: ")
		return false, nil
	case Verdict:
		switch x.Code {
		case Drop:
			return v.drop(explain.Drops, e, at), nil
		case Jump, Goto:
			return v.enter(x, e, at)
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

func (v *visit) drop(how explain.Deed, e *effect, at Place) bool {
	if e.match == Maybe {
		v.doubt(how, at, e.reason())
		return false
	}
	v.end(how, at, v.sure)
	return v.finish(true)
}

func (v *visit) accept(e *effect, at Place) bool {
	if e.match == Yes {
		v.Accepted = at
		return v.finish(false)
	}
	v.escape(e, "unless "+at.String()+" accepts it before: ")
	return false
}

// escape records that the packet may have been accepted.
func (v *visit) escape(e *effect, why string) {
	if !v.own {
		v.sure, v.mayEnd, v.escapes = false, true, why+e.reason()
	}
}

func (v *visit) leave(e *effect) bool {
	switch {
	case e.match == Yes:
		return true
	case !v.own:
		v.sure, v.mayReturn, v.escapes = false, true, "a rule before may not lead there: "+e.reason()
	}
	return false
}

// enter follows a jump or goto.
func (v *visit) enter(x Verdict, e *effect, at Place) (over bool, err error) {
	to := Chain{v.in.Family, v.in.Table, x.Chain}
	if e.match == Maybe {
		return false, v.mayEnter(x, to, e, at)
	}
	f, err := v.chain(to, v.sure)
	if f.ended {
		return v.finish(f.dropped), err
	}
	if f.mayEnd {
		v.sure, v.mayEnd = false, true
	}
	return x.Code == Goto, err
}

// mayEnter follows a jump or goto of a rule that may match.
func (v *visit) mayEnter(x Verdict, to Chain, e *effect, at Place) error {
	switch {
	case v.own && e.byChance():
		_, err := v.chain(to, v.sure)
		return err
	case v.own:
		return nil
	case v.owns(to):
		v.mayDivert(explain.Translates, e, at)
		return nil
	}
	escapes := v.escapes
	v.escapes = "if a rule before leads there: " + e.reason()
	f, err := v.chain(to, false)
	v.escapes = escapes
	if f.mayEnd || f.ended && !f.dropped {
		v.escape(e, "unless chain "+x.Chain+" accepts it before: ")
	}
	if x.Code == Goto {
		v.sure, v.mayReturn = false, true
	}
	return err
}

// translate applies the replacement of an address. The first one of a connection counts.
func (v *visit) translate(x Translate, e *effect, at Place) bool {
	what := explain.Translates
	if x.Source {
		what = explain.Masquerades
	}
	if x.Dest.IsValid() && x.Dest.Port() == 0 {
		x.Dest = netip.AddrPortFrom(x.Dest.Addr(), v.Packet.To.Port())
	}
	sure := e.match == Yes && (v.sure || v.own)
	for _, to := range append(x.Choices, x.Dest) {
		if (sure || v.own && e.byChance()) && to.IsValid() && !slices.Contains(v.Targets, to) {
			v.Targets = append(v.Targets, to)
		}
	}
	if !sure {
		v.mayDivert(what, e, at)
		return v.accept(e, at)
	}
	v.Does, v.By, v.To = what, at, x.Dest
	return v.finish(false)
}

// mayDivert records that a rule of others may translate the packet, or exempt it from connection
// tracking. Then what follows is for one that goes another way, or may.
func (v *visit) mayDivert(does explain.Deed, e *effect, at Place) {
	if v.own {
		return
	}
	why := cmp.Or(e.reason(), v.escapes)
	v.doubt(does, at, why)
	if does == explain.Masquerades {
		v.Packet.unsureNAT = cmp.Or(v.Packet.unsureNAT, unless(at, why))
		return
	}
	v.Packet.Divert(at, why)
}

func unless(at Place, why string) string {
	return "unless " + at.String() + " concerns it before: " + why
}

// Divert says that a rule may send the packet another way, so that what follows is in doubt.
func (p *Packet) Divert(by Place, why string) { p.unsure = cmp.Or(p.unsure, unless(by, why)) }

// String names the rule as a user can find it.
func (p Place) String() string {
	where := p.Chain.describe()
	switch {
	case p.whole:
		return where
	case p.Text != "":
		return "rule " + strconv.Quote(p.Text) + " of " + where
	case p.handle == 0:
		return "the policy of " + where
	case p.comment != "":
		return fmt.Sprintf("rule %q (handle %d) of %s", p.comment, p.handle, where)
	}
	return fmt.Sprintf("the rule with handle %d of %s", p.handle, where)
}

func (c Chain) tableName() string {
	switch c.Family {
	case "":
		return c.Table
	case legacyFamily:
		return c.Table + " of " + legacyFamily
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

// Chain identifies a chain, or without Name its table. Those of iptables-save have no family.
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

// Rule is a rule of nftables, or of iptables as iptables-save prints it after its chain.
type Rule struct {
	Handle      uint64
	Comment     string
	Expressions []Expression

	Text    string
	words   []string     // of Text
	headers []Expression // see Concerns
}

// Set is a set or map.
type Set struct {
	// Get, if set, looks for an element by its key of KeySize bytes, in place of Elements.
	Get     func(key []byte) (Element, bool)
	KeySize int
	// Intervals means that an element with End ends the interval of the one before it.
	Intervals bool
	// Fields are the lengths of a key's fields in bytes, empty for one field.
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

// Expression is one of the types below. Others of the kernel are Opaque or Chance.
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
	In   *Set // of rules of iptables, in place of the name
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
	// Dest is the new destination, if the rule names it, and Choices those of which a random
	// number chooses one. Port 0 is that of the packet.
	Dest    netip.AddrPort
	Choices []netip.AddrPort
}

// Reject refuses the packet, with a reset of TCP or else by ICMP.
type Reject struct{ TCP bool }

// NoTrack exempts the packet from connection tracking.
type NoTrack struct{}

// Passive decides nothing.
type Passive struct{}

// Chance matches some packets, and may load a register.
type Chance struct {
	Name   string
	To     uint32 // 0 for none
	Random bool   // by a random number
}

// Random loads a random number below Below. A Set with Get is asked for all that it may be.
type Random struct{ To, Below uint32 }

// Hash loads the hash of Size bytes, below Below, as jhash of nftables; of unknown bytes as Random.
type Hash struct {
	From, To    uint32
	Size        int
	Below, Seed uint32
}

// State compares the state of the connection with a mask (see stateNames).
type State struct {
	Mask uint32
	Not  bool
}

// AddrType compares the type of an address with a mask (see addrTypes).
type AddrType struct {
	Source bool
	Mask   uint16
	Not    bool
}

// InSet asks an ipset, Recent a list of clients, and Bytecode a program, see Lists.
type (
	InSet struct {
		Name, Fields string
		Not          bool
	}
	Recent struct {
		List, Seconds string
		Not           bool
	}
	Bytecode struct {
		Code string
		Not  bool
	}
)

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
		0: "length", 2: "priority", MetaMark: "mark", metaIn: "iif", metaOut: "oif", MetaInName: "iifname", MetaOutName: "oifname",
		8: "iiftype", 9: "oiftype", 10: "skuid", 11: "skgid", 13: "rtclassid", 17: "ibrname", 18: "obrname", 20: "cpu",
		21: "iifgroup", 22: "oifgroup", 23: "cgroup", 24: "random", 26: "iifkind", 27: "oifkind",
	}
	ctNames = map[uint32]string{
		CtStatus: "status", ctMarkKey: "mark", 4: "secmark", 5: "expiration", 6: "helper", ctSource: "saddr", CtSourceIP: "saddr", CtSourceIP6: "saddr",
		ctDest: "daddr", CtDestIP: "daddr", CtDestIP6: "daddr", CtSourcePort: "proto-src", 13: "label", 14: "packets", 15: "bytes", 16: "avgpkt", 17: "zone",
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
	case x.Base == TransportBase && x.Offset == 0 && x.Size == 2:
		return "the port of the client"
	case x.Base == TransportBase:
		return "the transport header"
	case x.Base == NetworkBase:
		return "the network header"
	}
	return "bytes of the packet"
}
