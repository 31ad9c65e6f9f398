// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestAlteredSets checks that a set that another process made in the place of ours is
// recognized, and that Create replaces it while a rule refers to it.
func TestAlteredSets(t *testing.T) {
	for name, options := range map[string]string{
		"size":     "comment maxelem 7",
		"timeout":  "comment maxelem 1048576 timeout 600",
		"comments": "maxelem 1048576",
		"counters": "comment counters maxelem 1048576",
		"evicts":   "comment forceadd maxelem 1048576",
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(k *Kernel) {
				s := Set{"A", HashIPPort, service.IPv4}
				kit.Must(t, k.Create(s), k.Add(s, members(s)))
				wantAltered(t, k, false)
				setRule(t, "-A")
				run(t, "", "ipset", append([]string{"create", "B", "hash:ip,port"}, strings.Fields(options)...)...)
				run(t, "", "ipset", "swap", "A", "B")
				run(t, "", "ipset", "destroy", "B")
				wantAltered(t, k, true)
				kit.Must(t, k.Create(s))
				wantAltered(t, k, false)
				kit.Must(t, k.Add(s, members(s)), k.Create(s))
				wantList(t, k, s, entries(members(s))...)
				setRule(t, "-D")
			})
		})
	}
}

// wantAltered checks that there is one set, altered or not.
func wantAltered(t *testing.T, k *Kernel, want bool) {
	t.Helper()
	heads, err := k.Headers()
	kit.Must(t, err)
	if len(heads) != 1 || heads[0].Altered != want {
		t.Errorf("heads %+v, want one, altered %t", heads, want)
	}
}

// TestSetsAsMade checks that a set made by Create is not altered, for any type and
// family.
func TestSetsAsMade(t *testing.T) {
	for _, kind := range []Type{HashIP, HashIPPort, HashIPPortNet} {
		for _, f := range service.Families {
			alone(t, func(k *Kernel) {
				s := Set{"A", kind, f}
				kit.Must(t, k.Create(s), k.Add(s, members(s)))
				wantAltered(t, k, false)
			})
		}
	}
}
