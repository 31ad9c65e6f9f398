// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"testing"

	"kubeproxy/test/netlab"
)

// TestQuickRunOfUserspace requires a figure in every row, and a direct one beside it
// where that exists.
func TestQuickRunOfUserspace(t *testing.T) {
	if err := netlab.Allowed(); errors.Is(err, netlab.ErrNotAllowed) {
		t.Skip(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), options{quick: true, only: "userspace"}, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	for _, r := range relayRows() {
		if found := rowOf(out.String(), r.label); len(found) < 5 || found[3] == "" || r.floor != "" && (found[2] == "" || found[4] == "") {
			t.Errorf("row %q = %q, want figures", r.label, found)
		}
	}
}
