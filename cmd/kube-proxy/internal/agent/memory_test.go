// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"

	"k8s.io/klog/v2"

	"kubeproxy/platform/mode"
)

// TestMemoryLimit checks that the soft limit is nine tenths of the cgroup's limit, or
// GOMEMLIMIT if that is set.
func TestMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	const limit = 4 << 30
	root := fstest.MapFS{
		"proc/self/cgroup":         {Data: []byte("0::/\n")},
		"proc/self/mountinfo":      {Data: []byte("29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")},
		"sys/fs/cgroup/memory.max": {Data: []byte("4294967296\n")},
	}
	for env, want := range map[string]int64{"": limit / 100 * 90, "5GiB": math.MaxInt64} {
		t.Setenv("GOMEMLIMIT", env)
		debug.SetMemoryLimit(math.MaxInt64)
		LimitMemory(klog.Logger{}, root, mode.Descriptor{})
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("GOMEMLIMIT %q: a soft limit of %d, want %d", env, got, want)
		}
	}
}

func TestSoftLimit(t *testing.T) {
	const mb = 1 << 20
	for limit, want := range map[int64]int64{32 * mb: 16 * mb, 64 * mb: 40 * mb, 128 * mb: 104 * mb, 1000 * mb: 900 * mb} {
		if got := softLimit(limit, mode.Descriptor{}); got != want {
			t.Errorf("%d of %d, want %d", got, limit, want)
		}
		if got := softLimit(limit, mode.Descriptor{MemoryShare: 4}); got != limit/4 {
			t.Errorf("a mode with commands: %d of %d, want a quarter", got, limit)
		}
	}
}
