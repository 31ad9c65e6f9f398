// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/service"
)

// evaluator evaluates the rules of one chain for a packet.
type evaluator struct {
	*packet
	tables Tables
	chain  Chain
	regs   registers
	effect effect
	vague  string // what was loaded last of which not all is known
	// sure means that the packet certainly comes to the rule.
	sure bool
}

// evaluate returns what a rule does.
func (w *walker) evaluate(r *Rule, c Chain, sure bool) (effect, error) {
	e := &evaluator{packet: w.packet, tables: w.tables, chain: c, regs: newRegisters(), effect: effect{match: yes}, sure: sure}
	for _, x := range r.Expressions {
		if err := e.expression(x); err != nil || e.effect.match == no {
			return e.effect, err
		}
		if len(e.effect.ends) > 0 {
			break
		}
	}
	return e.effect, nil
}

// expression evaluates one expression.
func (e *evaluator) expression(x Expression) error {
	switch x := x.(type) {
	case PayloadLoad, MetaLoad, ConntrackLoad, Immediate, Bitwise, ByteOrder, Fib:
		e.load(x)
	case PayloadStore, MetaStore, ConntrackStore, NoTrack:
		e.change(x)
	case Compare:
		e.narrow(x.matches(e.regs), e.vague)
	case Range:
		e.narrow(x.matches(e.regs), e.vague)
	case Lookup:
		return e.lookup(x)
	case Verdict:
		e.verdict(x)
	case Translate, Reject, Opaque:
		e.effect.ends = append(e.effect.ends, x)
	case Extension:
		e.extension(x)
	case Chance:
		e.effect.doubt("expression " + x.Name)
		if x.To != 0 {
			e.regs.store(x.To, unknown(ifNameSize))
		}
	}
	return nil
}

// narrow applies the answer of a condition.
func (e *evaluator) narrow(m match, why string) {
	switch {
	case m == no:
		e.effect.match = no
	case m == maybe:
		e.effect.doubt(why)
	}
}

func (e *evaluator) verdict(v Verdict) {
	switch v.Code {
	case Continue:
	case Break:
		e.effect.match = no
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
	case ConntrackLoad:
		b, has := e.conntrack(x.Key, x.Direction)
		if !has {
			e.effect.match = no
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
	if !b.isKnown() {
		e.vague = name
	}
}

// change evaluates expressions that change the packet. If it is not certain that the rule
// matches, both cases are possible from then on.
func (e *evaluator) change(x Expression) {
	certainly := e.sure && e.effect.match == yes
	switch x := x.(type) {
	case PayloadStore:
		e.altered = true
	case MetaStore:
		if x.Key == metaMark {
			e.mark = either(e.mark, e.regs.load(x.From, 4), certainly)
		}
	case ConntrackStore:
		if x.Key == ctMarkKey {
			e.ctMark = either(e.ctMark, e.regs.load(x.From, 4), certainly)
		}
	case NoTrack:
		if !e.seen && certainly {
			e.untracked = true
		}
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

// lookup looks for a key in a set. If it is not certain which element has it, all of them
// count.
func (e *evaluator) lookup(x Lookup) error {
	s, err := e.tables.Set(e.chain, x.Set)
	if err != nil {
		return err
	}
	found, hits := s.find(func(size int) bits { return e.regs.load(x.From, size) })
	if x.Not {
		found = found.negated()
	}
	e.narrow(found, "set or map "+x.Set)
	if !x.Map || found == no {
		return nil
	}
	if x.To != 0 {
		b := unknown(ifNameSize)
		if len(hits) == 1 && found == yes {
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

// find looks for a key. found says whether an element has it. hits are the elements that
// have it, or may have it.
func (s *Set) find(key func(size int) bits) (found match, hits []Element) {
	var all *Element
	for i := range s.Elements {
		e := &s.Elements[i]
		m := no
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
		if m == yes && e.Conditional {
			m = maybe
		}
		switch m {
		case yes:
			return yes, []Element{*e}
		case maybe:
			found, hits = maybe, append(hits, *e)
		}
	}
	if all != nil {
		hits = append(hits, *all)
		if found == no {
			found = yes
		}
	}
	return found, hits
}

// sort puts the elements of a set of intervals in order.
func (s *Set) sort() {
	slices.SortFunc(s.Elements, func(a, b Element) int { return bytes.Compare(a.Key, b.Key) })
}

// inInterval reports whether key is in the interval that element i begins. The next element
// ends it.
func (s *Set) inInterval(i int, key bits) match {
	e := s.Elements[i]
	if e.End {
		return no
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
func (s *Set) inRanges(e *Element, key bits) match {
	m, from := yes, 0
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
func atLeast(b bits, limit []byte) match {
	switch {
	case bytes.Compare(b.least(), limit) >= 0:
		return yes
	case bytes.Compare(b.most(), limit) < 0:
		return no
	}
	return maybe
}

func between(b bits, low, high []byte) match {
	return min(atLeast(b, low), moreThan(b, high).negated())
}

func moreThan(b bits, limit []byte) match {
	switch {
	case bytes.Compare(b.least(), limit) > 0:
		return yes
	case bytes.Compare(b.most(), limit) <= 0:
		return no
	}
	return maybe
}

// Operations of Compare (kernel: nf_tables.h, nft_cmp_ops).
const (
	cmpEqual = iota
	cmpNotEqual
	cmpLess
	cmpAtMost
	cmpMore
	cmpAtLeast
)

func (c Compare) matches(r registers) match {
	b := r.load(c.From, len(c.Data))
	switch c.Op {
	case cmpEqual:
		return b.equals(c.Data)
	case cmpNotEqual:
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
	return maybe
}

func (ra Range) matches(r registers) match {
	m := between(r.load(ra.From, len(ra.Low)), ra.Low, ra.High)
	if ra.Not {
		return m.negated()
	}
	return m
}

// effect is what a rule does with a packet.
type effect struct {
	match match
	// ends are what may end the rule: a Verdict, Translate, Reject or Opaque. There are
	// several if a map has several values for what is known.
	ends []any
	why  []string // what of the rule cannot be told
}

func (e *effect) doubt(why string) {
	e.match = min(e.match, maybe)
	if !slices.Contains(e.why, why) {
		e.why = append(e.why, why)
	}
}

// reason says what of the rule cannot be told.
func (e *effect) reason() string { return strings.Join(e.why, ", ") }

// extension evaluates a match or target of iptables. The kernel stores its settings as a
// struct of C in the byte order of the machine.
func (e *evaluator) extension(x Extension) {
	if x.Target {
		e.target(x)
		return
	}
	m := maybe
	switch x.Name + " " + strconv.Itoa(int(x.Revision)) {
	case "comment 0":
		m = yes
	case "tcp 0":
		m = e.ports(service.TCP, x.Info)
	case "udp 0":
		m = e.ports(service.UDP, x.Info)
	case "multiport 1":
		m = e.multiport(x.Info)
	case "mark 1":
		m = e.marked(x.Info)
	case "addrtype 1":
		m = e.addrType(x.Info)
	case "conntrack 1", "conntrack 2", "conntrack 3", "state 0":
		m = e.connection(x)
	}
	e.narrow(m, "match "+x.Name)
}

// target applies a target of iptables. Its verdicts are those of nftables.
func (e *evaluator) target(x Extension) {
	certainly := e.sure && e.effect.match == yes
	switch {
	case x.Name == "MARK" && x.Revision == 2 && len(x.Info) >= 8: // struct xt_mark_tginfo2
		value, mask := x.Info[:4], x.Info[4:8]
		keep := make([]byte, 4)
		for i := range keep {
			keep[i] = ^mask[i]
		}
		e.mark = either(e.mark, e.mark.masked(keep, value), certainly)
	case x.Name == "CT" && len(x.Info) >= 2 && binary.NativeEndian.Uint16(x.Info)&1 != 0: // XT_CT_NOTRACK
		e.change(NoTrack{})
	case isPassive(x.Name):
	case x.Name == "REJECT" || x.Name == "TARPIT":
		e.effect.ends = append(e.effect.ends, Reject{})
	case x.Name == "DNAT":
		e.effect.ends = append(e.effect.ends, Translate{})
	case x.Name == "REDIRECT":
		e.effect.ends = append(e.effect.ends, Translate{Redirect: true})
	case x.Name == "SNAT" || x.Name == "MASQUERADE":
		e.effect.ends = append(e.effect.ends, Translate{Source: true})
	default:
		e.effect.ends = append(e.effect.ends, Opaque{"target " + x.Name})
	}
}

// ports evaluates the matches tcp and udp (kernel: include/uapi/linux/netfilter/xt_tcpudp.h).
func (e *evaluator) ports(p service.Protocol, info []byte) match {
	const notSource, notDest, notFlags = 1, 2, 4
	if e.protocol != p {
		return no
	}
	size, not := 9, at(info, 8)
	if p == service.TCP {
		size, not = 12, at(info, 11)
	}
	if len(info) < size {
		return maybe
	}
	u := func(i int) uint16 { return binary.NativeEndian.Uint16(info[i:]) }
	m := yes
	if u(0) != 0 || u(2) != 0xffff {
		m = maybe // the port of the client is not known
	}
	dest := matches(u(4) <= e.to.Port() && e.to.Port() <= u(6))
	if not&notDest != 0 {
		dest = dest.negated()
	}
	m = min(m, dest)
	if p != service.TCP {
		return m
	}
	flags := e.transport().part(13, 1).masked(info[9:10], nil).equals(info[10:11])
	if not&notFlags != 0 {
		flags = flags.negated()
	}
	if info[8] != 0 { // an option
		m = min(m, maybe)
	}
	_ = notSource // with the port of the client unknown, the answer is the same
	return min(m, flags)
}

// multiport evaluates struct xt_multiport_v1.
func (e *evaluator) multiport(info []byte) match {
	const flags, count, firstPort, firstRange, not, dest, size = 0, 1, 2, 32, 47, 1, 48
	if len(info) < size {
		return maybe
	}
	if info[flags] != dest {
		return maybe // the port of the client counts, too
	}
	m := no
	for i := 0; i < int(info[count]) && i < 15; i++ {
		port := func(i int) uint16 { return binary.NativeEndian.Uint16(info[firstPort+2*i:]) }
		low, high := port(i), port(i)
		if info[firstRange+i] != 0 && i+1 < 15 {
			i++
			high = port(i)
		}
		if low <= e.to.Port() && e.to.Port() <= high {
			m = yes
		}
	}
	if info[not] != 0 {
		return m.negated()
	}
	return m
}

// marked evaluates struct xt_mark_mtinfo1.
func (e *evaluator) marked(info []byte) match {
	if len(info) < 9 {
		return maybe
	}
	m := e.mark.masked(info[4:8], nil).equals(info[:4])
	if info[8] != 0 {
		return m.negated()
	}
	return m
}

// addrType evaluates struct xt_addrtype_info_v1. A mask has a bit for each type of an
// address, by the numbers of linux/rtnetlink.h.
func (e *evaluator) addrType(info []byte) match {
	const notSource, notDest, limited = 1, 2, 4 | 8
	if len(info) < 8 {
		return maybe
	}
	flags := binary.NativeEndian.Uint32(info[4:])
	m := yes
	for _, side := range []struct {
		mask uint16
		not  uint32
		addr netip.Addr
	}{{binary.NativeEndian.Uint16(info), notSource, e.from}, {binary.NativeEndian.Uint16(info[2:]), notDest, e.to.Addr()}} {
		if side.mask == 0 {
			continue
		}
		one := maybe
		if side.addr.IsValid() && flags&limited == 0 {
			one = matches(side.mask&(1<<e.typeOf(side.addr)) != 0)
		}
		if flags&side.not != 0 {
			one = one.negated()
		}
		m = min(m, one)
	}
	return m
}

func (p *packet) typeOf(a netip.Addr) uint8 {
	if p.node.Local(a) {
		return addrLocal
	}
	_, typ := p.node.Route(a)
	return typ
}

// connection evaluates the match state, and struct xt_conntrack_mtinfo3 and its forerunners
// as far as they ask for the state or the original direction.
func (e *evaluator) connection(x Extension) match {
	const byState, byDirection, byAlias = 1, 1 << 12, 1 << 13
	if x.Name == "state" && len(x.Info) >= 4 { // struct xt_state_info
		return matches(binary.NativeEndian.Uint32(x.Info)&e.stateBits() != 0)
	}
	const flagsAt, size = 146, 152
	if len(x.Info) < size {
		return maybe
	}
	flags, not := binary.NativeEndian.Uint16(x.Info[flagsAt:]), binary.NativeEndian.Uint16(x.Info[flagsAt+2:])
	mask := uint32(binary.NativeEndian.Uint16(x.Info[flagsAt+4:]))
	if x.Revision == 1 { // one byte for each mask
		mask &= 0xff
	}
	m := yes
	if flags&^(byState|byDirection|byAlias) != 0 {
		m = maybe
	}
	if flags&byDirection != 0 && not&byDirection != 0 { // the reply
		return no
	}
	if flags&byState != 0 {
		s := matches(mask&e.stateBits() != 0)
		if not&byState != 0 {
			s = s.negated()
		}
		m = min(m, s)
	}
	return m
}

// stateBits returns the states of the connection as xt_conntrack.h numbers them.
func (p *packet) stateBits() uint32 {
	const dnat, untracked = 1 << 7, 1 << 8
	switch {
	case p.untracked:
		return untracked
	case p.translated:
		return stateNew | dnat
	}
	return p.state()
}
