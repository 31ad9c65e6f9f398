// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// blockedWriter is a Writer that blocks until it is opened.
type blockedWriter struct {
	open chan struct{}
	bytes.Buffer
}

func (g *blockedWriter) Write(text []byte) (int, error) {
	<-g.open
	return g.Buffer.Write(text)
}

// TestStalledLog stalls the log for a while and for more lines than fit into the buffer.
func TestStalledLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &blockedWriter{open: make(chan struct{})}
		u := &nonblockingWriter{to: g}
		begin := time.Now()
		const lines = 3000
		for i := range lines {
			fmt.Fprintf(u, "%04d %s\n", i, strings.Repeat("x", 994))
		}
		if took := time.Since(begin); took != stallAfter {
			t.Errorf("%d lines took %s, want %s for the first and nothing for the rest", lines, took, stallAfter)
		}
		close(g.open)
		synctest.Wait()
		text := g.String()
		kept := strings.Count(text, "x\n")
		if want := fmt.Sprintf("kube-proxy: %d lines of the log were dropped while nobody took it\n", lines-kept); kept < stallBuffer/1000 || !strings.HasSuffix(text, want) {
			t.Errorf("%d lines are kept, and the end is %q", kept, text[max(len(text)-200, 0):])
		}
		g.Reset()
		fmt.Fprintln(u, "after")
		if g.String() != "after\n" {
			t.Errorf("the first line after a stall: %q, want it written when Write returns", g.String())
		}
	})
}

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
