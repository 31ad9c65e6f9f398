// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// startLogging makes the one logger, which klog's own functions use too.
// Nothing is buffered, so there is nothing to lose when the process dies.
// The level of detail can be changed while it runs, but not for JSON: then
// it is nil.
func startLogging(c *logsapi.LoggingConfiguration, w io.Writer) (klog.Logger, flag.Value, error) {
	klog.StartFlushDaemon(c.FlushFrequency.Duration.Duration)
	if c.Format == "json" {
		// klog's levels count upward as detail grows, those of slog downward.
		level := slog.Level(-int(c.Verbosity))
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: spellDurations})))
		return klog.Background(), nil, nil
	}
	text := textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(int(c.Verbosity)))
	var modules []string
	for _, m := range c.VModule {
		modules = append(modules, fmt.Sprintf("%s=%d", m.FilePattern, m.Verbosity))
	}
	if err := text.VModule().Set(strings.Join(modules, ",")); err != nil {
		return klog.Logger{}, nil, fmt.Errorf("set vmodule: %w", err)
	}
	klog.SetLoggerWithOptions(textlogger.NewLogger(text), klog.ContextualLogger(true))
	return klog.Background(), text.Verbosity(), nil
}

// spellDurations writes "30s" where slog would write nanoseconds.
func spellDurations(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}
