// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"slices"
)

// passTargets let a packet leave a chain of the system as it is or translated, so that
// no rule behind them sees it. Those that drop and refuse are not among them: who
// closes a node to everything is to have no Service open it again.
var passTargets = []string{"ACCEPT", "RETURN", "DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"}

// passProtocols are those of Services, and all of them.
var passProtocols = []string{"tcp", "udp", "sctp", "all"}

// passesAll reports that a rule lets all packets pass, or all of a protocol that
// Services have. A rule that leads to another chain does not count: others put such
// ahead of ours with good reason, and it is up to them what they do there.
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

// move is a jump of ours that does not get the packets that it is for.
type move struct {
	jump              // as it should be
	rule       string // as it stands there
	shadowedBy string // the rule ahead
}

// misplaced returns those of jumps that stand behind a rule that lets all packets
// pass. Of rules that are the same, the last one counts, as the first ones are removed.
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
