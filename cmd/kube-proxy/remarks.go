// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "sync"

// remarks are what a dataplane says of itself besides the results of rounds, such
// as that it hangs in the middle of one. Each is about a condition.
type remarks struct {
	mu    sync.Mutex
	last  map[string]string // by condition
	to    func(condition, text string)
	moved func()
}

// move passes on that a round gets on.
func (r *remarks) move() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.moved != nil {
		r.moved()
	}
}

// about returns what passes text on, "" when what was said last of the condition is
// over.
func (r *remarks) about(condition string) func(text string) {
	return func(text string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.last == nil {
			r.last = map[string]string{}
		}
		r.last[condition] = text
		if r.to != nil {
			r.to(condition, text)
		}
	}
}

// hear has to told from now on, and of what was said last, and moved called when
// rounds get on. It is called for each backend.
func (r *remarks) hear(to func(condition, text string), moved func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.moved = to, moved
	for condition, text := range r.last {
		if text != "" {
			to(condition, text)
		}
	}
}

// observeRemarks has what dataplanes say of themselves be conditions. The log has one
// line for what begins, not for each figure in it.
func (o *observers) observeRemarks(backends []*backend) {
	for _, b := range backends {
		if b.remarks == nil {
			continue
		}
		begun := map[string]bool{}
		b.remarks.hear(func(condition, text string) {
			o.health.SetCondition(condition, text)
			if text != "" && !begun[condition] {
				o.log.Info("Warning: " + text)
			}
			begun[condition] = text != ""
		}, o.health.Progress)
	}
}
