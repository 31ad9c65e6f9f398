// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Writer is a log writer that does not block for long. Each Write goes to the
// output at once and returns when it is written, so a crash loses nothing. If the output
// blocks, such as a full pipe or a hanging disk, further lines are buffered. When the
// buffer is full, lines are dropped and counted.
type Writer struct {
	to io.Writer

	mu      sync.Mutex
	lines   []logLine // not written yet
	size    int       // of lines, in bytes
	dropped int
	writing bool // a goroutine writes
	stalled bool // for longer than stallAfter
}

// NewWriter returns a Writer with an output.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

type logLine struct {
	text []byte
	done chan struct{} // closed when it is written
}

const (
	// stallAfter is how long a line may take.
	stallAfter = time.Second
	// stallBuffer is how many bytes of lines are buffered during a stall.
	stallBuffer = 1 << 20
)

// Write implements io.Writer. It returns no error, as there is no other place to report
// one.
func (w *Writer) Write(text []byte) (int, error) {
	done, wait := w.queue(text)
	if !wait {
		return len(text), nil
	}
	timer := time.NewTimer(stallAfter)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		w.mu.Lock()
		w.stalled = w.writing
		w.mu.Unlock()
	}
	return len(text), nil
}

// queue appends a line to the buffer. done is closed when the line is written; wait is
// whether to wait for that.
func (w *Writer) queue(text []byte) (done chan struct{}, wait bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size+len(text) > stallBuffer && len(w.lines) > 0 {
		w.dropped++
		return nil, false
	}
	done = make(chan struct{})
	w.lines = append(w.lines, logLine{slices.Clone(text), done})
	w.size += len(text)
	if !w.writing {
		w.writing = true
		go w.drain()
	}
	return done, !w.stalled
}

// drain writes lines until there are none.
func (w *Writer) drain() {
	for {
		w.mu.Lock()
		if len(w.lines) == 0 && w.dropped > 0 {
			text := fmt.Appendf(nil, "kube-proxy: %d lines of the log were dropped while nobody read it\n", w.dropped)
			w.lines, w.size, w.dropped = append(w.lines, logLine{text, make(chan struct{})}), len(text), 0
		}
		if len(w.lines) == 0 {
			w.writing, w.stalled = false, false
			w.mu.Unlock()
			return
		}
		line := w.lines[0]
		w.lines, w.size = w.lines[1:], w.size-len(line.text)
		w.mu.Unlock()
		_, _ = w.to.Write(line.text)
		close(line.done)
	}
}
