// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"kubeproxy/config"
	"kubeproxy/platform/windows/scm"
)

// asService returns whether this process runs as a Windows service. An action that ends
// by itself does not, whatever the configuration contains. c is nil if it cannot be used.
func (o *options) asService(c *config.Config) bool {
	if hostOS != config.Windows || o.config.Cleanup || o.config.InitOnly || o.config.WriteConfigTo != "" {
		return false
	}
	if c == nil {
		flag := o.flags.Lookup("windows-service")
		return flag != nil && flag.Value.String() == "true"
	}
	return c.WindowsRunAsService
}

// serveAsService runs work as a service. Its log goes to a file, as a service has no
// standard error that is read.
func (o *options) serveAsService(ctx context.Context, to streams, work func(context.Context, streams) error) error {
	path := o.config.LogFile
	if path == "" {
		path = serviceLog(serviceName)
	}
	// A user who logs off ends programs, but not services. See
	// https://learn.microsoft.com/windows/console/handlerroutine
	return runAsService(withoutSignals(ctx), serviceName, func(ctx context.Context, started func()) error {
		file := openLog(path, int(o.config.LogFileMaxSize))
		defer file.Close()
		log := &nonblockingWriter{to: file}
		if crash := captureCrash(path); crash != nil {
			defer crash.Close()
		}
		o.started = started
		err := work(ctx, streams{to.out, log})
		if errors.Is(err, errRestart) {
			err = fmt.Errorf("%w, since %w", scm.ErrRestart, err)
		}
		if err != nil {
			fmt.Fprintf(log, "%s kube-proxy: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		}
		return err
	})
}

// reportStarted reports to the service manager that the proxy is running.
func (o *options) reportStarted() {
	if o.started != nil {
		o.started()
	}
}

// serviceLog is the default log file of a service, in the folder of the state file.
func serviceLog(name string) string {
	return filepath.Join(filepath.Dir(hnsStateFile()), name+".log")
}

// maxLogBackups is how many log files are kept beside the current one.
const maxLogBackups = 5

// openLog returns a log file that is rotated when it reaches a number of megabytes, 0 for
// never. The first line creates it.
func openLog(path string, megabytes int) io.WriteCloser {
	if megabytes == 0 {
		megabytes = 1 << 40 // the library has another meaning for 0
	}
	return &lumberjack.Logger{Filename: path, MaxSize: megabytes, MaxBackups: maxLogBackups}
}

// captureCrash writes the crash report of the Go runtime, which would be lost, to a file
// beside the log. It returns nil if that is not possible.
func captureCrash(log string) *os.File {
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
