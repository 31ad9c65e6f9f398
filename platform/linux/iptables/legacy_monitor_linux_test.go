// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"strings"
	"testing"
	"time"
)

// TestReadsAreOftenEnough makes checksums more and more expensive. A change that only a
// checksum detects must be found within five seconds, including two intervals of Watch.
func TestReadsAreOftenEnough(t *testing.T) {
	const promise = 5*time.Second - 2*watchEvery
	for _, cost := range []time.Duration{0, 7 * time.Millisecond, 90 * time.Millisecond, time.Second} {
		s := &legacyMonitor{readCost: cost, readAt: time.Now().Add(-promise - time.Millisecond)}
		if !s.due() {
			t.Errorf("a look that costs %s is not due after %s", cost, promise)
		}
		if s.readAt = time.Now(); s.due() {
			t.Errorf("a look that costs %s is due again at once", cost)
		}
	}
}

// TestEditRightAfterOurs changes a rule so that neither a size nor the lock shows it,
// before the first checksum after our change. The monitor takes it for ours, but not for
// long.
func TestEditRightAfterOurs(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		s, ok := b.driver.(*runner).monitor.(*legacyMonitor)
		if !ok { // iptables-nft sends a notification
			return
		}
		want := simple(3)
		apply(t, b, want)
		apply(t, b, simple(4))
		runCommand(t, b, "-t nat -R KUBE-MARK-MASQ 1 -j MARK --set-xmark 0x20/0x20", lockFileEnv+"=/dev/null")
		if !poll(func() bool { return touched(t, b) || s.sumValid }) {
			t.Fatal("nobody looks")
		}
		s.savedAt = time.Now().Add(-uncertainSaveInterval - time.Second)
		if !touched(t, b) {
			t.Fatalf("not noticed after %s", uncertainSaveInterval)
		}
		if p := apply(t, b, want); len(p.Outcome().Drift) != 1 {
			t.Errorf("drift %q, want one line", p.Outcome().Drift)
		}
		if p := apply(t, b, want); p.Outcome().FullSync {
			t.Error("the tables are read though nothing has changed")
		}
		if s.savedAt = time.Now().Add(-uncertainSaveInterval - time.Second); !touched(t, b) { // after our repair
			t.Error("what is not certain is believed for long")
		}
		apply(t, b, want)
		if s.savedAt = time.Now().Add(-uncertainSaveInterval - time.Second); touched(t, b) {
			t.Error("what is certain is not believed")
		}
	})
}

// TestResetWithoutAnswer has the kernel not answer for tables that exist. The monitor says so,
// and takes no state for known.
func TestResetWithoutAnswer(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		s, ok := b.driver.(*runner).monitor.(*legacyMonitor)
		if !ok {
			return
		}
		apply(t, b, simple(1))
		socket := s.fd
		s.fd = -1
		err := s.reset()
		if s.fd = socket; err == nil || !strings.Contains(err.Error(), "ask the kernel for the size of table") || s.known {
			t.Errorf("reset = %v, known: %t", err, s.known)
		}
		if err := s.reset(); err != nil || !s.known {
			t.Errorf("reset with an answer = %v, known: %t", err, s.known)
		}
	})
}
