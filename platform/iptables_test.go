// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

var iptablesOptions = iptables.Options{MasqueradeBit: 14, LocalhostNodePorts: true, DropInvalid: true}

func renderIPTables(t *testing.T, want *service.Snapshot) []byte {
	t.Helper()
	all, _ := iptables.Render(want, iptablesOptions)
	return []byte(all.String())
}

// writeIPTables writes the chains that are not in the skeleton or differ there: what a
// cluster and its node add to it.
func writeIPTables(_ *testing.T, want *service.Snapshot, _ scenarioOptions) string {
	return writeChains(want, func(f service.Family, s *service.Snapshot) iptables.Tables {
		return iptables.Document(f, s, iptablesOptions)
	})
}

func writeChains(want *service.Snapshot, document func(service.Family, *service.Snapshot) iptables.Tables) string {
	var b strings.Builder
	for _, f := range service.Families {
		writeAdded(&b, f, document(f, emptySnapshot), document(f, want))
	}
	return orSkeletonOnly(&b)
}

// writeAdded writes the chains of t that are not in skeleton or differ there.
func writeAdded(b *strings.Builder, f service.Family, skeleton, t iptables.Tables) {
	for i, table := range t.Tables {
		for _, c := range changedChains(skeleton.Tables[i], table) {
			writeLines(b, f.String()+" "+table.Name+" "+c.Name, c.Rules)
		}
	}
}

// changedChains returns the chains of t that are not in skeleton or differ there.
func changedChains(skeleton, t iptables.Table) []iptables.Chain {
	return slices.DeleteFunc(slices.Clone(t.Chains), func(c iptables.Chain) bool {
		return slices.ContainsFunc(skeleton.Chains, func(s iptables.Chain) bool { return s.Name == c.Name && slices.Equal(s.Rules, c.Rules) })
	})
}
