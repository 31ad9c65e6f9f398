// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"sync"
)

// DataplaneConditions carries the conditions that a dataplane reports between the results
// of rounds, such as a round that hangs. It keeps them until there is a subscriber.
type DataplaneConditions struct {
	mu         sync.Mutex
	last       map[string]dataplaneCondition // by name
	report     func(name string, c dataplaneCondition)
	onProgress func()
}

// dataplaneCondition describes a fault: text without names of Services and clients,
// detail with them if there are any. Both are empty without a fault.
type dataplaneCondition struct{ text, detail string }

// ReportProgress reports that a round makes progress.
func (r *DataplaneConditions) ReportProgress() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.onProgress != nil {
		r.onProgress()
	}
}

// Setter returns a function that reports a condition. An empty text clears it.
func (r *DataplaneConditions) Setter(name string) func(text string) {
	return func(text string) { r.set(name, dataplaneCondition{text: text}) }
}

// DetailedSetter is Setter with a second text, which may name Services and clients.
func (r *DataplaneConditions) DetailedSetter(name string) func(text, detail string) {
	return func(text, detail string) { r.set(name, dataplaneCondition{text, detail}) }
}

func (r *DataplaneConditions) set(name string, c dataplaneCondition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]dataplaneCondition{}
	}
	r.last[name] = c
	if r.report != nil {
		r.report(name, c)
	}
}

// subscribe sends conditions to report and progress of rounds to onProgress from now on.
// It first reports the conditions that are already set.
func (r *DataplaneConditions) subscribe(report func(name string, c dataplaneCondition), onProgress func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report, r.onProgress = report, onProgress
	for name, c := range r.last {
		if c.text != "" {
			report(name, c)
		}
	}
}

// ObserveDataplane shows what from carries as conditions. It logs the start of a
// condition and each detail, not every new figure in a text.
func (r *Reports) ObserveDataplane(from *DataplaneConditions) {
	active := map[string]bool{}
	from.subscribe(func(name string, c dataplaneCondition) {
		r.Health.SetDetailedCondition(name, c.text, cmp.Or(c.detail, c.text))
		if c.text != "" && (c.detail != "" || !active[name]) {
			r.log.Info("Warning: " + cmp.Or(c.detail, c.text))
		}
		active[name] = c.text != ""
	}, r.Health.Progress)
}
