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

// asService reports that this process is meant to be a Windows service. An
// action that ends by itself is none, whatever the configuration says. C is
// nil if it cannot be used.
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

// serveAsService does work as a service. Its log goes to a file, as nobody reads the
// standard error of a service.
func (o *options) serveAsService(ctx context.Context, to streams, work func(context.Context, streams) error) error {
	path := o.config.LogFile
	if path == "" {
		path = serviceLog(serviceName)
	}
	// A user who logs off ends programs, but not services.
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

// reportStarted tells who waits for it that the proxy does its work.
func (o *options) reportStarted() {
	if o.started != nil {
		o.started()
	}
}

// serviceLog is where a service logs if it is not told where. The folder is
// the one of the state file.
func serviceLog(name string) string {
	return filepath.Join(filepath.Dir(hnsStateFile()), name+".log")
}

// maxLogBackups is how many log files are kept beside the current one.
const maxLogBackups = 5

// openLog returns a log file that makes room for another one when it has grown
// to a number of megabytes, 0 for never. It is made with the first line.
func openLog(path string, megabytes int) io.WriteCloser {
	if megabytes == 0 {
		megabytes = 1 << 40 // the library takes 0 for something else
	}
	return &lumberjack.Logger{Filename: path, MaxSize: megabytes, MaxBackups: maxLogBackups}
}

// captureCrash has what Go says of a crash, which would be lost, written beside
// the log. It returns nil where that is not possible.
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
