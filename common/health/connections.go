// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// MaxConnections is how many connections a server has at the same time, where the
// process may have enough open files.
const MaxConnections = 128

// Connections bounds how many connections one server has, or several together.
// Whoever comes gets in, and the connection that has been idle for longest is
// closed, or the oldest if none is idle: a probe asks at once and is gone soon.
type Connections struct {
	limit int

	mu       sync.Mutex
	elements map[net.Conn]*list.Element
	idle     list.List // of net.Conn without a request under way, the oldest first
	busy     list.List // of those with one
}

// NewConnections allows so many, at least one.
func NewConnections(limit int) *Connections {
	return &Connections{limit: max(1, limit), elements: map[net.Conn]*list.Element{}}
}

// sendBuffer bounds what the kernel keeps of an answer that nobody reads.
const sendBuffer = 64 << 10

// connState is for the field ConnState of an http.Server, which calls it with a new
// connection before it accepts the next.
func (c *Connections) connState(conn net.Conn, state http.ConnState) {
	if t, ok := conn.(interface{ SetWriteBuffer(int) error }); ok && state == http.StateNew {
		_ = t.SetWriteBuffer(sendBuffer)
	}
	for _, x := range c.update(conn, state) {
		if t, ok := x.(interface{ SetLinger(int) error }); ok {
			_ = t.SetLinger(0) // nothing is kept of it
		}
		_ = x.Close()
	}
}

// update notes how a connection is now, and returns those to close.
func (c *Connections) update(conn net.Conn, state http.ConnState) (evicted []net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.forget(conn); !known && state != http.StateNew {
		return nil // it is closed already
	}
	switch state {
	case http.StateNew, http.StateIdle:
		c.elements[conn] = c.idle.PushBack(conn)
	case http.StateActive:
		c.elements[conn] = c.busy.PushBack(conn)
	}
	for len(c.elements) > c.limit {
		e := c.idle.Front()
		if e == nil || e.Value.(net.Conn) == conn {
			e = c.busy.Front()
		}
		x := e.Value.(net.Conn)
		c.forget(x)
		evicted = append(evicted, x)
	}
	return evicted
}

func (c *Connections) forget(conn net.Conn) (known bool) {
	e, known := c.elements[conn]
	if !known {
		return false
	}
	delete(c.elements, conn)
	c.idle.Remove(e) // which does nothing to one of another list
	c.busy.Remove(e)
	return true
}
