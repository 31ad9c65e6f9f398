// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestFile checks that a large log is rotated, and that the number of files is
// bounded.
func TestFile(t *testing.T) {
	const megabyte = 1 << 20
	for megabytes, want := range map[int]int{1: 3, 0: 1} {
		dir := t.TempDir()
		log := OpenFile(filepath.Join(dir, "logs", "a.log"), megabytes)
		for range 5 {
			// An old file is named by the millisecond.
			for now := time.Now().UnixMilli(); time.Now().UnixMilli() == now; {
				runtime.Gosched()
			}
			if _, err := log.Write(make([]byte, megabyte/2)); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
		names, err := filepath.Glob(filepath.Join(dir, "logs", "*"))
		if err != nil || len(names) != want {
			t.Errorf("at most %d MB: files %q, %v, want %d", megabytes, names, err, want)
		}
	}
}
