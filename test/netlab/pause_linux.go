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

// pauseTimeout is how long a process may take to stop on a very busy machine.
const pauseTimeout = 2 * time.Minute

// Pause stops a process without ending it, and returns when it has stopped. The kernel
// still accepts its connections and data for it, but the process does not answer. SIGCONT
// resumes it.
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

// paused returns whether every thread of a process has stopped. The signal reaches
// threads one after the other.
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
		// The command name before the state may contain any character, see
		// proc_pid_stat(5).
		i := bytes.LastIndexByte(text, ')')
		if i < 0 || !bytes.HasPrefix(text[i+1:], []byte(" T")) {
			return false
		}
	}
	return true
}
