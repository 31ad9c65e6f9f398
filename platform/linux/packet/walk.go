// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
)

// Step is a chain that the packet entered, or a rule that matched it.
type Step struct {
	Chain Chain
	Rule  *Rule // nil for entering the chain
	Match Match // of the rule
	// To is the new destination, if the rule translates it.
	To netip.AddrPort
}

// Result is what a built-in chain does. Zero means that the packet goes on.
type Result struct {
	Does explain.Deed
	// By is the step that decided. Its Rule is nil if that was the policy of the chain. Its To
	// is invalid if it is not known where it translates to.
	By Step
	// Targets are all destinations to which the packet may be translated.
	Targets []netip.AddrPort
}

// Walker follows one packet. It changes Packet on the way, except for its addresses.
type Walker struct {
	Tables *Saved
	Node   Answers
	Packet Packet
	// Steps are what the packet has met.
	Steps []Step
	// Doubtful are rules that may decide what happens to the packet, but cannot be
	// evaluated. They count as not matching.
	Doubtful []Step

	result Result
	depth  int
}

// Hook runs a built-in chain. A missing one continues.
func (w *Walker) Hook(c Chain) Result {
	w.result = Result{}
	if w.chain(c) != final && w.Tables.policies[c] == "DROP" {
		w.result.Does, w.result.By = explain.Drops, Step{Chain: c}
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
var passiveTargets = []string{"", "LOG", "NFLOG", "ULOG", "TRACE", "AUDIT", "MARK", "CONNMARK", "CONNSECMARK", "SECMARK", "TCPMSS", "TOS", "DSCP", "TTL", "HL", "CHECKSUM", "CLASSIFY", "SET", "RATEEST", "TEE", "LED", "IDLETIMER", "HMARK", "TCPOPTSTRIP", "ECN", "CT", "NOTRACK"}

// isPassive reports whether a target does not decide what happens to a packet.
func isPassive(target string) bool { return slices.Contains(passiveTargets, target) }

// rule applies a rule that matches, or may match.
func (w *Walker) rule(s Step) outcome {
	name, forGood, args := s.Rule.target()
	passive := isPassive(name)
	switch {
	case passive:
		if s.Match != Unknown {
			w.Steps = append(w.Steps, s)
		}
		w.change(s.Match, name, args)
		return next
	case s.Match == Unknown:
		w.Doubtful = append(w.Doubtful, s)
		return next
	}
	if to := (Chain{Table: s.Chain.Table, Name: name}); w.Tables.Has(to) {
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
var verdicts = map[string]explain.Deed{
	"ACCEPT": explain.Passes, "DROP": explain.Drops, "REJECT": explain.Refuses, "TARPIT": explain.Refuses,
	"MASQUERADE": explain.Masquerades, "SNAT": explain.Masquerades,
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
			w.end(s, explain.Translates)
			return final
		}
		s.To = to
		if !slices.Contains(w.result.Targets, to) {
			w.result.Targets = append(w.result.Targets, to)
		}
		w.end(s, explain.Translates)
	case known:
		w.end(s, v)
	default: // such as REDIRECT, NETMAP, TPROXY and NFQUEUE
		w.end(s, explain.Translates)
	}
	return final
}

// end records what decided. A rule that matches by chance decides only for some packets.
func (w *Walker) end(s Step, v explain.Deed) {
	w.Steps = append(w.Steps, s)
	if s.Match == Yes {
		w.result.Does, w.result.By = v, s
	}
}

// Packet is the first packet of a connection at some point of its path.
type Packet struct {
	route.Conn
	// Dialled is the destination before any translation.
	Dialled netip.AddrPort
	// Translated means that a rule replaced the destination, Untracked that one exempted
	// the packet from connection tracking.
	Translated, Untracked bool
	// Mark is the mark. The bits in Vague are not known, and 0 in Mark.
	Mark, Vague uint32
}

// Match says whether a rule, or a part of it, matches a packet.
type Match uint8

// The answers. Both of the last two mean that the packet may or may not match.
const (
	No Match = iota
	Yes
	Random  // by a random number, or a list of earlier clients
	Unknown // the package cannot evaluate it
)

func matchIf(b bool) Match {
	if b {
		return Yes
	}
	return No
}

// Answers are what only the node knows.
type Answers struct {
	// Local reports whether an address belongs to the node.
	Local func(netip.Addr) bool
	// InSet reports whether fields of p, such as dst,src, are in an ipset.
	InSet func(name, fields string, p Packet) Match
	// Listed reports whether the source of p is in a list of xt_recent and was there
	// within the seconds that the rule says, "" for any time.
	Listed func(list, seconds string, p Packet) Match
	// Bytecode evaluates a program of xt_bpf.
	Bytecode func(code string, p Packet) Match
	// Leaves returns the interface by which packets go out to an address. If it is nil, that
	// is known for addresses of the node only.
	Leaves func(netip.Addr) string
	// AnyInterface means that the interface of packets stands for several ones, so that
	// another name in a rule may match, too.
	AnyInterface bool
}

// modules are the modules of matches whose options Matches knows.
var modules = []string{"comment", "tcp", "udp", "sctp", "multiport", "conntrack", "state", "mark", "addrtype", "set", "recent", "statistic", "bpf"}

// Matches evaluates the matches of r for p. A part that certainly does not match decides,
// whatever the others are.
func (n Answers) Matches(r *Rule, p Packet) Match {
	return n.evaluate(r, func(option string, args []string) (Match, int) { return n.option(option, args, p) })
}

// Concerns reports whether r may match p or a later packet of its connection, judged by
// addresses, protocol and ports alone. It ignores marks, states, lists and the rest.
func (n Answers) Concerns(r *Rule, p Packet) bool {
	return n.evaluate(r, func(option string, args []string) (Match, int) {
		switch option {
		case "-s", "-d", "-p", "--dport", "--dports", "--destination-ports", "-i":
			return n.option(option, args, p)
		}
		return Unknown, 0
	}) != No
}

// evaluate combines the options of r up to its target. option returns the answer for one
// option, and how many arguments belong to it.
func (n Answers) evaluate(r *Rule, option func(string, []string) (Match, int)) Match {
	all, not := Yes, false
	for w := r.Words(); len(w) > 0; w = w[1:] {
		switch {
		case w[0] == "-j" || w[0] == "-g":
			return all
		case w[0] == "!":
			not = true
			continue
		case !strings.HasPrefix(w[0], "-"): // an argument of an unknown option
			continue
		}
		m, args := option(w[0], w[1:])
		if not {
			m = m.negated()
		}
		if m == No {
			return No
		}
		all, not = max(all, m), false
		w = w[min(args, len(w)-1):]
	}
	return all
}

func (m Match) negated() Match {
	switch m {
	case No:
		return Yes
	case Yes:
		return No
	}
	return m
}

// option evaluates one option. args are the words that follow it.
func (n Answers) option(name string, args []string, p Packet) (Match, int) {
	if harmless(name) {
		return Yes, 0
	}
	if len(args) == 0 {
		return Unknown, 0
	}
	arg := args[0]
	switch name {
	case "-m":
		if slices.Contains(modules, arg) {
			return Yes, 1
		}
		return Unknown, 1
	case "-s":
		return inPrefix(arg, p.From), 1
	case "-d":
		return inPrefix(arg, p.To.Addr()), 1
	case "-p":
		return matchIf(arg == "all" || arg == p.Protocol.String()), 1
	case "-i":
		return n.enters(arg, p), 1
	case "-o":
		return n.leaves(arg, p), 1
	case "--dport", "--dports", "--destination-ports":
		return inPorts(arg, p.To.Port()), 1
	case "--src-type":
		return n.addrType(arg, p.From), 1
	case "--dst-type":
		return n.addrType(arg, p.To.Addr()), 1
	case "--match-set":
		if len(args) < 2 || n.InSet == nil {
			return Unknown, 2
		}
		return n.InSet(arg, args[1], p), 2
	case "--bytecode":
		if n.Bytecode == nil {
			return Unknown, 1
		}
		return n.Bytecode(arg, p), 1
	}
	return n.state(name, args, p)
}

// harmless reports whether an option has no argument and changes no answer.
func harmless(name string) bool {
	return slices.Contains([]string{"--reap", "--rsource", "--set"}, name)
}

// state evaluates the options about connections, marks, lists and random numbers.
func (n Answers) state(name string, args []string, p Packet) (Match, int) {
	arg := args[0]
	switch name {
	case "--comment", "--name", "--mask", "--seconds", "--mode":
		return Yes, 1
	case "--ctstate", "--state":
		return matchIf(slices.ContainsFunc(strings.Split(arg, ","), p.inState)), 1
	case "--ctdir":
		return matchIf(arg == "ORIGINAL"), 1
	case "--ctorigdst":
		return inPrefix(arg, p.Dialled.Addr()), 1
	case "--mark":
		value, mask, ok := marks(arg)
		if !ok {
			return Unknown, 1
		}
		return p.marked(value, mask), 1
	case "--probability":
		return Random, 1
	case "--update", "--rcheck":
		if n.Listed == nil {
			return Unknown, 0
		}
		return n.Listed(Argument(args, "--name"), Argument(args, "--seconds"), p), 0
	case "--tcp-flags":
		if len(args) < 2 {
			return Unknown, 1
		}
		// The first packet of a connection has SYN alone (kernel: net/netfilter/xt_tcpudp.c,
		// tcp_mt).
		flags := "NONE"
		if slices.ContainsFunc(strings.Split(arg, ","), func(f string) bool { return f == "SYN" || f == "ALL" }) {
			flags = "SYN"
		}
		return matchIf(args[1] == flags), 2
	}
	return Unknown, 0
}

// marked compares the mark of p.
func (p Packet) marked(value, mask uint32) Match {
	switch {
	case (p.Mark&mask^value)&^p.Vague != 0:
		return No
	case p.Vague&mask != 0:
		return Unknown
	}
	return Yes
}

// inState reports whether a new connection has a state of conntrack.
func (p Packet) inState(state string) bool {
	switch state {
	case "NEW":
		return !p.Untracked
	case "UNTRACKED":
		return p.Untracked
	case "DNAT":
		return p.Translated
	}
	return false
}

func inPrefix(text string, a netip.Addr) Match {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		single, err := netip.ParseAddr(text)
		if err != nil {
			return Unknown
		}
		return matchIf(single == a)
	}
	return matchIf(p.Contains(a))
}

// enters compares the interface by which p comes in with a name, which may end in +.
func (n Answers) enters(name string, p Packet) Match {
	if wild, found := strings.CutSuffix(name, "+"); found && strings.HasPrefix(p.Interface, wild) || name == p.Interface {
		return Yes
	}
	if n.AnyInterface && p.Interface != "" && p.Interface != loopback {
		return Unknown
	}
	return No
}

// leaves compares the interface by which p goes out with a name.
func (n Answers) leaves(name string, p Packet) Match {
	switch local := n.Local(p.To.Addr()); {
	case n.Leaves != nil:
		out := n.Leaves(p.To.Addr())
		wild, found := strings.CutSuffix(name, "+")
		return matchIf(out == name || found && strings.HasPrefix(out, wild))
	case name == loopback:
		return matchIf(local)
	case local:
		return No
	}
	return Unknown
}

// addrType compares the type of an address, see addrtype in iptables-extensions(8).
func (n Answers) addrType(name string, a netip.Addr) Match {
	if name != "LOCAL" {
		return Unknown
	}
	return matchIf(n.Local(a))
}

// inPorts reports whether port is in a list of ports and ranges.
func inPorts(text string, port uint16) Match {
	for part := range strings.SplitSeq(text, ",") {
		low, high, ranged := strings.Cut(part, ":")
		if !ranged {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		to, err2 := strconv.ParseUint(high, 10, 16)
		if err != nil || err2 != nil {
			return Unknown
		}
		if from <= uint64(port) && uint64(port) <= to {
			return Yes
		}
	}
	return No
}

// marks parses VALUE[/MASK].
func marks(text string) (value, mask uint32, ok bool) {
	v, m, masked := strings.Cut(text, "/")
	if !masked {
		m = "0xffffffff"
	}
	a, err := strconv.ParseUint(v, 0, 32)
	b, err2 := strconv.ParseUint(m, 0, 32)
	return uint32(a), uint32(b), err == nil && err2 == nil
}

// Saved are chains with their rules, as iptables-save prints them.
type Saved struct {
	rules map[Chain][]*Rule
	// policies are those of built-in chains.
	policies map[Chain]string
}

// NewSaved returns tables without chains.
func NewSaved() *Saved { return &Saved{map[Chain][]*Rule{}, map[Chain]string{}} }

// Parse reads the output of iptables-save.
func Parse(text string) *Saved {
	t := NewSaved()
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			name, rest, _ := strings.Cut(line[1:], " ")
			policy, _, _ := strings.Cut(rest, " ")
			t.rules[Chain{Table: table, Name: name}], t.policies[Chain{Table: table, Name: name}] = nil, policy
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			t.Append(Chain{Table: table, Name: name}, rule)
		}
	}
	return t
}

// Append adds rules to a chain, which it creates if necessary.
func (t *Saved) Append(to Chain, rules ...string) {
	all := t.rules[to]
	for _, r := range rules {
		all = append(all, &Rule{Text: strings.Clone(r)})
	}
	t.rules[to] = all
}

// Has reports whether a chain exists.
func (t *Saved) Has(c Chain) bool {
	_, found := t.rules[c]
	return found
}

// Rules returns the rules of a chain.
func (t *Saved) Rules(c Chain) []*Rule { return t.rules[c] }

// Remove removes a table, as if the kernel evaluated none of its chains.
func (t *Saved) Remove(table string) {
	for c := range t.rules {
		if c.Table == table {
			delete(t.rules, c)
			delete(t.policies, c)
		}
	}
}

// Words returns the arguments of the rule, without quotation marks.
func (r *Rule) Words() []string {
	if r.words == nil {
		r.words = Split(r.Text)
	}
	return r.words
}

// Split splits a rule into its arguments. iptables-save quotes those with spaces, and
// escapes quotation marks and backslashes in them with a backslash.
func Split(rule string) []string {
	var all []string
	var b strings.Builder
	quoted, begun := false, false
	for i := 0; i < len(rule); i++ {
		c := rule[i]
		switch {
		case c == '\\' && quoted && i+1 < len(rule):
			i++
			b.WriteByte(rule[i])
			continue
		case c == '"':
			quoted, begun = !quoted, true
			continue
		case c != ' ' || quoted:
			b.WriteByte(c)
			begun = true
			continue
		}
		if begun {
			all = append(all, b.String())
			b.Reset()
			begun = false
		}
	}
	if begun {
		all = append(all, b.String())
	}
	return all
}

// target returns the target of a rule, whether it is a goto, and the arguments of the
// target.
func (r *Rule) target() (name string, jumpsForGood bool, args []string) {
	w := r.Words()
	for i := 0; i+1 < len(w); i++ {
		if w[i] == "-j" || w[i] == "-g" {
			return w[i+1], w[i] == "-g", w[i+2:]
		}
	}
	return "", false, nil
}

// Argument returns the word that follows flag, "" if there is none.
func Argument(words []string, flag string) string {
	for i, w := range words {
		if w == flag && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}
