// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"
)

// TestFloodsMemory wants a file of 10 MB to take at most ten times its size at any
// moment, itself and what it leaves included. Those that take the most are always tried,
// all of them with KUBEPROXY_NIGHTLY=1.
func TestFloodsMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(5)) // so that what lives is known often
	const size, most = 10 << 20, 10
	for name, flood := range floods {
		if !strings.Contains(name, "slices") && nightly(1) == 1 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			text := flood(size)
			// Memory that is allocated during a collection counts as living, so the least
			// value is right.
			took := 1e9
			for try := 0; try < 3 && took > most; try++ {
				took = min(took, peakOf(text))
			}
			t.Logf("%.1f times its size", took)
			if took > most {
				t.Errorf("%.1f times the file's size in memory, want at most %d", took, most)
			}
		})
	}
}

// peakOf returns how many times its size a file takes at most.
func peakOf(text string) float64 {
	runtime.GC()
	before := liveHeap()
	peak := watchHeap()
	got := (&decoder{noted: map[string]bool{}}).decode([]byte(text))
	took := float64(peak()-before) / float64(len(text))
	runtime.KeepAlive(got)
	runtime.KeepAlive(text)
	return took
}

// liveHeap returns the bytes that lived at the end of the last collection.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// watchHeap watches liveHeap until what it returns is called, which returns the most.
func watchHeap() func() uint64 {
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		most := liveHeap()
		for every := time.NewTicker(time.Millisecond); ; {
			select {
			case <-stop:
				every.Stop()
				done <- most
				return
			case <-every.C:
				most = max(most, liveHeap())
			}
		}
	}()
	return func() uint64 {
		runtime.GC()
		close(stop)
		return max(<-done, liveHeap())
	}
}
