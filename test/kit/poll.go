// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"testing"
	"time"
)

// Limit bounds the wait for anything that must happen, with the race detector on a busy
// machine. Only a fault makes a test wait that long.
const Limit = 2 * time.Minute

// Until polls until ok, and fails the test if that takes longer than Limit.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Soon(ok) {
		t.Fatalf("waited %s in vain: %s", Limit, what)
	}
}

// Soon returns whether ok became true within Limit.
func Soon(ok func() bool) bool {
	for deadline := time.Now().Add(Limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
