// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logging makes the log of the process.
//
// The logging configuration of Kubernetes and a writer go in. The one logger comes out,
// which the functions of klog use as well. The package also has settings that change at
// run time, writers that do not block, and files that are rotated.
package logging

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/printable"
)

// Log is the logger of the process and those of its settings that can change at run
// time.
type Log struct {
	klog.Logger
	Verbosity flag.Value
	vmodule   flag.Value // nil in format json
}

// Start creates the one logger, which the functions of klog use as well. Nothing
// is buffered, so a crash loses nothing. If there was another logger, as in a service
// that restarts within the process, nothing may use klog during the call.
func Start(c *logsapi.LoggingConfiguration, w io.Writer) (*Log, error) {
	klog.StopFlushDaemon()
	w = printable.Writer(w)
	l := &Log{}
	if c.Format == "json" {
		level := &slogLevel{}
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: spellDurations})))
		l.Verbosity = level
	} else {
		text := textlogger.NewConfig(textlogger.Output(w))
		klog.SetLoggerWithOptions(textlogger.NewLogger(text), klog.ContextualLogger(true))
		l.Verbosity, l.vmodule = text.Verbosity(), text.VModule()
	}
	l.Logger = klog.Background()
	return l, l.Reconfigure(c)
}

// Reconfigure applies all settings except the format.
func (l *Log) Reconfigure(c *logsapi.LoggingConfiguration) error {
	if d := c.FlushFrequency.Duration.Duration; d > 0 { // klog would exit the process for 0
		klog.StartFlushDaemon(d)
	}
	var modules []string
	for _, m := range c.VModule {
		modules = append(modules, fmt.Sprintf("%s=%d", m.FilePattern, m.Verbosity))
	}
	if l.vmodule != nil {
		if err := l.vmodule.Set(strings.Join(modules, ",")); err != nil {
			return fmt.Errorf("set vmodule: %w", err)
		}
	}
	return l.Verbosity.Set(strconv.Itoa(int(c.Verbosity)))
}

// slogLevel converts klog verbosity to a slog level. klog levels grow with detail, slog
// levels shrink.
type slogLevel struct{ slog.LevelVar }

// String implements flag.Value.
func (l *slogLevel) String() string { return strconv.Itoa(-int(l.Level())) }

// Set implements flag.Value.
func (l *slogLevel) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return err
	}
	l.LevelVar.Set(slog.Level(-int(n)))
	return nil
}

// spellDurations writes "30s" where slog would write nanoseconds.
func spellDurations(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
