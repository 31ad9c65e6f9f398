// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"io"
	"os"
	"path/filepath"
	"runtime/debug"

	"gopkg.in/natefinch/lumberjack.v2"
)

// maxBackups is how many log files are kept beside the current one.
const maxBackups = 5

// OpenFile returns a log file that is rotated when it reaches a number of megabytes, 0 for
// never. The first line creates it.
func OpenFile(path string, megabytes int) io.WriteCloser {
	if megabytes == 0 {
		megabytes = 1 << 40 // the library has another meaning for 0
	}
	return &lumberjack.Logger{Filename: path, MaxSize: megabytes, MaxBackups: maxBackups}
}

// CaptureCrash writes the crash report of the Go runtime, which would be lost, to a file
// beside the log. It returns nil if that is not possible.
func CaptureCrash(log string) *os.File {
	if os.MkdirAll(filepath.Dir(log), 0o755) != nil {
		return nil
	}
	f, err := os.OpenFile(log+".crash", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil
	}
	if debug.SetCrashOutput(f, debug.CrashOptions{}) != nil {
		_ = f.Close()
		return nil
	}
	return f
}
