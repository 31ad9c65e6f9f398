// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logtext keeps what is logged, for tests that compare it.
package logtext

import (
	"bytes"
	"strings"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// New returns a logger with lines up to a level, and the buffer it writes to.
func New(level int) (klog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&b), textlogger.Verbosity(level))), &b
}

// Lines returns the log lines, each as its severity and its message: "I Programmed".
func Lines(b *bytes.Buffer) []string {
	var all []string
	for line := range strings.Lines(b.String()) {
		_, text, _ := strings.Cut(line, "] ")
		all = append(all, line[:1]+" "+strings.TrimSpace(text))
	}
	return all
}
