// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"

	"kubeproxy/common/service"
)

// maxDriftLines bounds the lines of a drift report.
const maxDriftLines = 20

// drift describes what other processes changed in a table that held h, by the steps that
// would restore it.
func (b *Backend) drift(t *table, h *installed) []string {
	p := b.compare(t, h.snapshot)
	var lines []string
	for _, m := range p.incompatible[:min(len(p.incompatible), maxDriftLines)] {
		lines = append(lines, "altered: "+m)
	}
	if len(lines) > 0 {
		return lines
	}
	n := 0
	for _, u := range p.units {
		for _, o := range u.ops {
			if n++; n <= maxDriftLines {
				lines = append(lines, describeDrift(o, b.family))
			}
		}
		for _, c := range u.shared {
			if n++; n <= maxDriftLines {
				lines = append(lines, describeDrift(c.op(), b.family))
			}
		}
	}
	if n > maxDriftLines {
		lines = append(lines, fmt.Sprintf("and %d more", n-maxDriftLines))
	}
	return lines
}

// describeDrift describes the change that made o necessary.
func describeDrift(o op, f service.Family) string {
	text := o.text(f)
	if rest, missing := strings.CutPrefix(text, "+ "); missing {
		return "missing: " + rest
	}
	return "foreign: " + strings.TrimPrefix(text, "- ")
}
