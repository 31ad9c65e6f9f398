// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"bytes"
	"io"
	"testing"

	"kubeproxy/test/kit"
)

// count returns the number of pipes, and how many of them are free.
func (co *copier) count() (made, free int) {
	co.mu.Lock()
	defer co.mu.Unlock()
	return co.openPipes, len(co.free)
}

// TestSplice copies data through a pipe that returns to its pool, and without one when
// there are no more.
func TestSplice(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	m := &n.relay.copier
	pass := func() {
		t.Helper()
		c := n.dial(t, web)
		answers(t, c)
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() {
			_, _ = c.Write(sent)
			_ = c.CloseWrite()
		}()
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back, want %d: %v", len(got), len(sent), err)
		}
	}
	pass()
	if made, _ := m.count(); made == 0 || made > 2 {
		t.Errorf("%d pipes for one connection", made)
	}
	allFree(t, m)
	m.mu.Lock()
	m.openPipes, m.free = maxPipes, nil
	m.mu.Unlock()
	pass()
	if _, free := m.count(); free != 0 {
		t.Error("there are more pipes than may be")
	}
}

// TestIdleConnectionsHoldNoPipe opens many connections that become idle.
func TestIdleConnectionsHoldNoPipe(t *testing.T) {
	e := newEcho(t)
	n, web := newWeb(t, e.at)
	for range 50 {
		answers(t, n.dial(t, web))
	}
	m := &n.relay.copier
	allFree(t, m)
	if made, _ := m.count(); made > 10 {
		t.Errorf("%d pipes for 50 idle connections", made)
	}
}

func allFree(t *testing.T, m *copier) {
	t.Helper()
	kit.Until(t, "all pipes are free", func() bool {
		made, free := m.count()
		return free == made
	})
}
