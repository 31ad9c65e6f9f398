// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"fmt"
	"strconv"
)

// verdict is what a base chain does with the packet.
type verdict uint8

const (
	passes verdict = iota
	drops
	rejects
	translates // replaces the destination
	masquerades
	unmarks  // it clears the mark for masquerading
	untracks // it exempts the packet from connection tracking
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
	does verdict
	why  string
}

// finding is what a base chain does with a packet.
type finding struct {
	verdict verdict
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
	w.end(drops, rule{chain: b.Chain}, !f.mayEnd)
	return nil
}

// end records that a rule drops or rejects the packet, if it comes there.
func (w *walker) end(v verdict, r rule, sure bool) {
	if sure {
		w.verdict, w.by = v, r
		return
	}
	w.doubt(v, r, w.escapes)
}

func (w *walker) doubt(v verdict, r rule, why string) {
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
			w.verdict, w.by = untracks, at
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
		return v.drop(rejects, e, at), nil
	case Translate:
		return v.translate(x, e, at), nil
	case Opaque:
		v.walker.doubt(drops, at, x.Name)
		return e.match == yes && v.finish(false), nil
	case Verdict:
		switch x.Code {
		case Drop:
			return v.drop(drops, e, at), nil
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

func (v *visit) drop(how verdict, e *effect, at rule) bool {
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
	what := translates
	if x.Source {
		what = masquerades
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
