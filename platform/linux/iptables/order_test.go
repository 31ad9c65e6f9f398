// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// TestJumpsBehindWhatPasses inserts foreign rules ahead of ours. If one lets all packets
// pass, our rule moves ahead of it, the move is reported, and the foreign rule stays.
func TestJumpsBehindWhatPasses(t *testing.T) {
	for name, tc := range map[string]struct {
		in    id
		rule  string
		moves bool
	}{
		"accept":             {id{nat, "PREROUTING"}, "-j ACCEPT", true},
		"return":             {id{nat, "OUTPUT"}, "-j RETURN", true},
		"translate":          {id{nat, "PREROUTING"}, "-p tcp -j DNAT --to-destination :15001", true},
		"with a comment":     {id{filter, "INPUT"}, `-m comment --comment "-j DROP" -j ACCEPT`, true},
		"forward":            {id{filter, "FORWARD"}, "-j ACCEPT", true},
		"masquerade":         {id{nat, "POSTROUTING"}, "-j MASQUERADE", true},
		"drop":               {id{filter, "FORWARD"}, "-j DROP", false},
		"some":               {id{nat, "PREROUTING"}, "-s 192.0.2.0/24 -j ACCEPT", false},
		"known connections":  {id{filter, "INPUT"}, "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", false},
		"another protocol":   {id{filter, "INPUT"}, "-p icmp -j ACCEPT", false},
		"to another chain":   {id{nat, "PREROUTING"}, "-j CNI-HOSTPORT-DNAT", false},
		"that does not end":  {id{nat, "PREROUTING"}, "-j LOG", false},
		"without any effect": {id{nat, "PREROUTING"}, "-p tcp", false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFake()
			b := newBackend(service.IPv4, k)
			apply(t, b, simple(3))
			k.Tables[nat]["CNI-HOSTPORT-DNAT"] = nil
			rules := k.Tables[tc.in.table][tc.in.name]
			k.Tables[tc.in.table][tc.in.name], k.Dirty = slices.Insert(slices.Clone(rules), 0, tc.rule), true
			p := apply(t, b, simple(3))
			got := k.Tables[tc.in.table][tc.in.name]
			want := append([]string{tc.rule}, rules...)
			if tc.moves {
				want = append(slices.Clone(rules), tc.rule)
			}
			if !slices.Equal(got, want) {
				t.Errorf("chain %s is\n%s\nwant\n%s", tc.in.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			line := strings.Join(p.Outcome().Drift, "\n")
			if reported := strings.Contains(line, "hidden: rule") && strings.Contains(line, "-j "+targetOf(packet.Split(tc.rule))); reported != tc.moves {
				t.Errorf("reported %t, want %t: %q", reported, tc.moves, p.Outcome().Drift)
			}
		})
	}
}

// TestSecondJumpBehindWhatPasses has a jump twice, before and behind a rule that lets
// all packets pass. One stays, at the position where it works.
func TestSecondJumpBehindWhatPasses(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	apply(t, b, simple(3))
	const ours, accept = "-j KUBE-SERVICES", "-j ACCEPT"
	k.Tables[nat]["PREROUTING"], k.Dirty = []string{ours, accept, ours}, true
	apply(t, b, simple(3))
	if got := k.Tables[nat]["PREROUTING"]; !slices.Equal(got, []string{ours, accept}) {
		t.Errorf("chain PREROUTING is %q", got)
	}
}
