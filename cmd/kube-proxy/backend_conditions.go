// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "sync"

// backendConditions are what a dataplane says of itself besides the results of rounds, such
// as that it hangs in the middle of one. Each is about a condition.
type backendConditions struct {
	mu         sync.Mutex
	last       map[string]string // by condition
	report     func(condition, text string)
	onProgress func()
}

// reportProgress passes on that a round gets on.
func (r *backendConditions) reportProgress() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.onProgress != nil {
		r.onProgress()
	}
}

// setter returns what passes text on, "" when what was said last of the condition is
// over.
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

// subscribe has to told from now on, and of what was said last, and moved called when
// rounds get on. It is called for each backend.
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

// observeConditions has what dataplanes say of themselves be conditions. The log has one
// line for what begins, not for each figure in it.
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
