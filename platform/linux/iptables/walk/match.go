// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package walk

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/route"
)

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
	Chance  // by a random number, or a list of earlier clients
	Unknown // the package cannot evaluate it
)

func matchIf(b bool) Match {
	if b {
		return Yes
	}
	return No
}

// Node answers what only the node knows.
type Node struct {
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
func (n Node) Matches(r *Rule, p Packet) Match {
	return n.evaluate(r, func(option string, args []string) (Match, int) { return n.option(option, args, p) })
}

// Concerns reports whether r may match p or a later packet of its connection, judged by
// addresses, protocol and ports alone. It ignores marks, states, lists and the rest.
func (n Node) Concerns(r *Rule, p Packet) bool {
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
func (n Node) evaluate(r *Rule, option func(string, []string) (Match, int)) Match {
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
func (n Node) option(name string, args []string, p Packet) (Match, int) {
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
func (n Node) state(name string, args []string, p Packet) (Match, int) {
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
		return Chance, 1
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
func (n Node) enters(name string, p Packet) Match {
	if wild, found := strings.CutSuffix(name, "+"); found && strings.HasPrefix(p.Interface, wild) || name == p.Interface {
		return Yes
	}
	if n.AnyInterface && p.Interface != "" && p.Interface != loopbackName {
		return Unknown
	}
	return No
}

const loopbackName = "lo"

// leaves compares the interface by which p goes out with a name.
func (n Node) leaves(name string, p Packet) Match {
	switch local := n.Local(p.To.Addr()); {
	case n.Leaves != nil:
		out := n.Leaves(p.To.Addr())
		wild, found := strings.CutSuffix(name, "+")
		return matchIf(out == name || found && strings.HasPrefix(out, wild))
	case name == loopbackName:
		return matchIf(local)
	case local:
		return No
	}
	return Unknown
}

// addrType compares the type of an address, see addrtype in iptables-extensions(8).
func (n Node) addrType(name string, a netip.Addr) Match {
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
