// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package walk follows the first packet of a connection through rules of iptables. The
// output of iptables-save and a packet go in. The chains and rules that the packet meets,
// and the possible verdicts, come out. Where a rule matches at random, both cases are
// followed. The package knows no chain of kube-proxy. It asks a Node for what only the
// node knows.
package walk

import "strings"

// Chain identifies a chain.
type Chain struct{ Table, Name string }

// Rule is a rule of a chain.
type Rule struct {
	Text  string // as iptables-save prints it, after the name of the chain
	words []string
}

// Tables are chains with their rules.
type Tables struct {
	rules map[Chain][]*Rule
	// policies are those of built-in chains.
	policies map[Chain]string
}

// NewTables returns tables without chains.
func NewTables() *Tables { return &Tables{map[Chain][]*Rule{}, map[Chain]string{}} }

// Parse reads the output of iptables-save.
func Parse(text string) *Tables {
	t := NewTables()
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"):
			name, rest, _ := strings.Cut(line[1:], " ")
			policy, _, _ := strings.Cut(rest, " ")
			t.rules[Chain{table, name}], t.policies[Chain{table, name}] = nil, policy
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			t.Append(Chain{table, name}, rule)
		}
	}
	return t
}

// Append adds rules to a chain, which it creates if necessary.
func (t *Tables) Append(to Chain, rules ...string) {
	all := t.rules[to]
	for _, r := range rules {
		all = append(all, &Rule{Text: strings.Clone(r)})
	}
	t.rules[to] = all
}

// Has reports whether a chain exists.
func (t *Tables) Has(c Chain) bool {
	_, found := t.rules[c]
	return found
}

// Rules returns the rules of a chain.
func (t *Tables) Rules(c Chain) []*Rule { return t.rules[c] }

// Remove removes a table, as if the kernel evaluated none of its chains.
func (t *Tables) Remove(table string) {
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
