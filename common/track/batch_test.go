// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"testing"

	"kubeproxy/common/service"
)

// A port's name is in the Service and in its slices. Between the two updates the port has
// no endpoints, and no snapshot may show that.
func TestBatch(t *testing.T) {
	w := newRecordingTracker()
	w.SetService(plainService(1))
	w.SetSlice(plainSlice(1, 3))
	w.Synced()
	before, changes := w.Latest(), w.changes
	renamed, slice := plainService(1), plainSlice(1, 3)
	other := "other"
	renamed.Spec.Ports[0].Name, slice.Ports[0].Name = other, &other
	w.Batch(func() {
		w.SetService(renamed)
		if w.Latest() != before || w.changes != changes {
			t.Errorf("within a batch: another snapshot %v, Changed %d times; want neither", w.Latest() != before, w.changes-changes)
		}
		w.SetSlice(slice)
	})
	if w.changes != changes+1 {
		t.Errorf("Changed called %d times; want once", w.changes-changes)
	}
	after := w.Latest()
	if after.Generation != before.Generation+1 {
		t.Errorf("generation %d after %d; want the next one", after.Generation, before.Generation)
	}
	for p := range after.Ports(service.IPv4) {
		if p.Name.Port != other || len(p.Cluster) != 3 {
			t.Errorf("port %q with %d endpoints; want %q with 3", p.Name.Port, len(p.Cluster), other)
		}
	}
}

// If Latest was called within a batch, Changed is called after it, even if nothing was
// published before.
func TestBatchIsReported(t *testing.T) {
	w := newRecordingTracker()
	w.Synced()
	changes := w.changes
	w.Batch(func() {
		if s := w.Latest(); s != nil {
			t.Errorf("Latest within the first batch = %v, want nil", s)
		}
	})
	if w.changes != changes+1 || w.Latest() == nil {
		t.Errorf("Changed called %d times, Latest %v; want once and a snapshot", w.changes-changes, w.Latest())
	}
	changes = w.changes
	w.Batch(func() {})
	if w.changes != changes {
		t.Errorf("Changed called after a batch without anything in it")
	}
}
