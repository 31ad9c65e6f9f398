// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"testing"
	"time"

	"kubeproxy/test/cluster"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/scale"
)

// TestScale changes many Services one after the other, and then all of them again and
// again. Times and sizes depend on the machine, so they are only printed. Nothing may be
// lost, recreated or accumulate.
func TestScale(t *testing.T) {
	const services, perSecond, long, churns = 2000, 200, 5 * time.Second, 2
	s := newSite(t, cluster.Options{}, "busy")
	web := webOf(s)
	if err := s.save(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	many := scale.New(s.Client, "many", services)
	began := time.Now()
	if err := many.Create(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d Services of %d endpoints written in %s", services, scale.PerService, time.Since(began).Round(time.Millisecond))
	n := s.join(t, "busy")
	n.start(t, cluster.Login{})
	n.healthy(t)
	n.awaitProgrammed(t)
	n.size(t, "first program")
	load := n.load(t, web)
	before := n.counts(t)
	n.guard(web)

	cpu := n.CPU(t)
	changes, err := many.ReplaceAtRate(t.Context(), perSecond, long)
	if err != nil {
		t.Fatal(err)
	}
	n.awaitProgrammed(t)
	cpu = n.CPU(t) - cpu
	t.Logf("%d changes in %s: %s of CPU for each", changes, long, (cpu / time.Duration(changes)).Round(time.Microsecond))
	first := n.size(t, "changes of one")
	var last size
	for range churns {
		if err := many.ReplaceAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.awaitProgrammed(t)
		last = n.size(t, "change of all")
	}
	if last.goroutines > first.goroutines+10 {
		t.Errorf("%.0f goroutines after %d changes of everything, %.0f before", last.goroutines, churns, first.goroutines)
	}
	if last.memory > 2*first.memory {
		t.Errorf("%d bytes resident after %d changes of everything, %d before", last.memory, churns, first.memory)
	}
	n.onlyElements(t, before)
	lossless(t, load)
}

// size is the resources of a proxy.
type size struct {
	memory     int64
	goroutines float64
}

// size reads and prints them.
func (n *node) size(t *testing.T, after string) size {
	t.Helper()
	now, peak := n.Memory(t)
	goroutines, ok := n.Metric(t, "go_goroutines")
	if !ok {
		t.Fatal("no metric go_goroutines")
	}
	t.Logf("after the %s: %.1f MB resident, at most %.1f MB; %.0f goroutines", after, float64(now)/1e6, float64(peak)/1e6, goroutines)
	return size{now, goroutines}
}

// onlyElements requires that since an earlier count only elements changed, and none of
// the guarded ones.
func (n *node) onlyElements(t *testing.T, earlier nftmonitor.Counts) {
	t.Helper()
	written := n.counts(t).Since(earlier)
	t.Logf("written: %s", written)
	for kind := range written {
		if kind != nftmonitor.NewElement && kind != nftmonitor.DeletedElement && kind != nftmonitor.Commit {
			t.Errorf("written is a %s; want elements only", kind)
		}
	}
	if touched := n.touched.Load(); touched != 0 {
		t.Errorf("what stayed as it was is in %d changes", touched)
	}
}
