// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

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

// logs is the one logger and what of it can change while it runs.
type logs struct {
	klog.Logger
	verbosity flag.Value
	vmodule   flag.Value // nil in format json
}

// startLogging makes the one logger, which klog's own functions use too.
// Nothing is buffered, so there is nothing to lose when the process dies. Where
// there was another logger, as in a service that begins anew, nobody may look
// after it meanwhile.
func startLogging(c *logsapi.LoggingConfiguration, w io.Writer) (*logs, error) {
	klog.StopFlushDaemon()
	w = printable.Writer(w)
	l := &logs{}
	if c.Format == "json" {
		level := &slogLevel{}
		klog.SetSlogLogger(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: spellDurations})))
		l.verbosity = level
	} else {
		text := textlogger.NewConfig(textlogger.Output(w))
		klog.SetLoggerWithOptions(textlogger.NewLogger(text), klog.ContextualLogger(true))
		l.verbosity, l.vmodule = text.Verbosity(), text.VModule()
	}
	l.Logger = klog.Background()
	return l, l.reconfigure(c)
}

// reconfigure takes in everything but the format.
func (l *logs) reconfigure(c *logsapi.LoggingConfiguration) error {
	if d := c.FlushFrequency.Duration.Duration; d > 0 { // 0 would end the process
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
	return l.verbosity.Set(strconv.Itoa(int(c.Verbosity)))
}

// slogLevel is a level of detail for slog. Those of klog count upward as
// detail grows, those of slog downward.
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
