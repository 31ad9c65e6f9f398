// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNamespace runs fn on a thread in a network namespace of its own, which ends with the
// thread, and waits for it. fn may end its goroutine, as a failing test does. Without
// root privileges the test is skipped.
func InNamespace(t TB, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("a network namespace needs root")
	}
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		fn()
	}()
	if err := <-done; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
}
