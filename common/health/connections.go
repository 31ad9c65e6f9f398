// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// MostConnections is how many connections a server has at the same time, where the
// process may have enough open files.
const MostConnections = 128

// Connections bounds how many connections one server has, or several together.
// Whoever comes gets in, and the connection that has been idle for longest is
// closed, or the oldest if none is idle: a probe asks at once and is gone soon.
type Connections struct {
	most int

	mu   sync.Mutex
	at   map[net.Conn]*list.Element
	idle list.List // of net.Conn without a request under way, the oldest first
	busy list.List // of those with one
}

// NewConnections allows so many, at least one.
func NewConnections(most int) *Connections {
	return &Connections{most: max(1, most), at: map[net.Conn]*list.Element{}}
}

// sendBuffer bounds what the kernel keeps of an answer that nobody reads.
const sendBuffer = 64 << 10

// follow is for the field ConnState of an http.Server, which calls it with a new
// connection before it accepts the next.
func (c *Connections) follow(conn net.Conn, state http.ConnState) {
	if t, ok := conn.(interface{ SetWriteBuffer(int) error }); ok && state == http.StateNew {
		_ = t.SetWriteBuffer(sendBuffer)
	}
	for _, x := range c.turn(conn, state) {
		if t, ok := x.(interface{ SetLinger(int) error }); ok {
			_ = t.SetLinger(0) // nothing is kept of it
		}
		_ = x.Close()
	}
}

// turn notes how a connection is now, and returns those to close.
func (c *Connections) turn(conn net.Conn, state http.ConnState) (over []net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.forget(conn); !known && state != http.StateNew {
		return nil // it is closed already
	}
	switch state {
	case http.StateNew, http.StateIdle:
		c.at[conn] = c.idle.PushBack(conn)
	case http.StateActive:
		c.at[conn] = c.busy.PushBack(conn)
	}
	for len(c.at) > c.most {
		e := c.idle.Front()
		if e == nil || e.Value.(net.Conn) == conn {
			e = c.busy.Front()
		}
		x := e.Value.(net.Conn)
		c.forget(x)
		over = append(over, x)
	}
	return over
}

func (c *Connections) forget(conn net.Conn) (known bool) {
	e, known := c.at[conn]
	if !known {
		return false
	}
	delete(c.at, conn)
	c.idle.Remove(e) // which does nothing to one of another list
	c.busy.Remove(e)
	return true
}
