// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func checkName(string) error { return nil }

// openNonblocking opens path without blocking. The path may have become a named pipe
// without a writer, fifo(7), or a file on which another process has a lease, fcntl(2).
func openNonblocking(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// checkNotKernelFile rejects files of kernel file systems: a read of /proc/kmsg waits for messages
// and takes them from the logging daemon (proc_kmsg(5)).
func checkNotKernelFile(f *os.File) error {
	var s unix.Statfs_t
	c, err := f.SyscallConn() // File.Fd would make reads block
	if err == nil {
		err = errors.Join(c.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), &s) }), err)
	}
	if err != nil {
		return fmt.Errorf("ask for its file system: %w", err)
	}
	switch s.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC,
		unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.BPF_FS_MAGIC:
		return errors.New("is a file of the kernel; want a regular file")
	}
	return nil
}
