// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/route"
)

// tracer walks a packet through the rules of a fake and collects every way it
// may go: where a rule matches at random, both.
type tracer struct {
	tables map[string]fakeTable
	conn   route.Conn
	local  func(netip.Addr) bool // is it one of the node's addresses
	marks  uint64
	dnat   bool // the destination was translated
	table  string
	out    outcome
}

// outcome is what the rules made of a packet.
type outcome struct {
	action  route.Action
	targets []netip.AddrPort        // sorted, without duplicates
	masq    map[netip.AddrPort]bool // masqueraded when it goes there
}

// result is what running a chain or a rule came to.
type result uint8

const (
	next  result = iota // no verdict
	back                // return
	final               // accepted, translated, rejected or dropped
)

// trace runs the chains of the hooks that c passes.
func trace(k *fake, c route.Conn, local func(netip.Addr) bool) outcome {
	t := &tracer{tables: k.tables, conn: c, local: local, table: nat}
	if c.Interface == "" {
		t.chain("OUTPUT")
	} else {
		t.chain("PREROUTING")
	}
	o := t.out
	if o.action != route.Forward {
		return outcome{action: t.after(c.To, false).action}
	}
	slices.SortFunc(o.targets, netip.AddrPort.Compare)
	o.targets = slices.Compact(o.targets)
	o.masq = map[netip.AddrPort]bool{}
	for _, to := range o.targets {
		then := t.after(to, true)
		o.masq[to] = then.masq != nil
		if then.action != route.Pass {
			o.action = then.action
		}
	}
	return o
}

// after runs what follows translation.
func (t *tracer) after(to netip.AddrPort, dnat bool) outcome {
	x := &tracer{tables: t.tables, conn: t.conn, local: t.local, marks: t.marks, dnat: dnat, table: filter}
	x.conn.To = to
	switch {
	case t.conn.Interface == "":
		x.chain("OUTPUT")
	case t.local(to.Addr()):
		x.chain("INPUT")
	default:
		x.chain("FORWARD")
	}
	x.table = nat
	x.chain("POSTROUTING")
	return x.out
}

func (t *tracer) chain(name string) result {
	rules, found := t.tables[t.table][name]
	if !found {
		panic("no chain " + name)
	}
	for _, r := range rules {
		w := words(r)
		matches, sure := t.matches(w)
		if !matches {
			continue
		}
		switch res := t.target(w); {
		case !sure:
		case res == final:
			return final
		case res == back:
			return next
		}
	}
	return next
}

// matches reports that the words of a rule match, and surely so.
func (t *tracer) matches(w []string) (matches, sure bool) {
	not := false
	sure = true
	for i := 0; i < len(w); i++ {
		ok, known := t.match(w, i)
		switch {
		case w[i] == "!":
			not = true
			continue
		case w[i] == "-j":
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

// match reports that the argument at i matches, if it is one that may not.
func (t *tracer) match(w []string, i int) (ok, known bool) {
	arg := ""
	if i+1 < len(w) {
		arg = w[i+1]
	}
	switch w[i] {
	case "-s":
		return netip.MustParsePrefix(arg).Contains(t.conn.From), true
	case "-d":
		return netip.MustParsePrefix(arg).Contains(t.conn.To.Addr()), true
	case "-p":
		return arg == t.conn.Protocol.String(), true
	case "-i":
		if wild, found := strings.CutSuffix(arg, "+"); found {
			return strings.HasPrefix(t.conn.Interface, wild), true
		}
		return arg == t.conn.Interface, true
	case "--dport":
		low, high, ranged := strings.Cut(arg, ":")
		if !ranged {
			high = low
		}
		return number(low) <= uint64(t.conn.To.Port()) && uint64(t.conn.To.Port()) <= number(high), true
	case "--src-type":
		return t.local(t.conn.From), true
	case "--dst-type":
		return t.local(t.conn.To.Addr()), true
	case "--mark":
		value, mask, _ := strings.Cut(arg, "/")
		return t.marks&number(mask) == number(value), true
	case "--ctstate":
		states := strings.Split(arg, ",")
		return slices.Contains(states, "NEW") || t.dnat && slices.Contains(states, "DNAT"), true
	case "--bytecode":
		return t.conn.From == t.conn.To.Addr(), true
	case "--update": // nobody was here before
		return false, true
	}
	return false, false
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (t *tracer) target(w []string) result {
	switch to := targetOf(w); to {
	case "RETURN":
		return back
	case "ACCEPT":
		return final
	case "DROP":
		t.out.action = route.Drop
		return final
	case "REJECT":
		t.out.action = route.Reject
		return final
	case "MARK":
		value, mask, _ := strings.Cut(argument(w, "--set-xmark"), "/")
		t.marks = t.marks&^number(mask) ^ number(value)
		return next
	case "DNAT":
		t.out.action = route.Forward
		t.out.targets = append(t.out.targets, netip.MustParseAddrPort(argument(w, "--to-destination")))
		return final
	case "MASQUERADE":
		if !slices.Contains(w, "--random-fully") {
			panic("masquerades without --random-fully") // see masqueradeRule
		}
		t.out.masq = map[netip.AddrPort]bool{}
		return final
	default:
		return t.chain(to)
	}
}
