// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/route"
	"kubeproxy/test/backendtest"
)

// Tracer traces a packet through rules and collects all possible outcomes: at a rule that
// matches at random, it follows both branches.
type Tracer struct {
	*System
	Conn       route.Conn
	Local      func(netip.Addr) bool // whether it is one of the node's addresses
	Loops      func(netip.Addr) bool // whether packets to it leave by the loopback interface, nil for never
	Translated bool                  // the destination was translated
	Reply      bool                  // it answers an earlier packet
	Out        backendtest.Outcome
	marks      uint64
	table      string
}

// Trace follows a connection through the hooks of table nat, and of table filter after
// each of its translations. local returns whether an address is the node's.
func (k *System) Trace(c route.Conn, local func(netip.Addr) bool) backendtest.Outcome {
	t := &Tracer{System: k, Conn: c, Local: local}
	if c.Interface == "" {
		t.Hook("nat", "OUTPUT")
	} else {
		t.Hook("nat", "PREROUTING")
	}
	o := t.Out
	if o.Action != route.Forward {
		return backendtest.Outcome{Action: t.after(c.To).Action}
	}
	slices.SortFunc(o.Targets, netip.AddrPort.Compare)
	o.Targets = slices.Compact(o.Targets)
	o.Masq = map[netip.AddrPort]bool{}
	for _, to := range o.Targets {
		then := t.after(to)
		o.Masq[to] = then.Masq != nil
		if then.Action != route.Pass {
			o.Action = then.Action
		}
	}
	return o
}

// after evaluates what follows translation.
func (t *Tracer) after(to netip.AddrPort) backendtest.Outcome {
	x := t.AfterDNAT(to)
	x.Translated = t.Out.Action == route.Forward
	switch {
	case t.Conn.Interface == "":
		x.Hook("filter", "OUTPUT")
	case t.Local(to.Addr()):
		x.Hook("filter", "INPUT")
	default:
		x.Hook("filter", "FORWARD")
	}
	x.Hook("nat", "POSTROUTING")
	return x.Out
}

// result is the result of running a chain or a rule.
type result uint8

const (
	next  result = iota // no verdict
	back                // return
	final               // accepted, translated, rejected or dropped
)

// Hook runs one of the system's chains.
func (t *Tracer) Hook(table, chain string) {
	t.table = table
	t.chain(chain)
}

func (t *Tracer) chain(name string) result {
	rules, found := t.Tables[t.table][name]
	if !found {
		panic("no chain " + name)
	}
	for _, r := range rules {
		w := words(r)
		matches, sure := t.matches(w)
		if !matches {
			continue
		}
		switch res := t.verdict(w); {
		case !sure:
		case res == final:
			return final
		case res == back:
			return next
		}
	}
	return next
}

// matches returns whether the words of a rule match, and whether that is certain.
func (t *Tracer) matches(w []string) (matches, sure bool) {
	not := false
	sure = true
	for i := 0; i < len(w); i++ {
		ok, known := t.match(w, i)
		switch {
		case w[i] == "!":
			not = true
			continue
		case w[i] == "-j", w[i] == "-g":
			return true, sure
		case w[i] == "--probability":
			sure = false
		case known && ok == not:
			return false, true
		}
		not = false
	}
	return true, sure
}

// match returns whether the argument at i matches. known is false if it is no match.
func (t *Tracer) match(w []string, i int) (ok, known bool) {
	arg := ""
	if i+1 < len(w) {
		arg = w[i+1]
	}
	switch w[i] {
	case "-s":
		return netip.MustParsePrefix(arg).Contains(t.Conn.From), true
	case "-d":
		return netip.MustParsePrefix(arg).Contains(t.Conn.To.Addr()), true
	case "-p":
		return arg == t.Conn.Protocol.String(), true
	case "-i":
		return t.enters(arg), true
	case "-o":
		return arg == "lo" && t.Loops != nil && t.Loops(t.Conn.To.Addr()), true
	case "--dport":
		return t.to(arg), true
	case "--src-type":
		return t.Local(t.Conn.From), true
	case "--dst-type":
		return t.Local(t.Conn.To.Addr()), true
	case "--mark":
		value, mask, _ := strings.Cut(arg, "/")
		return t.marks&number(mask) == number(value), true
	case "--ctstate":
		return t.state(strings.Split(arg, ",")), true
	case "--ctdir":
		return t.Reply == (arg == "REPLY"), true
	case "--match-set":
		return t.Sets.has(arg, strings.Split(w[i+2], ","), t), true
	case "--bytecode":
		return t.Conn.From == t.Conn.To.Addr(), true
	case "--update": // the recent list is empty
		return false, true
	}
	return false, false
}

func (t *Tracer) enters(name string) bool {
	if wild, found := strings.CutSuffix(name, "+"); found {
		return strings.HasPrefix(t.Conn.Interface, wild)
	}
	return name == t.Conn.Interface
}

// to returns whether the destination's port is one of ports.
func (t *Tracer) to(ports string) bool {
	low, high, ranged := strings.Cut(ports, ":")
	if !ranged {
		high = low
	}
	port := uint64(t.Conn.To.Port())
	return number(low) <= port && port <= number(high)
}

func (t *Tracer) state(states []string) bool {
	state := "NEW"
	if t.Reply {
		state = "ESTABLISHED"
	}
	return slices.Contains(states, state) || t.Translated && slices.Contains(states, "DNAT")
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (t *Tracer) verdict(w []string) result {
	switch to := target(w); to {
	case "": // it only counts
		return next
	case "RETURN":
		return back
	case "ACCEPT":
		return final
	case "DROP":
		t.Out.Action = route.Drop
		return final
	case "REJECT":
		t.Out.Action = route.Reject
		return final
	case "MARK":
		value, mask, _ := strings.Cut(argument(w, "--set-xmark"), "/")
		t.marks = t.marks&^number(mask) ^ number(value)
		return next
	case "DNAT":
		t.Out.Action = route.Forward
		t.Out.Targets = append(t.Out.Targets, netip.MustParseAddrPort(argument(w, "--to-destination")))
		return final
	case "MASQUERADE":
		if !slices.Contains(w, "--random-fully") {
			panic("masquerades without --random-fully") // two clients might get the same port
		}
		t.Out.Masq = map[netip.AddrPort]bool{}
		return final
	default:
		return t.jump(to, argument(w, "-g") == to)
	}
}

// jump continues in another chain. After a goto, a return from that chain also returns
// from the present chain. See --goto in iptables(8).
func (t *Tracer) jump(to string, forGood bool) result {
	res := t.chain(to)
	if res == next && forGood {
		return back
	}
	return res
}

// AfterDNAT returns t after a translation of its destination.
func (t *Tracer) AfterDNAT(to netip.AddrPort) *Tracer {
	x := *t
	x.Conn.To, x.Translated, x.Out = to, t.Translated || to != t.Conn.To, backendtest.Outcome{}
	return &x
}
