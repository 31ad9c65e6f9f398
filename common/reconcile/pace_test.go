// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"
	"time"
)

// Another pace counts at once, however long the old one would rest.
func TestSetPace(t *testing.T) {
	brisk := Pace{MinInterval: time.Second, Resync: 20 * time.Second, Retry: Backoff{First: time.Second, Max: 2 * time.Second}}
	for name, tt := range map[string]struct {
		set   func(*bench)
		story func(*bench)
		want  []time.Duration
	}{
		"sooner resyncs": {nil, func(b *bench) {
			b.pass(5 * time.Second)
			b.SetPace(brisk)
			b.pass(50 * time.Second)
		}, []time.Duration{0, 5 * time.Second, 25 * time.Second, 45 * time.Second}},
		"out of a long least interval": {func(b *bench) { b.MinInterval = time.Hour }, func(b *bench) {
			b.after(time.Second)
			b.SetPace(brisk)
			b.after(500 * ms)
			b.pass(10 * time.Second)
		}, []time.Duration{0, time.Second, 2 * time.Second}},
		"out of a long pause after a failure": {func(b *bench) {
			b.Retry = Backoff{First: time.Hour, Max: time.Hour}
			b.applies = []error{errRefused, errRefused, errRefused}
		}, func(b *bench) {
			b.pass(10 * time.Second)
			b.SetPace(brisk)
			b.pass(4 * time.Second)
		}, []time.Duration{0, 10 * time.Second, 12 * time.Second, 14 * time.Second}},
		"the latest of two": {nil, func(b *bench) {
			b.takes = time.Second
			b.Kick()
			b.pass(1500 * ms)
			b.SetPace(Pace{MinInterval: time.Hour, Resync: time.Hour})
			b.SetPace(brisk)
			b.pass(22 * time.Second)
		}, []time.Duration{0, time.Second, 2 * time.Second, 22 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.set, func(b *bench) {
				tt.story(b)
				b.at(tt.want...)
			})
		})
	}
}

// paced notes what it is told.
type paced struct {
	Backend
	resyncs []time.Duration
}

func (p *paced) SetResync(d time.Duration) { p.resyncs = append(p.resyncs, d) }

// A Backend that wants to know hears of the longest pause.
func TestPacedBackend(t *testing.T) {
	p := &paced{}
	run(t, func(b *bench) {
		p.Backend = b.Backend
		b.Backend = p
	}, func(b *bench) {
		b.pass(time.Second)
		b.SetPace(Pace{Resync: 20 * time.Second})
		b.pass(time.Second)
		if len(p.resyncs) != 1 || p.resyncs[0] != 20*time.Second {
			t.Errorf("the backend heard of %s", p.resyncs)
		}
	})
}
