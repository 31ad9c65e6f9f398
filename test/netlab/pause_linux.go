// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// pauseTimeout is how long a process may take to stop, on a machine that may
// be very busy.
const pauseTimeout = 2 * time.Minute

// Pause stops a process without ending it, and returns when it has stopped: the
// kernel still accepts its connections and what is sent on them, and nobody
// ever answers. SIGCONT lets it go on.
func Pause(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("halt process %d: %w", pid, err)
	}
	for deadline := time.Now().Add(pauseTimeout); !paused(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("halt process %d: it does not stop", pid)
		}
	}
	return nil
}

// paused reports that every thread of a process has stopped. A signal reaches
// them one after the other.
func paused(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		// The name before the state may hold any character.
		i := bytes.LastIndexByte(text, ')')
		if i < 0 || !bytes.HasPrefix(text[i+1:], []byte(" T")) {
			return false
		}
	}
	return true
}
