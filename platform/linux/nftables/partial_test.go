// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"

	"kubeproxy/common/service"
)

// TestPartialSnapshotTakesNothingAway restarts with an incomplete snapshot. The missing
// Services stay in force until a complete snapshot arrives.
func TestPartialSnapshotTakesNothingAway(t *testing.T) {
	k := &fake{}
	apply(t, &Backend{driver: k}, simple(3))

	b := &Backend{driver: k}
	part := simple(1)
	part.Incomplete = true
	apply(t, b, part)
	if got := len(k.table.sets["services"].elements); got != 3 {
		t.Errorf("%d Services in force while two could not be read, want 3", got)
	}
	whole := part.With(2, part.Node, []service.Change{})
	whole.Incomplete = false
	apply(t, b, whole)
	if got := len(k.table.sets["services"].elements); got != 1 {
		t.Errorf("%d Services in force once all was read, want 1", got)
	}
}
