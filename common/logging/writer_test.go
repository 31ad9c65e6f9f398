// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// blockedWriter is a Writer that blocks until it is opened.
type blockedWriter struct {
	open chan struct{}
	bytes.Buffer
}

func (b *blockedWriter) Write(text []byte) (int, error) {
	<-b.open
	return b.Buffer.Write(text)
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

// brokenWriter fails as long as it has no reader.
type brokenWriter struct {
	read bool
	bytes.Buffer
}

func (b *brokenWriter) Write(text []byte) (int, error) {
	if !b.read {
		return 0, syscall.EPIPE
	}
	return b.Buffer.Write(text)
}

// TestLostLog loses the reader of the log for some lines.
func TestLostLog(t *testing.T) {
	for first, want := range map[string]string{
		"text 1\n":       "kube-proxy: 2 lines of the log were dropped while nobody read it\n",
		`{"n":1}` + "\n": `"level":"ERROR","msg":"Lines of the log were dropped while nobody read it","lines":2}` + "\n",
	} {
		b := &brokenWriter{}
		w := NewWriter(b)
		fmt.Fprint(w, first)
		fmt.Fprint(w, first)
		b.read = true
		fmt.Fprint(w, first)
		kit.Until(t, "the log is written", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.writing
		})
		if got := b.String(); !strings.HasPrefix(got, first) || !strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
