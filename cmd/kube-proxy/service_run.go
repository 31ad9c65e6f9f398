// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"kubeproxy/common/logging"
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
		file := logging.OpenFile(path, int(o.config.LogFileMaxSize))
		defer file.Close()
		log := logging.NewWriter(file)
		if crash := logging.CaptureCrash(path); crash != nil {
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
