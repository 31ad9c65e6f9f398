// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// Somebody alters the rules whenever they were repaired: a few times they are
// repaired at once, then once in Drift.Max, changes of Services come through all the
// same, and after a quiet minute the dispute is over.
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
		b.setDrift(nil)
		b.pass(2 * time.Minute)
		if r := b.last(); r.DriftRounds != 0 {
			t.Errorf("after two quiet minutes the dispute counts %d rounds", r.DriftRounds)
		}
	})
}

// A round that takes long is repeated less often.
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

// What another process programs is left alone, and read again after that.
func TestStandby(t *testing.T) {
	mine, standbys := false, 0
	run(t, func(b *harness) {
		b.Enter = func(context.Context) (func(), bool) { return func() {}, mine }
		b.Standby = func(*service.Snapshot) { standbys++ }
	}, func(b *harness) {
		b.SnapshotChanged()
		b.pass(10 * time.Second)
		if b.count() != 0 || standbys == 0 {
			t.Errorf("%d rounds, told of standing by %d times", b.count(), standbys)
		}
		mine = true
		b.Kick()
		b.pass(time.Second)
		if b.count() != 1 {
			t.Errorf("%d rounds once it may, want 1", b.count())
		}
	})
}
