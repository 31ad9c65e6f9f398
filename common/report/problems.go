// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"sync/atomic"

	"kubeproxy/common/health"
	"kubeproxy/common/track"
)

// problems shows a sort of problems as a condition.
type problems struct {
	health             *health.Monitor
	tracker            *track.Tracker
	condition, summary string
	shows              func(track.Problem) bool
	// pending means that there is a new one, shown that the condition holds.
	pending, shown atomic.Bool
}

// newProblems returns what shows addresses of Services that are refused, and what cannot
// be used of the own Node and of ServiceCIDRs. Other problems are in the states of Services.
func newProblems(t *track.Tracker, monitor *health.Monitor) []*problems {
	of := func(condition, summary string, shows func(track.Problem) bool) *problems {
		return &problems{health: monitor, tracker: t, condition: condition, summary: summary, shows: shows}
	}
	return []*problems{
		of("refused-addresses", "addresses of Services are refused", func(p track.Problem) bool { return p.Refused }),
		of("service-cidrs", "ServiceCIDRs cannot be used, or not for all addresses", func(p track.Problem) bool { return p.Kind == track.OfServiceCIDR }),
		of("node-object", "the Node cannot be used as it is", func(p track.Problem) bool { return p.Kind == track.OfNode }),
	}
}

func (x *problems) problemFound(p track.Problem) {
	if x.shows(p) {
		x.pending.Store(true)
	}
}

func (x *problems) report() {
	if !x.pending.Swap(false) && !x.shown.Load() {
		return
	}
	var all []string
	for _, p := range x.tracker.Problems() {
		if x.shows(p) {
			where := p.Field
			if p.Kind == track.OfService {
				where = p.Service.String()
			}
			all = append(all, where+": "+p.Message)
		}
	}
	x.shown.Store(len(all) > 0)
	if n := len(all); n > maxNamed {
		all = append(all[:maxNamed:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	text := strings.Join(all, "; ")
	x.health.SetDetailedCondition(x.condition, hint(text, x.summary), text)
}
