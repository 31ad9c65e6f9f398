// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"

	"kubeproxy/common/service"
)

// driftLines bounds what is said about drift.
const driftLines = 20

// drift describes what others did to a table that held h: what would lead
// back to it.
func (b *Backend) drift(t *table, h *installed) []string {
	p := b.compare(t, h.snapshot)
	var lines []string
	for _, m := range p.misfits[:min(len(p.misfits), driftLines)] {
		lines = append(lines, "altered: "+m)
	}
	if len(lines) > 0 {
		return lines
	}
	n := 0
	for _, u := range p.units {
		for _, o := range u.ops {
			if n++; n <= driftLines {
				lines = append(lines, repaired(o, b.family))
			}
		}
	}
	if n > driftLines {
		lines = append(lines, fmt.Sprintf("and %d more", n-driftLines))
	}
	return lines
}

// repaired says what must have happened for o to be needed.
func repaired(o op, f service.Family) string {
	text := o.text(f)
	if rest, missing := strings.CutPrefix(text, "+ "); missing {
		return "missing: " + rest
	}
	return "foreign: " + strings.TrimPrefix(text, "- ")
}
