// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"net/netip"
	"slices"
)

// Verdict is what a built-in chain does with a packet.
type Verdict uint8

// The verdicts.
const (
	Continue     Verdict = iota // the packet goes on, as after ACCEPT of the next table
	Accepted                    // by a rule or policy of the table: later rules of the chain do not see it
	Dropped                     // without an answer
	Rejected                    // with an answer
	Translated                  // to one of the targets
	Masqueraded                 // the source is going to be replaced
	Untranslated                // it goes to a place that the package does not know
)

// Step is a chain that the packet entered, or a rule that matched it.
type Step struct {
	Chain Chain
	Rule  *Rule // nil for entering the chain
	Match Match // of the rule
	// To is the new destination, if the rule translates it.
	To netip.AddrPort
}

// Result is what a built-in chain does.
type Result struct {
	Verdict Verdict
	// By is the step that decided. Its Rule is nil if that was the policy of the chain.
	By Step
	// Targets are all destinations to which the packet may be translated.
	Targets []netip.AddrPort
}

// Walker follows one packet. It changes Packet on the way, except for its addresses.
type Walker struct {
	Tables *Tables
	Node   Node
	Packet Packet
	// Steps are what the packet has met.
	Steps []Step
	// Doubtful are rules that may decide what happens to the packet, but cannot be
	// evaluated. They count as not matching.
	Doubtful []Step

	result Result
	depth  int
}

// deepest bounds how many chains lead to each other. The kernel refuses loops.
const deepest = 100

// Hook runs a built-in chain. A missing one continues.
func (w *Walker) Hook(c Chain) Result {
	w.result = Result{}
	if w.chain(c) != final && w.Tables.policies[c] == "DROP" {
		w.result.Verdict, w.result.By = Dropped, Step{Chain: c}
	}
	return w.result
}

// outcome is the result of a chain or rule.
type outcome uint8

const (
	next  outcome = iota // no verdict
	back                 // return
	final                // the table decides nothing more
)

func (w *Walker) chain(c Chain) outcome {
	if !w.Tables.Has(c) || w.depth == deepest {
		return next
	}
	w.depth++
	defer func() { w.depth-- }()
	w.Steps = append(w.Steps, Step{Chain: c})
	for _, r := range w.Tables.Rules(c) {
		m := w.Node.Matches(r, w.Packet)
		if m == No {
			continue
		}
		switch o := w.rule(Step{Chain: c, Rule: r, Match: m}); {
		case m != Yes:
		case o == back:
			return next
		case o == final:
			return final
		}
	}
	return next
}

// passive are targets that do not decide what happens to a packet.
var passive = []string{"", "LOG", "NFLOG", "ULOG", "TRACE", "AUDIT", "MARK", "CONNMARK", "CONNSECMARK", "SECMARK", "TCPMSS", "TOS", "DSCP", "TTL", "HL", "CHECKSUM", "CLASSIFY", "SET", "RATEEST", "TEE", "LED", "IDLETIMER", "HMARK", "TCPOPTSTRIP", "ECN", "CT", "NOTRACK"}

// Passive reports whether a target does not decide what happens to a packet.
func Passive(target string) bool { return slices.Contains(passive, target) }

// rule applies a rule that matches, or may match.
func (w *Walker) rule(s Step) outcome {
	name, forGood, args := s.Rule.target()
	isPassive := Passive(name)
	switch {
	case isPassive:
		if s.Match != Unknown {
			w.Steps = append(w.Steps, s)
		}
		w.change(s.Match, name, args)
		return next
	case s.Match == Unknown:
		w.Doubtful = append(w.Doubtful, s)
		return next
	}
	if to := (Chain{s.Chain.Table, name}); w.Tables.Has(to) {
		w.Steps = append(w.Steps, s)
		o := w.chain(to)
		if o == next && forGood {
			return back
		}
		return o
	}
	return w.decide(s, name, args)
}

// change applies a target that changes the packet. If it is not certain that the rule
// matches, the bits of the mark that it may change are not known any more.
func (w *Walker) change(m Match, name string, args []string) {
	p := &w.Packet
	switch value, mask, ok := marks(Argument(args, "--set-xmark")); {
	case name == "MARK" && ok:
		after := p.Mark&^mask ^ value
		if m == Yes {
			p.Vague &^= mask
		} else {
			p.Vague |= p.Mark ^ after
		}
		p.Mark = after &^ p.Vague
	case name == "NOTRACK", name == "CT" && slices.Contains(args, "--notrack"):
		p.Untracked = p.Untracked || m == Yes
	}
}

// verdicts are those of targets without arguments that matter.
var verdicts = map[string]Verdict{
	"ACCEPT": Accepted, "DROP": Dropped, "REJECT": Rejected, "TARPIT": Rejected,
	"MASQUERADE": Masqueraded, "SNAT": Masqueraded,
}

// decide applies a target that ends the table.
func (w *Walker) decide(s Step, name string, args []string) outcome {
	switch v, known := verdicts[name]; {
	case name == "RETURN":
		w.Steps = append(w.Steps, s)
		return back
	case name == "DNAT":
		to, err := netip.ParseAddrPort(Argument(args, "--to-destination"))
		if err != nil {
			w.end(s, Untranslated)
			return final
		}
		s.To = to
		if !slices.Contains(w.result.Targets, to) {
			w.result.Targets = append(w.result.Targets, to)
		}
		w.end(s, Translated)
	case known:
		w.end(s, v)
	default: // such as REDIRECT, NETMAP, TPROXY and NFQUEUE
		w.end(s, Untranslated)
	}
	return final
}

// end records what decided. A rule that matches by chance decides only for some packets.
func (w *Walker) end(s Step, v Verdict) {
	w.Steps = append(w.Steps, s)
	if s.Match == Yes {
		w.result.Verdict, w.result.By = v, s
	}
}
