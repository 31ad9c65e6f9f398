// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package xtables simulates the iptables rules and ipsets of a kernel, and traces packets
// through them. Tests of the backends that program them pass in rules as text and read
// the outcome of packets. It knows no backend.
package xtables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/test/backendtest"
)

// words splits a rule into its arguments. Those with spaces are quoted.
func words(rule string) []string {
	var all []string
	for i, part := range strings.Split(rule, "\"") {
		if i%2 == 1 {
			all = append(all, part)
			continue
		}
		all = append(all, strings.Fields(part)...)
	}
	return all
}

// argument returns the word that follows flag, "" if there is none.
func argument(words []string, flag string) string {
	for i, w := range words[:max(len(words)-1, 0)] {
		if w == flag {
			return words[i+1]
		}
	}
	return ""
}

// target returns the target of a rule.
func target(words []string) string {
	if to := argument(words, "-j"); to != "" {
		return to
	}
	return argument(words, "-g")
}

// Sets are ipsets of both families. They change element by element, see ipset(8).
type Sets struct {
	ByName map[string]*SetContents
	// Refuse, if set, may refuse a step before it is done: "add", "del", "create",
	// "destroy", "list" or "heads". It also receives the name of the set.
	Refuse func(step, set string) error
	// Steps counts the completed steps, by name.
	Steps map[string]int
	users []*System
	done  []string // see Changes
}

// SetContents is a set with its elements, and their comments.
type SetContents struct {
	ipset.Set
	Members map[ipset.Entry]string
	Altered bool // see ipset.Header
}

// NewSets returns a kernel without sets.
func NewSets() *Sets { return &Sets{ByName: map[string]*SetContents{}, Steps: map[string]int{}} }

func (k *Sets) step(step, set string) error {
	if k.Refuse != nil {
		if err := k.Refuse(step, set); err != nil {
			return fmt.Errorf("%s ipset %s: %w", step, set, err)
		}
	}
	k.Steps[step]++
	return nil
}

// find returns s with its elements.
func (k *Sets) find(s ipset.Set) (*SetContents, error) {
	h := k.ByName[s.Name]
	switch {
	case h == nil:
		return nil, fmt.Errorf("ipset %s: %w", s.Name, ipset.ErrMissing)
	case h.Set != s:
		return nil, fmt.Errorf("ipset %s: %w", s.Name, ipset.ErrTypeMismatch)
	}
	return h, nil
}

// Create creates a set. If one of that type exists, Create succeeds, and empties it if it
// was Altered.
func (k *Sets) Create(s ipset.Set) error {
	if err := k.step("create", s.Name); err != nil {
		return err
	}
	if h, err := k.find(s); !errors.Is(err, ipset.ErrMissing) && (err != nil || !h.Altered) {
		return err
	}
	k.ByName[s.Name] = &SetContents{Set: s, Members: map[ipset.Entry]string{}}
	k.done = append(k.done, "+ ipset "+s.Name)
	return nil
}

// Destroy removes a set that no rule refers to. A missing set is a success.
func (k *Sets) Destroy(name string) error {
	if err := k.step("destroy", name); err != nil {
		return err
	}
	if slices.ContainsFunc(k.users, func(u *System) bool { return u.refers(name) }) {
		return fmt.Errorf("ipset %s: a rule refers to it: %w", name, errRefused)
	}
	delete(k.ByName, name)
	return nil
}

// Add adds elements.
func (k *Sets) Add(s ipset.Set, members []ipset.Member) error {
	for _, m := range members {
		h, err := k.find(s)
		if err == nil {
			err = fits(s, m.Entry)
		}
		if err == nil {
			err = k.step("add", s.Name)
		}
		if err != nil {
			return err
		}
		k.noteMember(h, m)
		h.Members[m.Entry] = m.Comment
	}
	return nil
}

// Del removes elements. Missing elements are a success.
func (k *Sets) Del(s ipset.Set, entries []ipset.Entry) error {
	for _, e := range entries {
		h, err := k.find(s)
		if err == nil {
			err = fits(s, e)
		}
		if err == nil {
			err = k.step("del", s.Name)
		}
		if err != nil {
			return err
		}
		if _, found := h.Members[e]; found {
			k.done = append(k.done, fmt.Sprintf("- element %s of ipset %s", s.Text(e), s.Name))
		}
		delete(h.Members, e)
	}
	return nil
}

func (k *Sets) noteMember(h *SetContents, m ipset.Member) {
	switch comment, found := h.Members[m.Entry]; {
	case !found:
		k.done = append(k.done, fmt.Sprintf("+ element %s of ipset %s", h.Text(m.Entry), h.Name))
	case comment != m.Comment:
		k.done = append(k.done, fmt.Sprintf("~ element %s of ipset %s has comment %q", h.Text(m.Entry), h.Name, m.Comment))
	}
}

// Changes returns what was changed since the call before, as a plan prints it.
func (k *Sets) Changes() []string {
	all := k.done
	k.done = nil
	return all
}

// fits refuses elements that a kernel would refuse or store in another form.
func fits(s ipset.Set, e ipset.Entry) error {
	port, net := s.Type != ipset.HashIP, s.Type == ipset.HashIPPortNet
	switch {
	case service.FamilyOf(e.Addr) != s.Family, e.Addr.IsUnspecified():
	case (e.Port != 0) != port, !port && e.Protocol != 0, e.Net.IsValid() != net:
	case net && (service.FamilyOf(e.Net.Addr()) != s.Family || e.Net.Bits() == 0 || e.Net != e.Net.Masked()):
	default:
		return nil
	}
	return fmt.Errorf("ipset %s of type %s: %v: %w", s.Name, s.Type, e, errRefused)
}

// Members returns the elements with their comments.
func (k *Sets) Members(s ipset.Set) ([]ipset.Member, error) {
	if err := k.step("list", s.Name); err != nil {
		return nil, err
	}
	h, err := k.find(s)
	if err != nil {
		return nil, err
	}
	var members []ipset.Member
	for _, e := range slices.SortedFunc(maps.Keys(h.Members), ipset.Entry.Compare) {
		members = append(members, ipset.Member{Entry: e, Comment: h.Members[e]})
	}
	return members, nil
}

// Headers returns all sets without their elements.
func (k *Sets) Headers() ([]ipset.Header, error) {
	if err := k.step("heads", ""); err != nil {
		return nil, err
	}
	var all []ipset.Header
	for _, n := range slices.Sorted(maps.Keys(k.ByName)) {
		h := k.ByName[n]
		all = append(all, ipset.Header{Name: n, Type: h.Type, Family: h.Family, Entries: len(h.Members), Altered: h.Altered})
	}
	return all, nil
}

// Text returns the content of all sets, a line each.
func (k *Sets) Text() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(k.ByName)) {
		h := k.ByName[n]
		fmt.Fprintf(&b, "%s:", n)
		for _, e := range slices.SortedFunc(maps.Keys(h.Members), ipset.Entry.Compare) {
			b.WriteString(" " + h.Text(e))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Close does nothing.
func (k *Sets) Close() error { return nil }

// has returns whether a set contains the element formed by fields of a packet.
func (k *Sets) has(name string, fields []string, p *Tracer) bool {
	h := k.ByName[name]
	e := ipset.Entry{Addr: p.Conn.To.Addr()}
	var from netip.Addr
	switch {
	case h == nil:
		panic("no ipset " + name)
	case slices.Equal(fields, []string{"dst"}) && h.Type == ipset.HashIP:
	case slices.Equal(fields, []string{"dst", "dst", "src"}) && h.Type == ipset.HashIPPortNet:
		from = p.Conn.From
		fallthrough
	case slices.Equal(fields, []string{"dst", "dst"}) && h.Type == ipset.HashIPPort:
		e.Protocol, e.Port = p.Conn.Protocol, p.Conn.To.Port()
	default:
		panic(fmt.Sprintf("ipset %s of type %s is asked for %q", name, h.Type, fields))
	}
	if !from.IsValid() {
		_, found := h.Members[e]
		return found
	}
	for m := range h.Members {
		net := m.Net
		if m.Net = (netip.Prefix{}); m == e && net.Contains(from) {
			return true
		}
	}
	return false
}

// System is iptables for one family. Like a real one, it refuses references to missing
// chains and sets, and the removal of those in use. It applies each table in one step,
// see iptables-restore(8).
type System struct {
	Tables map[string]Table
	// Sets are those that rules may refer to, nil for none.
	Sets          *Sets
	Dirty         bool     // another program changed something
	DormantTables []string // tables that no packet passes
	RouteLocalnet bool     // packets to loopback addresses may be routed
	LocalnetErr   error    // the error of changing that
	// RecentClients are the clients of each list of the match recent, and for how long they
	// have been there.
	RecentClients map[string]map[netip.Addr]time.Duration
	// TCPBeLiberal is nf_conntrack_tcp_be_liberal, see
	// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
	TCPBeLiberal     bool
	Restores         int
	Saves            int
	Texts            []string
	done             []string // see Changes
	InterruptedSaves int      // listings that concurrent changes interrupt
	// Piece is what PieceRules returns.
	Piece int
	// Refuse, if set, may refuse the text for a table before anything is done.
	Refuse func(text string) error
}

// Table holds the rules of chains by name.
type Table map[string][]string

// New returns a system with empty tables.
func New(s *Sets) *System {
	k := &System{Sets: s, Tables: map[string]Table{
		"nat":    {"PREROUTING": nil, "INPUT": nil, "OUTPUT": nil, "POSTROUTING": nil},
		"filter": {"INPUT": nil, "FORWARD": nil, "OUTPUT": nil},
	}}
	if s != nil {
		s.users = append(s.users, k)
		k.Tables["mangle"] = Table{"PREROUTING": nil, "INPUT": nil, "FORWARD": nil, "OUTPUT": nil, "POSTROUTING": nil}
	}
	return k
}

// PieceRules returns how many rules of new chains one text should have.
func (k *System) PieceRules() int { return k.Piece }

// Restore applies text as iptables-restore --noflush does.
func (k *System) Restore(_ context.Context, text string) error {
	k.Restores++
	k.Texts = append(k.Texts, text)
	for part := range strings.SplitSeq(strings.TrimSpace(text), "COMMIT") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if k.Refuse != nil {
			if err := k.Refuse(part); err != nil {
				return err
			}
		}
		if err := k.restore(part); err != nil {
			return err
		}
	}
	return nil
}

// restore applies the part for one table.
func (k *System) restore(part string) error {
	head, body, _ := strings.Cut(part, "\n")
	name := strings.TrimPrefix(head, "*")
	next := Table{}
	for n, rules := range k.Tables[name] {
		next[n] = slices.Clone(rules)
	}
	for line := range strings.Lines(body) {
		if err := next.do(strings.TrimSpace(line)); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	if err := next.check(k.Sets); err != nil {
		return err
	}
	k.Tables[name] = next
	k.done = append(k.done, changes(name, body)...)
	return nil
}

// Changes returns what Restore changed since the call before, as a plan prints it.
func (k *System) Changes() []string {
	all := k.done
	k.done = nil
	return all
}

// changes returns what the text for a table does: it writes or deletes each chain that it
// declares, and adds and deletes rules of others.
func changes(table, text string) []string {
	rules, gone := map[string]int{}, map[string]bool{}
	var all []string
	for line := range strings.Lines(text) {
		if name, found := strings.CutPrefix(line, ":"); found {
			name, _, _ = strings.Cut(name, " ")
			rules[name] = 0
			continue
		}
		w := strings.SplitN(strings.TrimSpace(line), " ", 3)
		switch w[0] {
		case "-A":
			rules[w[1]]++
		case "-X":
			gone[w[1]] = true
		case "-I":
			_, rule, _ := strings.Cut(w[2], " ")
			all = append(all, fmt.Sprintf("+ %s rule in %s: %s", table, w[1], rule))
		case "-D":
			all = append(all, fmt.Sprintf("- %s rule in %s: %s", table, w[1], w[2]))
		}
	}
	for name, n := range rules {
		if gone[name] {
			all = append(all, fmt.Sprintf("- %s chain %s", table, name))
		} else {
			all = append(all, fmt.Sprintf("+ %s chain %s (rules: %d)", table, name, n))
		}
	}
	return all
}

var errRefused = errors.New("refused")

func (t Table) do(line string) error {
	if name, found := strings.CutPrefix(line, ":"); found {
		name, _, _ = strings.Cut(name, " ")
		t[name] = nil
		return nil
	}
	w := strings.SplitN(line, " ", 3)
	name := w[1]
	rules, found := t[name]
	switch {
	case !found, len(name) > 28:
		return errRefused
	case w[0] == "-A":
		t[name] = append(rules, w[2])
	case w[0] == "-I":
		t[name] = append([]string{strings.TrimPrefix(w[2], "1 ")}, rules...)
	case w[0] == "-D":
		i := slices.Index(rules, w[2])
		if i < 0 {
			return errRefused
		}
		t[name] = slices.Delete(rules, i, i+1)
	case w[0] == "-X" && len(rules) == 0:
		delete(t, name)
	default:
		return errRefused
	}
	return nil
}

// check returns an error if a rule refers to something that does not exist.
func (t Table) check(sets *Sets) error {
	targets := []string{"ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "DNAT", "MASQUERADE"}
	for name, rules := range t {
		for _, r := range rules {
			w := words(r)
			to := target(w)
			if _, chain := t[to]; !chain && to != "" && !slices.Contains(targets, to) { // a rule without a target only counts
				return fmt.Errorf("chain %s: %q: no chain %s: %w", name, r, to, errRefused)
			}
			if set := argument(w, "--match-set"); set != "" && (sets == nil || sets.ByName[set] == nil) {
				return fmt.Errorf("chain %s: %q: no ipset %s: %w", name, r, set, errRefused)
			}
		}
	}
	return nil
}

// refers returns whether a rule refers to a set.
func (k *System) refers(set string) bool {
	for _, t := range k.Tables {
		for _, rules := range t {
			if slices.ContainsFunc(rules, func(r string) bool { return argument(words(r), "--match-set") == set }) {
				return true
			}
		}
	}
	return false
}

// Save returns the output of iptables-save.
func (k *System) Save(context.Context) (string, error) {
	k.Saves++
	k.Dirty = false
	if k.InterruptedSaves > 0 {
		k.InterruptedSaves--
		return strings.ReplaceAll(k.Text(), ":KUBE-SERVICES - [0:0]\n", ":KUBE-SERVICES - [0:0]\n:KUBE-SERVICES - [0:0]\n"), nil
	}
	return k.Text(), nil
}

// Text returns the content of all tables.
func (k *System) Text() string {
	var b strings.Builder
	for _, table := range []string{"nat", "filter", "mangle"} {
		if k.Tables[table] == nil {
			continue
		}
		fmt.Fprintf(&b, "*%s\n", table)
		for _, n := range slices.Sorted(maps.Keys(k.Tables[table])) {
			fmt.Fprintf(&b, ":%s - [0:0]\n", n)
		}
		for _, n := range slices.Sorted(maps.Keys(k.Tables[table])) {
			for _, r := range k.Tables[table][n] {
				fmt.Fprintf(&b, "-A %s %s\n", n, r)
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// Touched returns whether another program changed something since Save.
func (k *System) Touched(context.Context) (bool, error) { return k.Dirty, nil }

// Recent returns the clients of a list.
func (k *System) Recent(list string) (map[netip.Addr]time.Duration, error) {
	return k.RecentClients[list], nil
}

// Liberal returns TCPBeLiberal.
func (k *System) Liberal() bool { return k.TCPBeLiberal }

// Dormant lists tables that no packet passes.
func (k *System) Dormant() ([]string, error) { return k.DormantTables, nil }

// SavedTables implements iptables.Driver.
func (k *System) SavedTables() []string { return nil }

// Activate lets packets pass a table again.
func (k *System) Activate(table string) error {
	k.DormantTables = slices.DeleteFunc(k.DormantTables, func(t string) bool { return t == table })
	return nil
}

// RouteLocalnetEnabled returns whether packets to loopback addresses may be routed.
func (k *System) RouteLocalnetEnabled() (bool, error) {
	if k.RouteLocalnet {
		return true, nil
	}
	return false, k.LocalnetErr
}

// EnableRouteLocalnet allows that, unless LocalnetErr is set.
func (k *System) EnableRouteLocalnet() error {
	k.RouteLocalnet = k.RouteLocalnet || k.LocalnetErr == nil
	return k.LocalnetErr
}

// DisableRouteLocalnet disallows it.
func (k *System) DisableRouteLocalnet() error {
	k.RouteLocalnet = false
	return nil
}

// Watch waits for ctx to end.
func (k *System) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// Suspect implements iptables.Driver. Nobody is known.
func (k *System) Suspect() string { return "" }

// Close implements iptables.Driver.
func (k *System) Close() {}

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
