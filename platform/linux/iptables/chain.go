// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"crypto/sha256"
	"strings"

	"kubeproxy/platform/linux/iptables/walk"
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
	return strings.Join(walk.Split(r), "\x00")
}
