// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// instances returns how many instances of inotify a cluster takes: kubelet 6, containerd 2,
// pods the rest; the API server 6, the controllers 5. The kernel counts those of a user
// in all namespaces together, and 128 is its default limit (kernel:
// fs/notify/inotify/inotify_user.c, inotify_user_setup).
func instances(nodes int) int { return 12 + 10*nodes }

// Room returns an error if the kernel has not enough left for a cluster of some nodes.
// kubelet would end with "too many open files", again and again.
func Room(nodes int) error {
	return room(instances(nodes), func() (fd int, err error) { return unix.InotifyInit1(unix.IN_CLOEXEC) })
}

// room makes instances, and ends them.
func room(want int, instance func() (fd int, err error)) error {
	for have := range want {
		fd, err := instance()
		if errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("the cluster would take %d instances of inotify, and the kernel has %d left: "+
				"end another cluster, or raise the limit: sysctl fs.inotify.max_user_instances=512", want, have)
		}
		if err != nil {
			return fmt.Errorf("make an instance of inotify: %w", err)
		}
		defer unix.Close(fd)
	}
	return nil
}
