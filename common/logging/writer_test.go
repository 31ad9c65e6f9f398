// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"fmt"
	"strings"
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
		u := NewWriter(g)
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
		if want := fmt.Sprintf("kube-proxy: %d lines of the log were dropped while nobody read it\n", lines-kept); kept < stallBuffer/1000 || !strings.HasSuffix(text, want) {
			t.Errorf("%d lines are kept, and the end is %q", kept, text[max(len(text)-200, 0):])
		}
		g.Reset()
		fmt.Fprintln(u, "after")
		if g.String() != "after\n" {
			t.Errorf("the first line after a stall: %q, want it written when Write returns", g.String())
		}
	})
}
