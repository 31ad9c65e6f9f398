// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"slices"
)

// passTargets let a packet leave a built-in chain unchanged or translated, so that no
// later rule sees it. Targets that drop or reject are not listed: if an operator closes
// a node to everything, no Service may open it again.
var passTargets = []string{"ACCEPT", "RETURN", "DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"}

// passProtocols are the protocols of Services, and all.
var passProtocols = []string{"tcp", "udp", "sctp", "all"}

// passesAll reports whether a rule lets all packets pass, or all packets of a protocol
// that Services use. A jump to another chain does not count: other components insert
// such jumps ahead of ours for good reasons, and are responsible for what those chains
// do.
func passesAll(w []string) bool {
	for len(w) > 1 {
		switch {
		case w[0] == "-j":
			return slices.Contains(passTargets, w[1])
		case w[0] == "-m" && w[1] == "comment", w[0] == "--comment", w[0] == "-p" && slices.Contains(passProtocols, w[1]):
			w = w[2:]
		default:
			return false
		}
	}
	return false
}

// move is a jump of ours that does not receive its packets.
type move struct {
	jump              // as desired
	rule       string // as observed
	shadowedBy string // the rule ahead
}

// misplaced returns those of jumps that are behind a rule that lets all packets pass. Of
// equal rules the last one counts, because the earlier ones are removed.
func (h *observed) misplaced(jumps []jump) []move {
	var all []move
	for _, j := range jumps {
		first, by := "", ""
		for i, l := range h.references {
			if l.bare() != j || first != "" && l.rule != first {
				continue
			}
			first, by = l.rule, h.shadowedBy[i]
		}
		if by != "" {
			all = append(all, move{j, first, by})
		}
	}
	return all
}

func (m move) String() string {
	return fmt.Sprintf("hidden: rule %q of chain %s of table %s stands behind %q, which lets all packets pass",
		m.rule, m.from.name, m.from.table, m.shadowedBy)
}
