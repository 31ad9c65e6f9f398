// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
)

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
