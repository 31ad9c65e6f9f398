// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

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
