// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "sync"

// remarks are what a dataplane says of itself besides the results of rounds, such
// as that it hangs in the middle of one.
type remarks struct {
	mu    sync.Mutex
	last  string
	to    func(text string)
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

// say passes text on, "" when what was said last is over.
func (r *remarks) say(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = text
	if r.to != nil {
		r.to(text)
	}
}

// hear has to told from now on, and of what was said last, and moved called when
// rounds get on. It is called for each backend.
func (r *remarks) hear(to func(text string), moved func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to, r.moved = to, moved
	if r.last != "" {
		to(r.last)
	}
}

// observeRemarks has what dataplanes say of themselves be a condition.
func (o *observers) observeRemarks(backends []*backend) {
	for _, b := range backends {
		if b.remarks == nil {
			continue
		}
		b.remarks.hear(func(text string) {
			o.health.SetCondition("dataplane", text)
			if text != "" {
				o.log.Info("Warning: " + text)
			}
		}, o.health.Progress)
	}
}
