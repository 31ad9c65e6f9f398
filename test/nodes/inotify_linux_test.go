// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRoom checks that a cluster is refused for which the kernel has too few instances
// left, and that those which it made are ended.
func TestRoom(t *testing.T) {
	const limit = 16
	open := map[int]bool{}
	pipe := func() (int, error) { // in place of inotify, whose instances others need meanwhile
		if len(open) == limit {
			return 0, unix.EMFILE
		}
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return 0, err
		}
		open[ends[0]] = true
		return ends[0], unix.Close(ends[1])
	}
	if err := room(limit, pipe); err != nil {
		t.Errorf("all that are left: %v", err)
	}
	clear(open)
	if err := room(limit+1, pipe); err == nil || !strings.Contains(err.Error(), "take 17 instances of inotify, and the kernel has 16 left") {
		t.Errorf("one more than are left: %v", err)
	}
	for fd := range open {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Errorf("file %d is open", fd)
		}
	}
}
