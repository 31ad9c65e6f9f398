// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
)

// compile translates a rule of iptables into the expressions of nftables.
func (t *Saved) compile(table string, r *Rule) {
	r.words = Split(r.Text)
	module, not := "", false
	for w := r.words; len(w) > 0; w = w[1:] {
		switch {
		case w[0] == "-j" && len(w) > 1, w[0] == "-g" && len(w) > 1:
			r.Expressions = append(r.Expressions, t.target(table, w[1], w[0] == "-g", w[2:])...)
			return
		case w[0] == "!":
			not = true
			continue
		case !strings.HasPrefix(w[0], "-"): // an argument of an unknown option
			continue
		case w[0] == "-m" && len(w) > 1:
			module = w[1]
			if !slices.Contains(modules, module) {
				r.Expressions = append(r.Expressions, Chance{Name: "match " + module})
			}
			w = w[1:]
			continue
		}
		o, known := options[w[0]]
		if !known {
			o, known = options[moduleOf(module)+" "+w[0]]
		}
		if known && len(w) > o.args {
			all := o.compile(w[1:], not)
			r.Expressions = append(r.Expressions, all...)
			if o.headers {
				r.headers = append(r.headers, all...)
			}
			w = w[o.args:]
		} else {
			r.Expressions = append(r.Expressions, unknownOption(module, w[0]))
		}
		not = false
	}
}

func unknownOption(module, name string) Expression {
	if module == "" {
		module = name
	}
	return Chance{Name: "match " + module}
}

// moduleOf returns the name by which options has those of a module.
func moduleOf(name string) string {
	if slices.Contains([]string{"", "udp", "sctp"}, name) {
		return "tcp"
	}
	return name
}

// modules are the modules of matches whose options are known.
var modules = []string{"comment", "tcp", "udp", "sctp", "multiport", "conntrack", "state", "mark", "connmark", "addrtype", "set", "recent", "statistic", "bpf"}

// option is what an option of a match means.
type option struct {
	args int
	// headers means that it asks for addresses, the protocol, ports of the destination, or the
	// interface.
	headers bool
	compile func(args []string, not bool) []Expression
}

// options are those that are known, with their module if they have one.
var options = map[string]option{
	"-s": {1, true, func(a []string, not bool) []Expression { return inPrefix(addressLoad(a[0], true), a[0], not) }},
	"-d": {1, true, func(a []string, not bool) []Expression { return inPrefix(addressLoad(a[0], false), a[0], not) }},
	"-p": {1, true, ofProtocol},
	"-i": {1, true, func(a []string, not bool) []Expression { return ofInterface(MetaInName, a[0], not) }},
	"-o": {1, false, func(a []string, not bool) []Expression { return ofInterface(MetaOutName, a[0], not) }},
	"-f": {0, false, func(_ []string, not bool) []Expression { // a fragment, but not the first
		return masked(PayloadLoad{NetworkBase, 6, 2, 1}, []byte{0x1f, 0xff}, []byte{0, 0}, !not)
	}},
	"tcp --sport":           {1, false, func(a []string, not bool) []Expression { return inPorts(portLoad(0), a[0], not) }},
	"tcp --dport":           {1, true, func(a []string, not bool) []Expression { return inPorts(portLoad(2), a[0], not) }},
	"multiport --sports":    {1, false, func(a []string, not bool) []Expression { return inPorts(portLoad(0), a[0], not) }},
	"multiport --dports":    {1, true, func(a []string, not bool) []Expression { return inPorts(portLoad(2), a[0], not) }},
	"tcp --tcp-flags":       {2, false, ofFlags},
	"conntrack --ctstate":   {1, false, ofState},
	"state --state":         {1, false, ofState},
	"conntrack --ctdir":     {1, false, ofDirection},
	"conntrack --ctorigdst": {1, false, func(a []string, not bool) []Expression { return inPrefix(ConntrackLoad{Key: ctDest, To: 1}, a[0], not) }},
	"conntrack --ctorigsrc": {1, false, func(a []string, not bool) []Expression {
		return inPrefix(ConntrackLoad{Key: ctSource, To: 1}, a[0], not)
	}},
	"conntrack --ctorigdstport": {1, false, func(a []string, not bool) []Expression {
		return inPorts(ConntrackLoad{Key: CtDestPort, To: 1}, a[0], not)
	}},
	"mark --mark": {1, false, func(a []string, not bool) []Expression { return ofMark(MetaLoad{MetaMark, 1}, a[0], not) }},
	"connmark --mark": {1, false, func(a []string, not bool) []Expression {
		return ofMark(ConntrackLoad{Key: ctMarkKey, To: 1}, a[0], not)
	}},
	"addrtype --src-type":     {1, false, func(a []string, not bool) []Expression { return ofType(true, a[0], not) }},
	"addrtype --dst-type":     {1, false, func(a []string, not bool) []Expression { return ofType(false, a[0], not) }},
	"set --match-set":         {2, false, func(a []string, not bool) []Expression { return []Expression{InSet{a[0], a[1], not}} }},
	"bpf --bytecode":          {1, false, func(a []string, not bool) []Expression { return []Expression{Bytecode{a[0], not}} }},
	"statistic --probability": {1, false, func([]string, bool) []Expression { return []Expression{Chance{Name: "match statistic", Random: true}} }},
	"recent --update":         {0, false, inRecent},
	"recent --rcheck":         {0, false, inRecent},
	"comment --comment":       {1, false, nothing},
	"recent --name":           {1, false, nothing},
	"recent --mask":           {1, false, nothing},
	"recent --seconds":        {1, false, nothing},
	"recent --set":            {0, false, nothing},
	"recent --reap":           {0, false, nothing},
	"recent --rsource":        {0, false, nothing},
	"statistic --mode":        {1, false, nothing},
}

// nothing is what an option means that narrows nothing.
func nothing([]string, bool) []Expression { return nil }

func op(not bool) uint32 {
	if not {
		return CmpNotEqual
	}
	return CmpEqual
}

// masked compares load & mask with value.
func masked(load Expression, mask, value []byte, not bool) []Expression {
	return []Expression{load, Bitwise{1, 1, len(value), mask, nil}, Compare{op(not), 1, value}}
}

// addressLoad loads the source or the destination of a packet of the family of text.
func addressLoad(text string, source bool) Expression {
	offset, size := 16, 4
	if strings.Contains(text, ":") {
		offset, size = 24, 16
	}
	if source {
		offset -= size
	}
	return PayloadLoad{NetworkBase, offset, size, 1}
}

func inPrefix(load Expression, text string, not bool) []Expression {
	p, err := netip.ParsePrefix(text)
	if a, err2 := netip.ParseAddr(text); err2 == nil {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil { // such as a mask with gaps
		return []Expression{Chance{Name: "address " + text}}
	}
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return masked(load, mask, p.Masked().Addr().AsSlice(), not)
}

func ofProtocol(args []string, not bool) []Expression {
	const other = 255 // reserved by IANA
	name := args[0]
	if name == "all" {
		return nil
	}
	number := byte(other)
	if n, err := strconv.ParseUint(name, 10, 8); err == nil {
		number = byte(n)
	}
	for p, n := range protocolNumbers {
		if p.String() == name {
			number = n
		}
	}
	return protocolIs(number, not)
}

func protocolIs(number byte, not bool) []Expression {
	return []Expression{MetaLoad{MetaL4, 1}, Compare{op(not), 1, []byte{number}}}
}

// ofInterface compares the name of an interface. A plus at its end stands for anything.
func ofInterface(key uint32, name string, not bool) []Expression {
	data, wild := strings.CutSuffix(name, "+")
	if !wild {
		data += strings.Repeat("\x00", max(0, ifNameSize-len(data)))
	}
	return []Expression{MetaLoad{key, 1}, Compare{op(not), 1, []byte(data)}}
}

func portLoad(offset int) Expression { return PayloadLoad{TransportBase, offset, 2, 1} }

// inPorts compares a port with a list of ports and ranges.
func inPorts(load Expression, text string, not bool) []Expression {
	s := &Set{}
	for part := range strings.SplitSeq(text, ",") {
		low, high, ranged := strings.Cut(part, ":")
		if !ranged {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 16)
		to, err2 := strconv.ParseUint(high, 10, 16)
		if err != nil || err2 != nil {
			return []Expression{Chance{Name: "ports " + text}}
		}
		s.addPorts(uint16(from), uint16(to))
	}
	return []Expression{load, Lookup{In: s, From: 1, Not: not}}
}

func (s *Set) addPorts(low, high uint16) {
	s.Elements = append(s.Elements, Element{Key: binary.BigEndian.AppendUint16(nil, low), KeyEnd: binary.BigEndian.AppendUint16(nil, high)})
}

func flagsLoad() Expression { return PayloadLoad{TransportBase, 13, 1, 1} }

// ofFlags compares flags of TCP, by a mask and those of it that must be set.
func ofFlags(args []string, not bool) []Expression {
	return masked(flagsLoad(), []byte{bitsOf(tcpFlags, args[0])}, []byte{bitsOf(tcpFlags, args[1])}, not)
}

var tcpFlags = map[string]byte{"FIN": 1, "SYN": tcpSYN, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32, "ALL": 63}

// bitsOf returns the bits of a list of names.
func bitsOf[N uint8 | uint32](table map[string]N, names string) (all N) {
	for name := range strings.SplitSeq(names, ",") {
		all |= table[name]
	}
	return all
}

// ofState compares the state of the connection. Names without a bit are of connections that
// are not new.
func ofState(args []string, not bool) []Expression {
	return []Expression{State{bitsOf(stateNames, args[0]), not}}
}

var stateNames = map[string]uint32{"INVALID": StateInvalid, "ESTABLISHED": 2, "RELATED": 4, "NEW": stateNew, "SNAT": 1 << 6, "DNAT": xtDNAT, "UNTRACKED": xtUntracked}

func ofDirection(args []string, not bool) []Expression {
	reply := byte(0)
	if args[0] == "REPLY" {
		reply = 1
	}
	return []Expression{ConntrackLoad{Key: CtDirection, To: 1}, Compare{op(not), 1, []byte{reply}}}
}

// ofMark compares a mark with VALUE[/MASK].
func ofMark(load Expression, text string, not bool) []Expression {
	value, mask, ok := markAndMask(text)
	if !ok {
		return []Expression{Chance{Name: "mark " + text}}
	}
	return masked(load, number(mask, mask).value, number(value, value).value, not)
}

// markAndMask parses VALUE[/MASK].
func markAndMask(text string) (value, mask uint32, ok bool) {
	v, m, found := strings.Cut(text, "/")
	if !found {
		m = "0xffffffff"
	}
	a, err := strconv.ParseUint(v, 0, 32)
	b, err2 := strconv.ParseUint(m, 0, 32)
	return uint32(a), uint32(b), err == nil && err2 == nil
}

func ofType(source bool, names string, not bool) []Expression {
	x := AddrType{Source: source, Not: not}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.Index(addrTypes, name)
		if i < 0 {
			return []Expression{Chance{Name: "match addrtype"}}
		}
		x.Mask |= 1 << i
	}
	return []Expression{x}
}

// addrTypes are the types of addresses by their numbers (linux/rtnetlink.h).
var addrTypes = []string{"UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE", "PROHIBIT", "THROW", "NAT", "XRESOLVE"}

func inRecent(args []string, not bool) []Expression {
	return []Expression{Recent{Argument(args, "--name"), Argument(args, "--seconds"), not}}
}

// target translates the target of a rule.
func (t *Saved) target(table, name string, isGoto bool, args []string) []Expression {
	switch {
	case t.Has(Chain{Table: table, Name: name}):
		code := int32(Jump)
		if isGoto {
			code = Goto
		}
		return []Expression{Verdict{code, name}}
	case name == "MARK":
		if value, mask, ok := markAndMask(Argument(args, "--set-xmark")); ok {
			return setMark(number(^mask, ^uint32(0)).value, number(value, ^uint32(0)).value)
		}
		return []Expression{Opaque{"target MARK"}}
	case name == "NOTRACK", name == "CT" && slices.Contains(args, "--notrack"):
		return []Expression{NoTrack{}}
	case name == "DNAT":
		to, err := netip.ParseAddrPort(Argument(args, "--to-destination"))
		if err != nil { // without a port, or with a range
			addr, _ := netip.ParseAddr(Argument(args, "--to-destination"))
			to = netip.AddrPortFrom(addr, 0)
		}
		return []Expression{Translate{Dest: to}}
	}
	return simpleTarget(name)
}

// setMark sets the mark to the present one & keep ^ value.
func setMark(keep, value []byte) []Expression {
	return []Expression{MetaLoad{MetaMark, 1}, Bitwise{1, 1, 4, keep, value}, MetaStore{MetaMark, 1}}
}

// passiveTargets are targets that do not decide what happens to a packet.
var passiveTargets = []string{"LOG", "NFLOG", "ULOG", "TRACE", "AUDIT", "CONNMARK", "CONNSECMARK", "SECMARK", "TCPMSS", "TOS", "DSCP", "TTL", "HL", "CHECKSUM", "CLASSIFY", "SET", "RATEEST", "TEE", "LED", "IDLETIMER", "HMARK", "TCPOPTSTRIP", "ECN", "CT"}

// simpleTarget translates a target whose arguments do not matter.
func simpleTarget(name string) []Expression {
	switch name {
	case "ACCEPT":
		return []Expression{Verdict{Code: Accept}}
	case "DROP":
		return []Expression{Verdict{Code: Drop}}
	case "RETURN":
		return []Expression{Verdict{Code: Return}}
	case "REJECT", "TARPIT":
		return []Expression{Reject{}}
	case "DNAT":
		return []Expression{Translate{}}
	case "REDIRECT":
		return []Expression{Translate{Redirect: true}}
	case "SNAT", "MASQUERADE":
		return []Expression{Translate{Source: true}}
	}
	if slices.Contains(passiveTargets, name) {
		return nil
	}
	return []Expression{Opaque{"target " + name}}
}

// expressions translates a match or target of iptables in nftables. The kernel stores its
// settings as a struct of C in the byte order of the machine.
func (x Extension) expressions() []Expression {
	info, u32 := x.Info, func(i int) uint32 { return binary.NativeEndian.Uint32(x.Info[i:]) }
	switch name := x.Name + " " + strconv.Itoa(int(x.Revision)); {
	case x.Target && name == "MARK 2" && len(info) >= 8: // struct xt_mark_tginfo2
		return setMark(number(^u32(4), ^uint32(0)).value, info[:4])
	case x.Target && x.Name == "CT" && len(info) >= 2 && binary.NativeEndian.Uint16(info)&1 != 0: // XT_CT_NOTRACK
		return []Expression{NoTrack{}}
	case x.Target:
		return simpleTarget(x.Name)
	case name == "comment 0":
		return nil
	case name == "tcp 0" && len(info) >= 12:
		return ports(service.TCP, info, info[11])
	case name == "udp 0" && len(info) >= 9:
		return ports(service.UDP, info, info[8])
	case name == "multiport 1" && len(info) >= 48 && info[0] == 1: // of the destination
		return multiport(info)
	case name == "mark 1" && len(info) >= 9: // struct xt_mark_mtinfo1
		return masked(MetaLoad{MetaMark, 1}, info[4:8], info[:4], info[8] != 0)
	case name == "addrtype 1" && len(info) >= 8 && u32(4)&(4|8) == 0: // not limited to an interface
		return types(info)
	case name == "state 0" && len(info) >= 4: // struct xt_state_info, with another bit for untracked
		const untracked = 1 << 6
		mask := u32(0)
		if mask&untracked != 0 {
			mask |= xtUntracked
		}
		return []Expression{State{mask &^ untracked, false}}
	case slices.Contains([]string{"conntrack 1", "conntrack 2", "conntrack 3"}, name) && len(info) >= 152:
		return connection(x.Revision, info)
	}
	return []Expression{Chance{Name: "match " + x.Name}}
}

// ports translates the matches tcp and udp (kernel: include/uapi/linux/netfilter/xt_tcpudp.h).
func ports(p service.Protocol, info []byte, not byte) []Expression {
	const notSource, notDest, notFlags = 1, 2, 4
	u := func(i int) uint16 { return binary.NativeEndian.Uint16(info[i:]) }
	source, dest := &Set{}, &Set{}
	source.addPorts(u(0), u(2))
	dest.addPorts(u(4), u(6))
	all := append(protocolIs(protocolNumbers[p], false),
		portLoad(0), Lookup{In: source, From: 1, Not: not&notSource != 0}, portLoad(2), Lookup{In: dest, From: 1, Not: not&notDest != 0})
	if p != service.TCP {
		return all
	}
	if info[8] != 0 {
		all = append(all, Chance{Name: "match tcp"}) // for an option
	}
	return append(all, masked(flagsLoad(), info[9:10], info[10:11], not&notFlags != 0)...)
}

// multiport translates struct xt_multiport_v1.
func multiport(info []byte) []Expression {
	const count, firstPort, firstRange, not, most = 1, 2, 32, 47, 15
	s := &Set{}
	port := func(i int) uint16 { return binary.NativeEndian.Uint16(info[firstPort+2*i:]) }
	for i := 0; i < int(info[count]) && i < most; i++ {
		low, high := port(i), port(i)
		if info[firstRange+i] != 0 && i+1 < most {
			i++
			high = port(i)
		}
		s.addPorts(low, high)
	}
	return []Expression{portLoad(2), Lookup{In: s, From: 1, Not: info[not] != 0}}
}

// types translates struct xt_addrtype_info_v1. A mask has a bit for each type of an address.
func types(info []byte) []Expression {
	const notSource, notDest = 1, 2
	flags := binary.NativeEndian.Uint32(info[4:])
	var all []Expression
	if mask := binary.NativeEndian.Uint16(info); mask != 0 {
		all = append(all, AddrType{true, mask, flags&notSource != 0})
	}
	if mask := binary.NativeEndian.Uint16(info[2:]); mask != 0 {
		all = append(all, AddrType{false, mask, flags&notDest != 0})
	}
	return all
}

// connection translates struct xt_conntrack_mtinfo3 and its forerunners as far as they ask for
// the state or the direction.
func connection(revision uint32, info []byte) []Expression {
	const byState, byDirection, byAlias, flagsAt = 1, 1 << 12, 1 << 13, 146
	flags, not := binary.NativeEndian.Uint16(info[flagsAt:]), binary.NativeEndian.Uint16(info[flagsAt+2:])
	mask := uint32(binary.NativeEndian.Uint16(info[flagsAt+4:]))
	if revision == 1 { // one byte for each mask
		mask &= 0xff
	}
	var all []Expression
	if flags&byDirection != 0 {
		all = ofDirection([]string{map[bool]string{true: "REPLY"}[not&byDirection != 0]}, false)
	}
	if flags&byState != 0 {
		all = append(all, State{mask, not&byState != 0})
	}
	if flags&^(byState|byDirection|byAlias) != 0 {
		all = append(all, Chance{Name: "match conntrack"})
	}
	return all
}

// Saved are chains with their rules, as iptables-save prints them. It implements Tables.
type Saved struct {
	rules map[Chain][]Rule
	// policies are those of built-in chains.
	policies map[Chain]string
	later    Later // nil for none
}

// Later are chains that are added to a Saved when they are asked for. All are without family.
type Later interface {
	Has(Chain) bool
	// Load adds a chain that exists.
	Load(Chain, *Saved)
}

// NewSaved returns tables without chains but those of later, which may be nil.
func NewSaved(later Later) *Saved { return &Saved{map[Chain][]Rule{}, map[Chain]string{}, later} }

// Parse reads the output of iptables-save.
func Parse(text string) *Saved {
	t := NewSaved(nil)
	t.Add(text)
	return t
}

// Add adds chains from the output of iptables-save.
func (t *Saved) Add(text string) {
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			name, rest, _ := strings.Cut(line[1:], " ")
			policy, _, _ := strings.Cut(rest, " ")
			c := Chain{Table: table, Name: name}
			t.rules[c], t.policies[c] = nil, policy
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			t.Append(Chain{Table: table, Name: name}, rule)
		}
	}
}

// Append adds rules to a chain, which it creates if necessary.
func (t *Saved) Append(to Chain, rules ...string) {
	all := t.rules[to]
	for _, r := range rules {
		all = append(all, Rule{Text: r})
	}
	t.rules[to] = all
}

// Has reports whether a chain exists.
func (t *Saved) Has(c Chain) bool {
	c.Family = ""
	_, found := t.rules[c]
	return found || t.later != nil && t.later.Has(c)
}

// fetch adds a chain of later.
func (t *Saved) fetch(c Chain) {
	if _, there := t.rules[c]; !there && t.later != nil && t.later.Has(c) {
		t.later.Load(c, t)
	}
}

// List returns the rules of a chain.
func (t *Saved) List(c Chain) []Rule {
	c.Family = ""
	t.fetch(c)
	all := t.rules[c]
	for i := range all {
		if all[i].words == nil {
			t.compile(c.Table, &all[i])
		}
	}
	return all
}

// Texts returns the rules of a chain that Append added.
func (t *Saved) Texts(c Chain) []string {
	c.Family = ""
	t.fetch(c)
	var all []string
	for _, r := range t.rules[c] {
		all = append(all, r.Text)
	}
	return all
}

// Rules implements Tables.
func (t *Saved) Rules(c Chain) ([]Rule, error) { return t.List(c), nil }

// Set implements Tables. Rules of iptables refer to none.
func (t *Saved) Set(Chain, string) (*Set, error) { return &Set{}, nil }

// Bases implements Tables.
func (t *Saved) Bases() []Base {
	var all []Base
	for table, hooks := range builtIn {
		for _, b := range hooks {
			b.Chain = Chain{Table: table, Name: strings.ToUpper(b.Hook.String())}
			if t.Has(b.Chain) {
				b.Drops = t.policies[b.Chain] == "DROP"
				all = append(all, b)
			}
		}
	}
	return all
}

// Base returns a built-in chain.
func (t *Saved) Base(c Chain) Base {
	t.fetch(c)
	return Base{Chain: c, Drops: t.policies[c] == "DROP"}
}

// Remove removes a table, as if the kernel evaluated none of its chains.
func (t *Saved) Remove(table string) {
	for c := range t.rules {
		if c.Table == table {
			delete(t.rules, c)
			delete(t.policies, c)
		}
	}
}

// builtIn are the built-in chains of iptables (kernel: the table's file in net/ipv4/netfilter).
var builtIn = map[string][]Base{
	"raw":    {{Hook: Prerouting, Priority: -300}, {Hook: Output, Priority: -300}},
	"mangle": {{Hook: Prerouting, Priority: -150}, {Hook: Input, Priority: -150}, {Hook: Forward, Priority: -150}, {Hook: Output, Priority: -150}, {Hook: Postrouting, Priority: -150}},
	"nat": {
		{Hook: Prerouting, Priority: dstNATPosition, NAT: true}, {Hook: Output, Priority: dstNATPosition, NAT: true},
		{Hook: Input, Priority: srcNATPosition, NAT: true}, {Hook: Postrouting, Priority: srcNATPosition, NAT: true},
	},
	"filter":   {{Hook: Input}, {Hook: Forward}, {Hook: Output}},
	"security": {{Hook: Input, Priority: 50}, {Hook: Forward, Priority: 50}, {Hook: Output, Priority: 50}},
}

// Legacy is a table of iptables-legacy.
type Legacy struct {
	Family service.Family
	Name   string
	// Tables are what iptables-legacy-save prints of it, nil if it cannot be read.
	Tables *Saved
}

func (l *Legacy) command() string {
	if l.Family == service.IPv6 {
		return "ip6tables-legacy-save -t " + l.Name
	}
	return "iptables-legacy-save -t " + l.Name
}

// legacyFamily is the family of the chains of a Legacy.
const legacyFamily = "iptables-legacy"

func (l *Legacy) stations() []*station {
	look := func(Place) string { return l.command() }
	var all []*station
	if l.Tables != nil {
		for _, b := range l.Tables.Bases() {
			b.Family = legacyFamily
			all = append(all, newStation(l.Tables, b, look))
		}
		return all
	}
	for _, b := range builtIn[l.Name] {
		b.Chain = Chain{Family: legacyFamily, Table: l.Name, Name: strings.ToUpper(b.Hook.String())}
		s := newStation(nil, b, look)
		s.run = func(*Packet) (Finding, error) {
			return Finding{Does: explain.Passes, Doubts: []Doubt{{Place{Chain: b.Chain}, explain.Drops, "its rules cannot be read without the command iptables-legacy-save"}}}, nil
		}
		all = append(all, s)
	}
	return all
}

// Words returns the arguments of a rule of iptables, without quotation marks.
func (r *Rule) Words() []string { return r.words }

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

// Argument returns the word that follows flag, "" if there is none.
func Argument(words []string, flag string) string {
	for i, w := range words {
		if w == flag && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}
