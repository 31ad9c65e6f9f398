// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Writer is a log writer that does not block for long. Each Write goes to the
// output at once and returns when it is written, so a crash loses nothing. If the output
// blocks, such as a full pipe or a hanging disk, further lines are buffered. When the
// buffer is full, or the output fails, such as a full disk or a pipe whose reader has ended,
// lines are dropped and counted. The count follows the next line that is written.
type Writer struct {
	to io.Writer

	mu      sync.Mutex
	lines   []logLine // not written yet
	size    int       // of lines, in bytes
	dropped int
	json    bool // the last line is an object
	writing bool // a goroutine writes
	stalled bool // for longer than stallAfter
}

// NewWriter returns a Writer with an output.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

type logLine struct {
	text []byte
	done chan struct{} // closed when it is written
	lost int           // of how many dropped lines it tells
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
	w.lines = append(w.lines, logLine{slices.Clone(text), done, 0})
	w.size += len(text)
	if !w.writing {
		w.writing = true
		go w.drain()
	}
	return done, !w.stalled
}

// drain writes lines until there are none.
func (w *Writer) drain() {
	failing := false
	for {
		line, more := w.next(failing)
		if !more {
			return
		}
		_, err := w.to.Write(line.text)
		if failing = err != nil; failing {
			w.mu.Lock()
			w.dropped += max(line.lost, 1)
			w.mu.Unlock()
		}
		close(line.done)
	}
}

// next returns the line to write next: while lines were dropped and the output works, how many
// that were. Without one, drain ends.
func (w *Writer) next(failing bool) (line logLine, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) == 0 && w.dropped > 0 && !failing {
		line = logLine{noticeOf(w.dropped, w.json), make(chan struct{}), w.dropped}
		w.dropped = 0
		return line, true
	}
	if len(w.lines) == 0 {
		w.writing, w.stalled = false, false
		return line, false
	}
	line = w.lines[0]
	w.lines, w.size = w.lines[1:], w.size-len(line.text)
	w.json = bytes.HasPrefix(line.text, []byte("{"))
	return line, true
}

// noticeOf says in the format of the log how many lines are missing.
func noticeOf(dropped int, json bool) []byte {
	if json {
		return fmt.Appendf(nil, `{"time":%q,"level":"ERROR","msg":"Lines of the log were dropped while nobody read it","lines":%d}`+"\n",
			time.Now().Format(time.RFC3339Nano), dropped)
	}
	return fmt.Appendf(nil, "kube-proxy: %d lines of the log were dropped while nobody read it\n", dropped)
}
