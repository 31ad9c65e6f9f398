// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"bytes"
	"strings"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// NewLog returns a logger with lines up to a level, and the buffer it writes to.
func NewLog(level int) (klog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&b), textlogger.Verbosity(level))), &b
}

// LogLines returns the log lines, each as its severity and its message: "I Programmed".
func LogLines(b *bytes.Buffer) []string {
	var all []string
	for line := range strings.Lines(b.String()) {
		_, text, _ := strings.Cut(line, "] ")
		all = append(all, line[:1]+" "+strings.TrimSpace(text))
	}
	return all
}
