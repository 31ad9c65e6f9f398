// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// TestClientsDoNotFillTheLog checks that a thousand connections without TLS take a line a
// minute, and that a panic is not lost among them.
func TestClientsDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, text := kit.NewLog(0)
		log := newErrorLog(logger, "metrics").standard()
		for range 2 {
			for range 500 {
				log.Printf("http: TLS handshake error from 192.0.2.1:4711: client sent an HTTP request to an HTTPS server")
			}
			time.Sleep(errorLogInterval)
		}
		log.Printf("http: panic serving 192.0.2.1:4711: a fault\nat a place")
		if got := text.String(); strings.Count(got, "TLS handshake error") != 2 || !strings.Contains(got, "omitted=499") || !strings.Contains(got, "panic serving") || strings.Count(got, `server="metrics"`) != 3 {
			t.Errorf("log:\n%s", got)
		}
	})
}
