// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"
	"time"

	"kubeproxy/common/service"
)

// signalAfter sleeps for d, then calls SnapshotChanged, with another snapshot if changed.
func (h *harness) signalAfter(d time.Duration, changed bool) {
	h.pass(d)
	if changed {
		h.latest = h.latest.With(h.latest.Generation+1, h.latest.Node, nil)
	}
	h.SnapshotChanged()
	h.pass(0)
}

func TestSnapshotChanged(t *testing.T) {
	const sec = time.Second
	for name, tt := range map[string]struct {
		set   func(*harness)
		story func(*harness)
		want  []time.Duration
	}{
		"of something": {nil, func(b *harness) { b.signalAfter(10*sec, true) }, []time.Duration{0, 10 * sec}},
		"of nothing":   {nil, func(b *harness) { b.signalAfter(10*sec, false) }, []time.Duration{0}},
		"of nothing, and a kick": {nil, func(b *harness) {
			b.pass(500 * ms)
			b.SnapshotChanged()
			b.Kick()
			b.pass(10 * sec)
		}, []time.Duration{0, sec}},
		"of nothing, while something failed": {
			func(b *harness) { b.applies = []error{errRefused, errRefused} },
			func(b *harness) { b.signalAfter(1500*ms, false); b.pass(sec) },
			[]time.Duration{0, 1500 * ms},
		},
		"of the first snapshot": {
			func(b *harness) { b.latest = nil },
			func(b *harness) {
				b.pass(sec)
				b.latest = service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil)
				b.signalAfter(0, false)
				b.pass(time.Hour)
			},
			[]time.Duration{sec, sec + time.Hour},
		},
		"come during a round and are in it": {
			func(b *harness) { b.applyTime = 3 * sec },
			func(b *harness) { b.signalAfter(2*sec, false); b.pass(time.Minute) },
			[]time.Duration{0},
		},
		"do not put the look at what others did off": {nil, func(b *harness) {
			b.signalAfter(40*time.Minute, true)
			b.signalAfter(10*time.Minute, false)
			b.pass(70 * time.Minute)
		}, []time.Duration{0, 40 * time.Minute, time.Hour, 2 * time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.set, func(b *harness) { tt.story(b); b.at(tt.want...) })
		})
	}
}

// A round with FullSync postpones the next resync, whatever triggered the round.
func TestFullSyncPostponesResync(t *testing.T) {
	run(t, func(b *harness) { b.fullSync = true }, func(b *harness) {
		b.signalAfter(40*time.Minute, true)
		b.pass(61 * time.Minute)
		b.at(0, 40*time.Minute, 100*time.Minute)
	})
}

// An unchanged snapshot is reported as the latest result, with the present time.
func TestUnchangedSnapshotIsReported(t *testing.T) {
	run(t, func(b *harness) {
		b.drift = []string{"x"}
		b.applies = []error{&PortError{Err: &UnsupportedError{Text: "never"}}}
	}, func(b *harness) {
		b.signalAfter(10*time.Second, false)
		if len(b.results) != 2 {
			t.Fatalf("%d results, want 2", len(b.results))
		}
		r := b.results[1]
		if at := r.Start.Sub(b.begin); at != 10*time.Second || r.Took != 0 || r.Changed || len(r.Drift)+len(r.Removed)+r.Rules.Written["nat"] > 0 || r.Generation != 1 || !Unsupported(r.Err) {
			t.Errorf("after %s: %+v", at, r)
		}
	})
}
