// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// MaxConnections is the maximum number of connections to a server, if the process may
// have enough open files.
const MaxConnections = 128

// Connections bounds the number of connections to one server, or to several together. A
// new connection is always accepted. Over the limit, the connection that has been idle
// for longest is closed, or the oldest if none is idle. This suits probes, which send
// their request at once and close soon.
type Connections struct {
	limit int

	mu       sync.Mutex
	elements map[net.Conn]*list.Element
	idle     list.List // net.Conn without a request in progress, oldest first
	busy     list.List // net.Conn with one
}

// NewConnections returns a limit of at least one.
func NewConnections(limit int) *Connections {
	return &Connections{limit: max(1, limit), elements: map[net.Conn]*list.Element{}}
}

// sendBuffer bounds the kernel's buffer for an answer that the client does not read.
const sendBuffer = 64 << 10

// What is asked of connections by type assertion: the options of TCP, and what is below TLS.
type (
	sendBuffered interface{ SetWriteBuffer(int) error }
	lingering    interface{ SetLinger(int) error }
	carried      interface{ NetConn() net.Conn }
)

var (
	_ sendBuffered = (*net.TCPConn)(nil)
	_ lingering    = (*net.TCPConn)(nil)
	_ carried      = (*tls.Conn)(nil)
)

// connState is the ConnState hook of an http.Server. The server calls it with a new
// connection before it accepts the next one.
func (c *Connections) connState(conn net.Conn, state http.ConnState) {
	if t, ok := carrier(conn).(sendBuffered); ok && state == http.StateNew {
		_ = t.SetWriteBuffer(sendBuffer)
	}
	for _, x := range c.update(conn, state) {
		x = carrier(x)
		if t, ok := x.(lingering); ok {
			_ = t.SetLinger(0) // discard unsent data
		}
		_ = x.Close()
	}
}

// carrier returns the connection below TLS, which has the options of TCP. To close it does not
// wait for the client, as tls.Conn.Close does to send its farewell.
func carrier(conn net.Conn) net.Conn {
	if t, ok := conn.(carried); ok {
		return t.NetConn()
	}
	return conn
}

// update records the state of a connection and returns the connections to close.
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
	c.idle.Remove(e) // no effect on an element of another list
	c.busy.Remove(e)
	return true
}
