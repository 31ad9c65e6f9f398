// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// InPrivateNetwork runs fn in a network namespace of its own, so that what fn makes there
// does not exist on the node. The namespace ends with its thread.
func InPrivateNetwork(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace to try it in: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}
