// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"kubeproxy/common/logging"
	"kubeproxy/platform/windows/scm"
)

// Name is the default name of the service.
const Name = "kube-proxy"

// ErrNotWindows is the error on other systems.
var ErrNotWindows = errors.New("service is for Windows: there it installs the proxy as a Windows service; here the DaemonSet of build/deploy/linux or a unit of systemd runs it")

// LogFile is the default log file of a service, in the folder of its data.
func LogFile(folder, name string) string { return filepath.Join(folder, name+".log") }

// Runner runs the proxy as a service. Its log goes to a file, as a service has no standard
// error that is read.
type Runner struct {
	LogFile string
	MaxSize int // of LogFile, see logging.OpenFile
	// Restart is the error with which work asks for a new process.
	Restart error
}

// Run runs work as the service. work calls started when the proxy runs.
func (r Runner) Run(ctx context.Context, work func(ctx context.Context, log io.Writer, started func()) error) error {
	return runService(ctx, Name, func(ctx context.Context, started func()) error {
		file := logging.OpenFile(r.LogFile, r.MaxSize)
		defer file.Close()
		log := logging.NewWriter(file)
		if crash := logging.CaptureCrash(r.LogFile); crash != nil {
			defer crash.Close()
		}
		err := work(ctx, log, started)
		if errors.Is(err, r.Restart) {
			err = fmt.Errorf("%w, since %w", scm.ErrRestart, err)
		}
		if err != nil {
			fmt.Fprintf(log, "%s kube-proxy: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		}
		return err
	})
}
