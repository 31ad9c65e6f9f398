// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "sync"

// backendConditions carries the conditions that a dataplane reports between the results
// of rounds, such as a round that hangs.
type backendConditions struct {
	mu         sync.Mutex
	last       map[string]string // by condition
	report     func(condition, text string)
	onProgress func()
}

// reportProgress reports that a round makes progress.
func (r *backendConditions) reportProgress() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.onProgress != nil {
		r.onProgress()
	}
}

// setter returns a function that reports a condition. An empty text clears it.
func (r *backendConditions) setter(condition string) func(text string) {
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

// subscribe sends conditions to report and progress of rounds to onProgress from now on.
// It first reports the conditions that are already set. It is called once for each
// backend.
func (r *backendConditions) subscribe(report func(condition, text string), onProgress func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report, r.onProgress = report, onProgress
	for condition, text := range r.last {
		if text != "" {
			report(condition, text)
		}
	}
}

// observeConditions shows what backends report as conditions. It logs the start of a
// condition, not every new figure in its text.
func (o *statusReporter) observeConditions(backends []*backend) {
	for _, b := range backends {
		if b.conditions == nil {
			continue
		}
		active := map[string]bool{}
		b.conditions.subscribe(func(condition, text string) {
			o.health.SetCondition(condition, text)
			if text != "" && !active[condition] {
				o.log.Info("Warning: " + text)
			}
			active[condition] = text != ""
		}, o.health.Progress)
	}
}
