// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import "sync"

// DataplaneConditions carries the conditions that a dataplane reports between the results
// of rounds, such as a round that hangs.
type DataplaneConditions struct {
	mu         sync.Mutex
	last       map[string]string // by condition
	report     func(condition, text string)
	onProgress func()
}

// ReportProgress reports that a round makes progress.
func (r *DataplaneConditions) ReportProgress() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.onProgress != nil {
		r.onProgress()
	}
}

// Setter returns a function that reports a condition. An empty text clears it.
func (r *DataplaneConditions) Setter(condition string) func(text string) {
	return func(text string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.last == nil {
			r.last = map[string]string{}
		}
		r.last[condition] = text
		if r.report != nil {
			r.report(condition, text)
		}
	}
}

// Subscribe sends conditions to report and progress of rounds to onProgress from now on.
// It first reports the conditions that are already set. It is called once for each
// backend.
func (r *DataplaneConditions) Subscribe(report func(condition, text string), onProgress func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report, r.onProgress = report, onProgress
	for condition, text := range r.last {
		if text != "" {
			report(condition, text)
		}
	}
}

// ObserveDataplane shows what c carries as conditions. It logs the start of a condition,
// not every new figure in its text.
func (r *Reports) ObserveDataplane(c *DataplaneConditions) {
	active := map[string]bool{}
	c.Subscribe(func(condition, text string) {
		r.Health.SetCondition(condition, text)
		if text != "" && !active[condition] {
			r.log.Info("Warning: " + text)
		}
		active[condition] = text != ""
	}, r.Health.Progress)
}
