// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
)

// connection is the key of a request's connection in its context.
type connection struct{}

var errTruncated = errors.New("the rest is cut off")

// truncate passes a request on, and cuts the response as the fault describes.
func truncate(fault Fault, pass http.Handler, w http.ResponseWriter, r *http.Request) {
	if fault.Cut == 0 {
		pass.ServeHTTP(w, r)
		return
	}
	defer func() {
		// The handler panics if the response is incomplete, so that it does not look
		// complete. Here it should.
		if p := recover(); p != nil && p != any(http.ErrAbortHandler) {
			panic(p)
		}
		if c, ok := r.Context().Value(connection{}).(net.Conn); ok && fault.Reset {
			reset(c)
		}
	}()
	pass.ServeHTTP(&truncatedWriter{ResponseWriter: w, left: fault.Cut}, r)
}

// reset closes c with a TCP reset.
func reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it may be closed already, which is the aim
	}
	_ = c.Close()
}

// truncatedWriter passes only the first bytes of a response.
type truncatedWriter struct {
	http.ResponseWriter
	left int
}

// Unwrap gives the handler access to Flush.
func (b *truncatedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (b *truncatedWriter) WriteHeader(code int) {
	b.Header().Del("Content-Length") // else the response would not look complete
	b.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (b *truncatedWriter) Write(text []byte) (int, error) {
	if len(text) <= b.left {
		n, err := b.ResponseWriter.Write(text)
		b.left -= n
		return n, err
	}
	n, err := b.ResponseWriter.Write(text[:b.left])
	b.left -= n
	_ = http.NewResponseController(b.ResponseWriter).Flush() // the client may be gone
	return n, errors.Join(err, errTruncated)
}
