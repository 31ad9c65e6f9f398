// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// Rules are altered after every repair. The first few times the Loop repairs them at
// once, then once in Drift.Max. Changes of Services are still programmed. A quiet minute
// ends the dispute.
func TestRepeatedDrift(t *testing.T) {
	run(t, func(b *harness) {
		b.MinInterval = 0
		b.Drift = Backoff{First: 100 * ms, Max: time.Second}
		b.drift = []string{"missing: chain x"}
	}, func(b *harness) {
		alter := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				b.DataplaneChanged()
				b.pass(10 * ms)
			}
		}
		for i := range contestedRounds/2 - 1 { // the first round found drift, too
			n := b.count()
			b.DataplaneChanged()
			b.pass(ms)
			if b.count() != n+1 {
				t.Errorf("change %d was not repaired at once", i+1)
			}
		}
		alter(5 * time.Second)
		if r := b.last(); !r.Contested() {
			t.Errorf("after %d rounds that found drift it is no dispute", r.DriftRounds)
		}
		n := b.count()
		alter(20 * time.Second)
		if got := b.count() - n; got < 19 || got > 21 {
			t.Errorf("%d rounds in 20 s in which others alter rules all the time, want 20", got)
		}
		n = b.count()
		b.latest = service.New(2, &service.Node{}, nil)
		b.SnapshotChanged()
		b.pass(ms)
		if got := b.count() - n; got != 1 {
			t.Errorf("%d rounds for a change of Services, want 1 at once", got)
		}
		n = b.count()
		b.Kick()
		b.pass(ms)
		if got := b.count() - n; got != 1 {
			t.Errorf("%d rounds after a kick, want 1 at once", got)
		}
		b.setDrift(nil)
		b.pass(2 * time.Minute)
		if r := b.last(); r.DriftRounds != 0 {
			t.Errorf("after two quiet minutes the dispute counts %d rounds", r.DriftRounds)
		}
	})
}

// Long rounds repair drift less often.
func TestRepeatedDriftOfLongRounds(t *testing.T) {
	run(t, func(b *harness) {
		b.MinInterval, b.applyTime = 0, 200*ms
		b.Drift, b.DriftCostFactor = Backoff{First: 100 * ms, Max: time.Second}, 20
		b.drift = []string{"missing: chain x"}
	}, func(b *harness) {
		for range 4000 {
			b.DataplaneChanged()
			b.pass(10 * ms)
		}
		if n := b.count(); n > 15 {
			t.Errorf("%d rounds of 200 ms in 40 s", n)
		}
	})
}

// While another process programs the dataplane, the Loop does not touch it, and the Backend
// forgets it. Afterwards it reads it again.
func TestStandby(t *testing.T) {
	mine, standbys := false, 0
	run(t, func(b *harness) {
		b.Enter = func(context.Context) (func(), bool) { return func() {}, mine }
		b.Standby = func(*service.Snapshot) { standbys++ }
	}, func(b *harness) {
		b.SnapshotChanged()
		b.pass(10 * time.Second)
		if b.count() != 0 || standbys == 0 {
			t.Errorf("%d rounds, reported standing by %d times", b.count(), standbys)
		}
		for i := range 3 {
			if b.forgets != i {
				t.Errorf("forgot %d times what it had programmed, want %d", b.forgets, i)
			}
			mine = true
			b.Kick()
			b.pass(time.Second)
			if b.count() != i+1 {
				t.Errorf("%d rounds once it may, want %d", b.count(), i+1)
			}
			mine = false
			b.Kick()
			b.pass(time.Second)
		}
	})
}

// TestDriftReport checks that what is beyond the limit is counted and not put in words.
func TestDriftReport(t *testing.T) {
	for n, want := range map[int]int{0: 0, MaxDrift: MaxDrift, MaxDrift + 7: MaxDrift + 1} {
		var r DriftReport
		words := 0
		for range n {
			r.Add(func() string {
				words++
				return "altered: a chain"
			})
		}
		lines := r.Lines()
		if len(lines) != want || words != min(n, MaxDrift) {
			t.Errorf("%d changes: %d lines, %d put in words; want %d lines", n, len(lines), words, want)
		}
		if n > MaxDrift && lines[MaxDrift] != "and 7 more" {
			t.Errorf("%d changes: the last line is %q", n, lines[MaxDrift])
		}
	}
}
