// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockThatIsANamedPipe replaces the lock file by a named pipe without a writer.
func TestLockThatIsANamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := make(chan bool, 1)
	go func() {
		l := &lock{path: path, freed: make(chan struct{}, 1), notify: -1}
		taken <- l.try()
		l.close()
	}()
	select {
	case ok := <-taken:
		if !ok {
			t.Error("the lock is free and was not taken")
		}
	case <-time.After(10 * time.Second):
		t.Error("opening the lock waits for somebody to write to a pipe")
	}
}
