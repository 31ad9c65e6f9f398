// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

// TestSurplusJumpsGo adds jumps to our chains beside ours. Those that a service proxy
// makes are removed, wherever they are, and reported. Those of others stay.
func TestSurplusJumpsGo(t *testing.T) {
	const comment = `-m comment --comment "kubernetes health check service ports" `
	for name, tc := range map[string]struct {
		in    id
		rule  string
		first bool // before ours
		goes  bool
	}{
		"a second one of ours":        {id{nat, "PREROUTING"}, "-j KUBE-SERVICES", true, true},
		"one of ours with a comment":  {id{filter, "FORWARD"}, comment + "-j KUBE-FORWARD", false, true},
		"the same before ours":        {id{filter, "INPUT"}, comment + newOnly + "-j KUBE-SERVICES", true, true},
		"without our match":           {id{filter, "INPUT"}, "-j KUBE-SERVICES", true, true},
		"of kube-proxy":               {id{filter, "INPUT"}, comment + "-j KUBE-NODEPORTS", true, true},
		"of its mode userspace":       {id{nat, "PREROUTING"}, "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS", true, true},
		"from another chain":          {id{nat, "POSTROUTING"}, "-j KUBE-SERVICES", true, true},
		"with a match of somebody's":  {id{nat, "PREROUTING"}, "-s 192.0.2.1/32 -j KUBE-SERVICES", true, false},
		"to what marks":               {id{nat, "PREROUTING"}, "-j KUBE-MARK-MASQ", true, false},
		"to a chain that is not ours": {id{filter, "INPUT"}, "-j KUBE-FIREWALL", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFake()
			b := newBackend(service.IPv4, k)
			apply(t, b, simple(3))
			before := k.Text()
			k.Tables[filter]["KUBE-FIREWALL"] = nil
			rules := k.Tables[tc.in.table][tc.in.name]
			if tc.first {
				rules = slices.Insert(rules, 0, tc.rule)
			} else {
				rules = append(rules, tc.rule)
			}
			k.Tables[tc.in.table][tc.in.name], k.Dirty = rules, true
			p := apply(t, b, simple(3))
			delete(k.Tables[filter], "KUBE-FIREWALL")
			after := k.Text()
			if tc.goes {
				after = strings.ReplaceAll(after, comment, "")
			}
			if (after == before) != tc.goes {
				t.Errorf("goes %t, want %t:\n%s", !tc.goes, tc.goes, after)
			}
			if reported := strings.Contains(strings.Join(p.Outcome().Drift, "\n"), "foreign: rule"); reported != tc.goes {
				t.Errorf("reported %t, want %t: %q", reported, tc.goes, p.Outcome().Drift)
			}
		})
	}
}
