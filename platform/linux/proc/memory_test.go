// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"testing"
	"testing/fstest"
)

const (
	v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	v1 = "30 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	// As in a container with version 1 and without a cgroup namespace.
	inside = "30 23 0:27 /kubepods/pod1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)

func TestMemoryLimit(t *testing.T) {
	const root = "sys/fs/cgroup/"
	for name, tt := range map[string]struct {
		own, mounts string
		files       map[string]string
		limit       int64
		version     int
	}{
		"version 2":            {"0::/a/b\n", v2, map[string]string{root + "a/b/memory.max": "67108864\n"}, 67108864, 2},
		"without a limit":      {"0::/a\n", v2, map[string]string{root + "a/memory.max": "max\n"}, 0, 0},
		"of the one above":     {"0::/a/b\n", v2, map[string]string{root + "a/b/memory.max": "200\n", root + "a/memory.max": "100\n"}, 100, 2},
		"in a namespace":       {"0::/\n", v2, map[string]string{root + "memory.max": "300\n"}, 300, 2},
		"above a namespace":    {"0::/../x\n", v2, map[string]string{root + "memory.max": "300\n"}, 300, 2},
		"version 1":            {"4:memory:/a\n1:cpu:/b\n0::/\n", v1, map[string]string{root + "memory/a/memory.limit_in_bytes": "400\n"}, 400, 1},
		"version 1, unlimited": {"4:memory:/a\n", v1, map[string]string{root + "memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, 0, 0},
		"version 1, inside":    {"4:cpu,memory:/kubepods/pod1\n", inside, map[string]string{root + "memory/memory.limit_in_bytes": "500\n"}, 500, 1},
		"no cgroups":           {"", "", nil, 0, 0},
		"not to be read":       {"0::/a\n", v2, map[string]string{root + "a/memory.max": "much\n"}, 0, 0},
		"odd lines":            {"::\nx\n", "a - b\n\n- cgroup2\n", nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			files := fstest.MapFS{"proc/self/cgroup": {Data: []byte(tt.own)}, "proc/self/mountinfo": {Data: []byte(tt.mounts)}}
			for name, text := range tt.files {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			if limit, version := MemoryLimit(files); limit != tt.limit || version != tt.version {
				t.Errorf("%d by version %d, want %d by version %d", limit, version, tt.limit, tt.version)
			}
		})
	}
	if limit, _ := MemoryLimit(fstest.MapFS{}); limit != 0 {
		t.Errorf("%d without any file", limit)
	}
}
