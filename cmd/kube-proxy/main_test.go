// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestShutdown sends one signal, two, and none.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		signals := make(chan os.Signal, 2)
		code := make(chan int, 1)
		begin := time.Now()
		go func() { code <- (&shutdown{cancel: cancel, log: io.Discard, limit: stopLimit}).waitForSignal(signals) }()
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Error("ended without a signal")
		}
		signals <- syscall.SIGTERM
		if got := <-code; got != 143 || time.Since(begin) != time.Hour+stopLimit || ctx.Err() == nil {
			t.Errorf("code %d after %s, want 143 at %s after the signal", got, time.Since(begin), stopLimit)
		}
		begin = time.Now()
		go func() { code <- (&shutdown{cancel: cancel, log: io.Discard, limit: stopLimit}).waitForSignal(signals) }()
		signals <- syscall.SIGTERM
		signals <- syscall.SIGINT
		if got := <-code; got != 130 || time.Since(begin) != 0 {
			t.Errorf("code %d after %s, want 130 at once", got, time.Since(begin))
		}
	})
}
