// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// nonblockingWriter is a log writer that does not block for long. Each Write goes to the
// output at once and returns when it is written, so a crash loses nothing. If the output
// blocks, such as a full pipe or a hanging disk, further lines are buffered. When the
// buffer is full, lines are dropped and counted.
type nonblockingWriter struct {
	to io.Writer

	mu      sync.Mutex
	lines   []logLine // not written yet
	size    int       // of lines, in bytes
	dropped int
	writing bool // a goroutine writes
	stalled bool // for longer than stallAfter
}

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
func (u *nonblockingWriter) Write(text []byte) (int, error) {
	done, wait := u.queue(text)
	if !wait {
		return len(text), nil
	}
	timer := time.NewTimer(stallAfter)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		u.mu.Lock()
		u.stalled = u.writing
		u.mu.Unlock()
	}
	return len(text), nil
}

// queue appends a line to the buffer. done is closed when the line is written; wait is
// whether to wait for that.
func (u *nonblockingWriter) queue(text []byte) (done chan struct{}, wait bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.size+len(text) > stallBuffer && len(u.lines) > 0 {
		u.dropped++
		return nil, false
	}
	done = make(chan struct{})
	u.lines = append(u.lines, logLine{slices.Clone(text), done})
	u.size += len(text)
	if !u.writing {
		u.writing = true
		go u.drain()
	}
	return done, !u.stalled
}

// drain writes lines until there are none.
func (u *nonblockingWriter) drain() {
	for {
		u.mu.Lock()
		if len(u.lines) == 0 && u.dropped > 0 {
			text := fmt.Appendf(nil, "kube-proxy: %d lines of the log were dropped while nobody took it\n", u.dropped)
			u.lines, u.size, u.dropped = append(u.lines, logLine{text, make(chan struct{})}), len(text), 0
		}
		if len(u.lines) == 0 {
			u.writing, u.stalled = false, false
			u.mu.Unlock()
			return
		}
		line := u.lines[0]
		u.lines, u.size = u.lines[1:], u.size-len(line.text)
		u.mu.Unlock()
		_, _ = u.to.Write(line.text)
		close(line.done)
	}
}
