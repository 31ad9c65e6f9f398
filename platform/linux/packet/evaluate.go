// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	mathbits "math/bits"
	"net/netip"
	"slices"
	"strings"
)

// evaluator evaluates the rules of one chain for a packet.
type evaluator struct {
	*Packet
	tables Tables
	chain  Chain
	regs   registers
	effect effect
	vague  string // what was loaded last of which not all is known
	// chosen is a register that has one of choices, if there are any.
	chosen  uint32
	choices [][]byte
	// guess is the interface that was loaded last, if that may be another one.
	guess Link
	// sure means that the packet certainly comes to the rule.
	sure bool
}

func (v *visit) evaluate(r *Rule) (effect, error) {
	e := &evaluator{Packet: v.Packet, tables: v.Tables, chain: v.in, effect: effect{match: Yes}, sure: v.sure || v.own}
	for _, x := range r.Expressions {
		if err := e.expression(x); err != nil || e.effect.match == No {
			return e.effect, err
		}
		if len(e.effect.ends) > 0 {
			break
		}
	}
	return e.effect, nil
}

// Concerns reports whether a rule of iptables may match p or a later packet of its connection,
// judged by addresses, protocol and ports alone.
func Concerns(r *Rule, p Packet) bool {
	e := &evaluator{Packet: &p, effect: effect{match: Yes}}
	for _, x := range r.headers {
		if err := e.expression(x); err != nil || e.effect.match == No {
			return err != nil
		}
	}
	return true
}

func (e *evaluator) expression(x Expression) error {
	switch x := x.(type) {
	case PayloadLoad, MetaLoad, ConntrackLoad, Immediate, Bitwise, ByteOrder, Fib:
		e.load(x)
	case PayloadStore, MetaStore, ConntrackStore, NoTrack:
		e.change(x)
	case Compare:
		e.compare(x)
	case Range:
		e.narrow(x.matches(&e.regs), e.vague)
	case Lookup:
		return e.lookup(x)
	case Verdict:
		e.verdict(x)
	case Translate:
		e.translate(x)
	case Random:
		e.choose(x, "expression numgen")
	case Hash:
		if b := e.regs.load(x.From, x.Size); b.isKnown() {
			e.read(x.To, number(x.Of(b.value), ^uint32(0)), "expression jhash")
		} else {
			e.choose(Random{x.To, x.Below}, "expression jhash")
		}
	case Reject, Opaque:
		e.effect.ends = append(e.effect.ends, x)
	case Extension:
		for _, y := range x.expressions() {
			if err := e.expression(y); err != nil || e.effect.match == No {
				return err
			}
		}
	case State, AddrType, InSet, Recent, Bytecode, Chance:
		e.ask(x)
	}
	return nil
}

// ask evaluates conditions that are no expressions of nftables, or not known.
func (e *evaluator) ask(x Expression) {
	lists, _ := e.Node.(Lists)
	m, not, why, random := Maybe, false, "", false
	switch x := x.(type) {
	case State:
		m, not, why = matches(x.Mask&e.stateBits() != 0), x.Not, "match conntrack"
	case AddrType:
		m, not, why = e.addrType(x), x.Not, "match addrtype"
	case InSet:
		if not, why = x.Not, "match set"; lists != nil {
			m = lists.InSet(x.Name, x.Fields, *e.Packet)
		}
	case Recent:
		if not, why = x.Not, "match recent"; lists != nil && e.From.IsValid() {
			m = lists.Listed(x.List, x.Seconds, e.From)
		}
		random = true
	case Bytecode:
		if not, why = x.Not, "match bpf"; lists != nil {
			m = lists.Bytecode(x.Code, *e.Packet)
		}
	case Chance:
		why, random = x.Name, x.Random
		if x.To != 0 {
			e.regs.store(x.To, unknown(ifNameSize))
		}
	}
	if not {
		m = m.negated()
	}
	unknown := e.effect.unknown
	e.narrow(m, why)
	e.effect.unknown = unknown || m == Maybe && !random
}

// addrType compares the type of an address. For IPv6 each type that an address has by itself
// must hold, and one of those that it has by its route
// (https://github.com/torvalds/linux/blob/v6.12/net/netfilter/xt_addrtype.c, match_type6).
func (e *evaluator) addrType(x AddrType) Match {
	addr := e.To.Addr()
	if x.Source {
		addr = e.From
	}
	if !addr.IsValid() {
		return Maybe
	}
	types, mask := e.types(addr), x.Mask
	if addr.Is6() {
		const byRoute = 1<<Local | 1<<anycast | 1<<unreachable
		none := addr.IsUnspecified() && !e.anywhere
		switch {
		case mask&(1<<multicast) != 0 && !addr.IsMulticast(), mask&(1<<Unicast) != 0 && (addr.IsMulticast() || none), mask&(1<<unspecified) != 0 && !none:
			return No
		case mask&byRoute == 0:
			return Yes
		}
		if mask &= byRoute; mask&(1<<unreachable) != 0 {
			mask |= noRoute
		}
	}
	switch types & mask {
	case 0:
		return No
	case types:
		return Yes
	}
	return Maybe
}

// compare applies the answer of a comparison. An interface may be another one.
func (e *evaluator) compare(x Compare) {
	m, not := x.matches(&e.regs), x.Op == CmpNotEqual
	if e.guess.Guess && (m == Yes) == not && e.guess.mayBe(strings.TrimRight(string(x.Data), "\x00")) {
		m = Maybe
	}
	e.narrow(m, e.vague)
}

// narrow applies the answer of a condition.
func (e *evaluator) narrow(m Match, why string) {
	switch {
	case m == No:
		e.effect.match = No
	case m == Maybe:
		e.effect.doubt(why)
	}
}

func (e *evaluator) verdict(v Verdict) {
	switch v.Code {
	case Continue:
	case Break:
		e.effect.match = No
	default:
		e.effect.ends = append(e.effect.ends, v)
	}
}

// load evaluates expressions that write a register.
func (e *evaluator) load(x Expression) {
	switch x := x.(type) {
	case PayloadLoad:
		e.read(x.To, e.header(x.Base).part(x.Offset, x.Size), payloadName(x))
	case MetaLoad:
		e.read(x.To, e.meta(x.Key), nameOf("meta", metaNames, x.Key))
		switch {
		case x.Key == MetaInName && e.In.Guess:
			e.guess, e.vague = e.In, "meta iifname"
		case x.Key == MetaOutName && e.Out.Guess:
			e.guess, e.vague = e.Out, "meta oifname"
		}
	case ConntrackLoad:
		b, has := e.conntrack(x.Key, x.Direction)
		if !has {
			e.effect.match = No
			return
		}
		e.read(x.To, b, nameOf("ct", ctNames, x.Key))
	case Immediate:
		e.regs.store(x.To, certain(x.Data...))
	case Bitwise:
		e.regs.store(x.To, e.regs.load(x.From, x.Size).masked(x.Mask, x.Flip))
	case ByteOrder:
		e.regs.store(x.To, e.regs.load(x.From, x.Length).swapped(x.Size))
	case Fib:
		e.read(x.To, e.fib(x), "fib")
	}
}

// read stores what is known of a property of the packet.
func (e *evaluator) read(register uint32, b bits, name string) {
	e.regs.store(register, b)
	e.guess = Link{}
	if !b.isKnown() {
		e.vague = name
	}
}

// change evaluates expressions that change the packet. If it is not certain that the rule
// matches, both cases are possible from then on.
func (e *evaluator) change(x Expression) {
	certainly := e.sure && e.effect.match == Yes
	switch x := x.(type) {
	case PayloadStore:
		e.altered = true
	case MetaStore:
		if x.Key == MetaMark {
			e.mark = either(e.mark, e.regs.load(x.From, 4).kept(), certainly)
		}
	case ConntrackStore:
		// Without an entry it does nothing (kernel: net/netfilter/nft_ct.c, nft_ct_set_eval).
		if x.Key == ctMarkKey && e.Seen && !e.Untracked {
			e.ctMark = either(e.ctMark, e.regs.load(x.From, 4).kept(), certainly)
		}
	case NoTrack:
		e.Untracked = e.Untracked || !e.Seen && certainly
		e.effect.untracks = !e.Seen && !certainly
	}
}

// either returns the value after a change that certainly happens, or may happen.
func either(before, after bits, certainly bool) bits {
	if certainly {
		return after
	}
	r := unknown(len(before.value))
	for i := range r.value {
		r.known[i] = before.known[i] & after.known[i] &^ (before.value[i] ^ after.value[i])
		r.value[i] = before.value[i] & r.known[i]
	}
	return r
}

// lookup looks for a key in a set. If several elements may have it, all of them count.
func (e *evaluator) lookup(x Lookup) error {
	s, why := x.In, e.vague
	if s == nil {
		var err error
		if s, err = e.tables.Set(e.chain, x.Set); err != nil {
			return err
		}
		if why = "set or map " + x.Set; e.choices != nil {
			why = e.vague
		}
	}
	before := e.effect.unknown
	found, hits := e.find(s, x.From)
	if x.Not {
		found = found.negated()
	}
	e.narrow(found, why)
	e.effect.unknown = before || found == Maybe && e.choices == nil
	if !x.Map || found == No {
		return nil
	}
	if s.Get != nil && x.To != 0 {
		e.offer(x.To, hits)
		return nil
	}
	if x.To != 0 {
		b := unknown(ifNameSize)
		if len(hits) == 1 && found == Yes {
			b = certain(hits[0].Data...)
		}
		e.regs.store(x.To, b)
		return nil
	}
	for _, h := range hits {
		if h.Verdict != nil {
			e.verdict(*h.Verdict)
		}
	}
	return nil
}

// choose loads a random number.
func (e *evaluator) choose(x Random, name string) {
	e.chosen, e.choices = x.To, nil
	for n := range x.Below {
		e.choices = append(e.choices, number(n, ^uint32(0)).value)
	}
	e.read(x.To, unknown(4), name)
}

// offer loads the value of one of hits.
func (e *evaluator) offer(to uint32, hits []Element) {
	e.chosen, e.choices = to, nil
	for _, h := range hits {
		e.choices = append(e.choices, h.Data)
		e.regs.store(to, unknown(len(h.Data)))
	}
}

// each calls do with each of the choices in its register, or once.
func (e *evaluator) each(do func()) {
	for _, data := range e.choices {
		e.regs.store(e.chosen, certain(data...))
		do()
		e.regs.store(e.chosen, unknown(len(data)))
	}
	if len(e.choices) == 0 {
		do()
	}
}

// find looks for a key in the registers. All choices have to be there if it is to be certain.
func (e *evaluator) find(s *Set, from uint32) (found Match, hits []Element) {
	if s.Get == nil {
		return s.find(func(size int) bits { return e.regs.load(from, size) })
	}
	vague, missing := false, false
	e.each(func() {
		key := e.regs.load(from, s.KeySize)
		if !key.isKnown() {
			vague = true
			return
		}
		x, has := s.Get(slices.Clone(key.value))
		if missing = missing || !has; has {
			hits = append(hits, x)
		}
	})
	switch {
	case vague || missing && len(hits) > 0:
		return Maybe, hits
	case missing:
		return No, nil
	}
	return Yes, hits
}

// translate notes where a rule leads as far as registers tell.
func (e *evaluator) translate(x Translate) {
	e.each(func() {
		addr, port := e.regs.load(x.Addr, e.To.Addr().BitLen()/8), e.regs.load(x.Port, 2)
		if x.Source || x.Addr == 0 || !addr.isKnown() || x.Port != 0 && !port.isKnown() {
			return
		}
		a, _ := netip.AddrFromSlice(addr.value)
		n := binary.BigEndian.Uint16(port.value)
		if x.Port == 0 {
			n = e.To.Port()
		}
		x.Dest = netip.AddrPortFrom(a, n)
		x.Choices = append(x.Choices, x.Dest)
	})
	if len(x.Choices) > 1 {
		x.Dest = netip.AddrPort{}
	}
	e.effect.ends = append(e.effect.ends, x)
}

// find looks for a key. hits are the elements that have it, or may have it, as found says.
func (s *Set) find(key func(size int) bits) (found Match, hits []Element) {
	var all *Element
	for i := range s.Elements {
		e := &s.Elements[i]
		m := No
		switch {
		case e.CatchAll:
			all = e
			continue
		case s.Intervals:
			m = s.inInterval(i, key(len(e.Key)))
		case e.KeyEnd != nil:
			m = s.inRanges(e, key(len(e.Key)))
		default:
			m = key(len(e.Key)).equals(e.Key)
		}
		if m == Yes && e.Conditional {
			m = Maybe
		}
		switch m {
		case Yes:
			return Yes, []Element{*e}
		case Maybe:
			found, hits = Maybe, append(hits, *e)
		}
	}
	if all != nil {
		hits = append(hits, *all)
		if found == No {
			found = Yes
		}
	}
	return found, hits
}

// sort puts the elements of a set of intervals in order.
func (s *Set) sort() {
	slices.SortFunc(s.Elements, func(a, b Element) int { return bytes.Compare(a.Key, b.Key) })
}

// inInterval reports whether key is in the interval from element i to the next one.
func (s *Set) inInterval(i int, key bits) Match {
	e := s.Elements[i]
	if e.End {
		return No
	}
	m := atLeast(key, e.Key)
	for _, next := range s.Elements[i+1:] {
		if bytes.Equal(next.Key, e.Key) {
			continue
		}
		return min(m, atLeast(key, next.Key).negated())
	}
	return m
}

// inRanges reports whether each field of key is between those of the element.
func (s *Set) inRanges(e *Element, key bits) Match {
	m, from := Yes, 0
	fields := s.Fields
	if len(fields) == 0 {
		fields = []int{len(e.Key)}
	}
	for _, size := range fields {
		padded := (size + 3) &^ 3
		to := min(from+size, len(e.Key), len(e.KeyEnd))
		if from >= to {
			break
		}
		m = min(m, between(key.part(from, to-from), e.Key[from:to], e.KeyEnd[from:to]))
		from += padded
	}
	return m
}

// atLeast compares numbers in network byte order.
func atLeast(b bits, limit []byte) Match {
	switch {
	case bytes.Compare(b.least(), limit) >= 0:
		return Yes
	case bytes.Compare(b.most(), limit) < 0:
		return No
	}
	return Maybe
}

func between(b bits, low, high []byte) Match {
	return min(atLeast(b, low), moreThan(b, high).negated())
}

func moreThan(b bits, limit []byte) Match {
	switch {
	case bytes.Compare(b.least(), limit) > 0:
		return Yes
	case bytes.Compare(b.most(), limit) <= 0:
		return No
	}
	return Maybe
}

// Operations of Compare (kernel: nf_tables.h, nft_cmp_ops).
const (
	CmpEqual = iota
	CmpNotEqual
	cmpLess
	cmpAtMost
	cmpMore
	cmpAtLeast
)

func (c Compare) matches(r *registers) Match {
	b := r.load(c.From, len(c.Data))
	switch c.Op {
	case CmpEqual:
		return b.equals(c.Data)
	case CmpNotEqual:
		return b.equals(c.Data).negated()
	case cmpLess:
		return atLeast(b, c.Data).negated()
	case cmpAtMost:
		return moreThan(b, c.Data).negated()
	case cmpMore:
		return moreThan(b, c.Data)
	case cmpAtLeast:
		return atLeast(b, c.Data)
	}
	return Maybe
}

func (ra Range) matches(r *registers) Match {
	m := between(r.load(ra.From, len(ra.Low)), ra.Low, ra.High)
	if ra.Not {
		return m.negated()
	}
	return m
}

// effect is what a rule does with a packet.
type effect struct {
	match Match
	// ends are what may end the rule: a Verdict, Translate, Reject or Opaque. There are
	// several if a map has several values for what is known.
	ends []any
	why  []string // what of the rule cannot be told
	// untracks means that the rule may exempt the packet from connection tracking.
	untracks bool
	// unknown means that it may match, and that this does not depend on chance alone.
	unknown bool
}

func (e *effect) doubt(why string) {
	e.unknown = true
	e.match = min(e.match, Maybe)
	if !slices.Contains(e.why, why) {
		e.why = append(e.why, why)
	}
}

// reason says what of the rule cannot be told.
func (e *effect) reason() string { return strings.Join(e.why, ", ") }

// Bits of the states of xt_conntrack.h.
const xtDNAT, xtUntracked = 1 << 7, 1 << 8

// stateBits returns the states of the connection as xt_conntrack.h numbers them.
func (p *Packet) stateBits() uint32 {
	switch {
	case p.Untracked:
		return xtUntracked
	case p.Translated:
		return stateNew | xtDNAT
	}
	return p.state()
}

// byChance reports whether a rule that may match does so at random only.
func (e *effect) byChance() bool { return e.match == Maybe && !e.unknown }

// dest returns where the rule translates to, if it says so.
func (e *effect) dest() netip.AddrPort {
	for _, x := range e.ends {
		if t, ok := x.(Translate); ok {
			return t.Dest
		}
	}
	return netip.AddrPort{}
}

// Of returns the hash of data, scaled as by reciprocal_scale (kernel: nft_hash.c, nft_jhash_eval).
func (h Hash) Of(data []byte) uint32 {
	return uint32(uint64(jhash(data, h.Seed)) * uint64(h.Below) >> 32)
}

// jhash is lookup3 by Bob Jenkins, who placed it in the public domain
// (https://burtleburtle.net/bob/c/lookup3.c), with the start of the kernel (include/linux/jhash.h).
func jhash(k []byte, seed uint32) uint32 {
	a := 0xdeadbeef + uint32(len(k)) + seed
	b, c := a, a
	for ; len(k) > 12; k = k[12:] {
		a += binary.NativeEndian.Uint32(k)
		b += binary.NativeEndian.Uint32(k[4:])
		c += binary.NativeEndian.Uint32(k[8:])
		for _, r := range [...]int{4, 6, 8, 16, 19, 4} {
			a, b, c = b, c+b, (a-c)^mathbits.RotateLeft32(c, r)
		}
	}
	if len(k) == 0 {
		return c
	}
	var last [12]byte
	copy(last[:], k)
	a += binary.LittleEndian.Uint32(last[:])
	b += binary.LittleEndian.Uint32(last[4:])
	c += binary.LittleEndian.Uint32(last[8:])
	for _, r := range [...]int{14, 11, 25, 16, 4, 14, 24} {
		a, b, c = b, (c^b)-mathbits.RotateLeft32(b, r), a
	}
	return b
}
