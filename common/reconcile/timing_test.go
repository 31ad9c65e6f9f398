// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"
	"time"
)

// A new Timing applies at once, even during a long pause of the old one.
func TestSetTiming(t *testing.T) {
	brisk := Timing{MinInterval: time.Second, Resync: 20 * time.Second, Retry: Backoff{First: time.Second, Max: 2 * time.Second}}
	for name, tt := range map[string]struct {
		set   func(*harness)
		story func(*harness)
		want  []time.Duration
	}{
		"sooner resyncs": {nil, func(b *harness) {
			b.pass(5 * time.Second)
			b.SetTiming(brisk)
			b.pass(50 * time.Second)
		}, []time.Duration{0, 5 * time.Second, 25 * time.Second, 45 * time.Second}},
		"out of a long least interval": {func(b *harness) { b.MinInterval = time.Hour }, func(b *harness) {
			b.after(time.Second)
			b.SetTiming(brisk)
			b.after(500 * ms)
			b.pass(10 * time.Second)
		}, []time.Duration{0, time.Second, 2 * time.Second}},
		"out of a long pause after a failure": {func(b *harness) {
			b.Retry = Backoff{First: time.Hour, Max: time.Hour}
			b.applies = []error{errRefused, errRefused, errRefused}
		}, func(b *harness) {
			b.pass(10 * time.Second)
			b.SetTiming(brisk)
			b.pass(4 * time.Second)
		}, []time.Duration{0, 10 * time.Second, 12 * time.Second, 14 * time.Second}},
		"the latest of two": {nil, func(b *harness) {
			b.applyTime = time.Second
			b.Kick()
			b.pass(1500 * ms)
			b.SetTiming(Timing{MinInterval: time.Hour, Resync: time.Hour})
			b.SetTiming(brisk)
			b.pass(22 * time.Second)
		}, []time.Duration{0, time.Second, 2 * time.Second, 22 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.set, func(b *harness) {
				tt.story(b)
				b.at(tt.want...)
			})
		})
	}
}

// resyncBackend records calls of SetResync.
type resyncBackend struct {
	Backend
	resyncs []time.Duration
}

func (r *resyncBackend) SetResync(d time.Duration) { r.resyncs = append(r.resyncs, d) }

// The Backend gets the longest pause.
func TestSetResync(t *testing.T) {
	p := &resyncBackend{}
	run(t, func(b *harness) {
		p.Backend = b.Backend
		b.Backend = p
	}, func(b *harness) {
		b.pass(time.Second)
		b.SetTiming(Timing{Resync: 20 * time.Second})
		b.pass(time.Second)
		if len(p.resyncs) != 1 || p.resyncs[0] != 20*time.Second {
			t.Errorf("the backend heard of %s", p.resyncs)
		}
	})
}
