// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"log"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// errorLogInterval is the time from one line about clients of a server to the next.
const errorLogInterval = time.Minute

// errorLog is the log of an http.Server. A client causes a line with each connection that
// is no TLS, so lines are at least a minute apart, and count those in between.
type errorLog struct {
	log    klog.Logger
	server string

	mu      sync.Mutex
	logged  time.Time
	omitted int
}

func newErrorLog(log klog.Logger, server string) *errorLog {
	return &errorLog{log: log, server: server}
}

// standard returns the log in the form that net/http takes.
func (e *errorLog) standard() *log.Logger { return log.New(e, "", 0) }

// Write implements io.Writer. A line is about a client, or about a panic of ours, which is
// always logged.
func (e *errorLog) Write(line []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := string(bytes.TrimSpace(line))
	now := time.Now()
	switch {
	case strings.HasPrefix(text, "http: panic serving"):
		e.log.Error(nil, text, "server", e.server)
	case !e.logged.IsZero() && now.Sub(e.logged) < errorLogInterval:
		e.omitted++
	default:
		e.log.Info("A server could not answer a client", "server", e.server, "reason", text, "omitted", e.omitted)
		e.logged, e.omitted = now, 0
	}
	return len(line), nil
}
