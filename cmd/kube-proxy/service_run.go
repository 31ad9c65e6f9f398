// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/logging"
	"kubeproxy/config"
	"kubeproxy/platform/windows/scm"
)

// asService returns whether this process runs as a Windows service. An action that ends
// by itself does not, whatever the configuration contains. c is nil if it cannot be used.
func (o *options) asService(c *config.Config) bool {
	if hostOS != config.Windows || o.Flags.Cleanup || o.Flags.InitOnly || o.Flags.WriteConfigTo != "" {
		return false
	}
	if c == nil {
		flag := o.FlagSet.Lookup("windows-service")
		return flag != nil && flag.Value.String() == "true"
	}
	return c.WindowsRunAsService
}

// serveAsService runs work as a service. Its log goes to a file, as a service has no
// standard error that is read.
func (o *options) serveAsService(ctx context.Context, to streams, work func(context.Context, streams, func()) error) error {
	path := o.Flags.LogFile
	if path == "" {
		path = serviceLog(serviceName)
	}
	// A user who logs off ends programs, but not services. See
	// https://learn.microsoft.com/windows/console/handlerroutine
	return runAsService(withoutSignals(ctx), serviceName, func(ctx context.Context, started func()) error {
		file := logging.OpenFile(path, int(o.Flags.LogFileMaxSize))
		defer file.Close()
		log := logging.NewWriter(file)
		if crash := logging.CaptureCrash(path); crash != nil {
			defer crash.Close()
		}
		err := work(ctx, streams{to.out, log}, started)
		if errors.Is(err, agent.ErrRestart) {
			err = fmt.Errorf("%w, since %w", scm.ErrRestart, err)
		}
		if err != nil {
			fmt.Fprintf(log, "%s kube-proxy: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		}
		return err
	})
}

// serviceLog is the default log file of a service, in the folder of the state file.
func serviceLog(name string) string {
	return filepath.Join(filepath.Dir(hnsStateFile()), name+".log")
}
