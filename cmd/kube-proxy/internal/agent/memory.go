// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"io/fs"
	"os"
	"runtime/debug"

	"k8s.io/klog/v2"

	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/mode"
)

// The part of the memory limit that the Go runtime may fill before it collects garbage
// more often: a percentage, but so little that reserved bytes are left, and at least
// half. The limit also covers the kernel's memory for rules and sockets, and the pages of
// the program, of which about 20 MB are in use.
const (
	memoryPercent  = 90
	memoryReserved = 24 << 20
)

func softLimit(limit int64, d mode.Descriptor) int64 {
	if d.MemoryShare > 1 {
		return limit / int64(d.MemoryShare)
	}
	return max(min(limit/100*memoryPercent, limit-memoryReserved), limit/2)
}

// LimitMemory sets the soft limit of the Go runtime according to the cgroup's memory
// limit in mode d, unless GOMEMLIMIT is set. Without a soft limit, the heap may double
// before garbage is collected, and the kernel would kill the process. See
// https://pkg.go.dev/runtime/debug#SetMemoryLimit.
func LimitMemory(log klog.Logger, root fs.FS, d mode.Descriptor) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit, version := proc.MemoryLimit(root)
	if limit == 0 {
		return
	}
	soft := softLimit(limit, d)
	debug.SetMemoryLimit(soft)
	log.V(1).Info("Garbage is collected so that memory stays within the cgroup's limit", "limitBytes", limit, "softLimitBytes", soft, "cgroupVersion", version)
}
