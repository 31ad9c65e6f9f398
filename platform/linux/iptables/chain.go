// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"crypto/sha256"
	"strings"
)

// The tables that hold our chains.
const (
	nat      = "nat"
	filter   = "filter"
	mangle   = "mangle"
	rawTable = "raw"
)

var tables = []string{nat, filter}

// id identifies a chain.
type id struct{ table, name string }

func (i id) compare(j id) int {
	return cmp.Or(-cmp.Compare(i.table, j.table), cmp.Compare(i.name, j.name))
}

// chain is a chain with its rules. Each rule is what iptables-save prints after the name
// of the chain.
type chain struct {
	id
	rules []string
}

// sum is a checksum of the rules of a chain.
type sum struct {
	hash  [16]byte
	rules int
}

// sum is equal for chains that are equal to iptables, whatever their quotation marks
// are.
func (c chain) sum() sum {
	h := sha256.New()
	for _, r := range c.rules {
		h.Write([]byte(unquoted(r)))
		h.Write([]byte{'\n'})
	}
	return sum{[16]byte(h.Sum(nil)), len(c.rules)}
}

// unquoted returns r without quotation marks, with a separator that no argument
// contains.
func unquoted(r string) string {
	if !strings.Contains(r, "\"") {
		return strings.ReplaceAll(r, " ", "\x00")
	}
	return strings.Join(splitRule(r), "\x00")
}

// splitRule splits a rule into its arguments.
func splitRule(r string) []string {
	var all []string
	var b strings.Builder
	quoted, begun := false, false
	for i := 0; i < len(r); i++ {
		switch c := r[i]; {
		case c == '\\' && quoted && i+1 < len(r):
			i++
			b.WriteByte(r[i])
		case c == '"':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				all = append(all, b.String())
			}
			b.Reset()
			begun = false
		default:
			begun = true
			b.WriteByte(c)
		}
	}
	if begun {
		all = append(all, b.String())
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
