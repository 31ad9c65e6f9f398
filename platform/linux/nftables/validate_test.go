// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// TestVerdictMapsDoNotNest follows every verdict of random tables. If one led to another
// verdict map, the validation in the kernel would take quadratic time.
func TestVerdictMapsDoNotNest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := &fake{family: w.Family}
		apply(t, &Backend{family: w.Family, options: Options{MasqueradeBit: 14}, driver: k}, service.New(1, w.Node(), w.Ports()))
		for name, s := range k.table.sets {
			for _, e := range s.elements {
				if asked := k.table.nestedVerdictMap(e.verdict.chain); asked != "" {
					t.Fatalf("map %s leads to chain %s, which asks map %s", name, e.verdict.chain, asked)
				}
			}
		}
	})
}

// nestedVerdictMap returns a verdict map that a chain, or one it leads to, looks up.
func (t *fakeTable) nestedVerdictMap(name string) string {
	c := t.chains[name]
	if c == nil {
		return ""
	}
	for _, s := range slices.Concat(c.rules...) {
		asked := ""
		switch s := s.(type) {
		case dispatch:
			asked = s.in.name
		case verdict:
			asked = t.nestedVerdictMap(s.chain)
		}
		if asked != "" {
			return asked
		}
	}
	return ""
}
