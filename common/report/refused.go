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

// refused shows the addresses that Services claim and that the proxy refuses to program.
type refused struct {
	health  *health.Monitor
	tracker *track.Tracker
	// pending means that there is a new one, shown that the condition holds.
	pending, shown atomic.Bool
}

func (x *refused) problemFound(p track.Problem) {
	if p.Refused {
		x.pending.Store(true)
	}
}

// Report implements Reporter.
func (x *refused) Report(Round) {
	if !x.pending.Swap(false) && !x.shown.Load() {
		return
	}
	var all []string
	for _, p := range x.tracker.Problems() {
		if p.Refused {
			all = append(all, p.Service.String()+": "+p.Message)
		}
	}
	x.shown.Store(len(all) > 0)
	if n := len(all); n > maxNamed {
		all = append(all[:maxNamed:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	x.health.SetCondition("refused-addresses", strings.Join(all, "; "))
}
