// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/files"
	"kubeproxy/common/reconcile"
)

// Server serves a handler on one address. Set the fields before Run.
type Server struct {
	Name    string // for logs and errors, such as "metrics"
	Addr    string // host:port; [::] is every address of both families, or of the one that there is
	Handler http.Handler
	// HardFail makes an address that cannot be bound an error. Otherwise Run retries.
	HardFail bool
	// Listening, if set, is called with the address once it is bound.
	Listening func(net.Addr)
	// Attempted, if set, is called for each attempt to bind, with its error or nil.
	Attempted func(error)
	// TLS, if set, makes it a server of HTTPS.
	TLS *tls.Config
	// Connections, if set, bounds the connections, in place of MaxConnections.
	Connections *Connections
	// Listen, if set, replaces the system's function.
	Listen func(ctx context.Context, network, addr string) (net.Listener, error)
}

// lacksFamily reports that the kernel has no IPv6, as with ipv6.disable=1, see
// https://man7.org/linux/man-pages/man2/socket.2.html
// Windows has a number of its own for that, WSAEAFNOSUPPORT:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
func lacksFamily(err error) bool {
	const wsaNoFamily = syscall.Errno(10047)
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, wsaNoFamily)
}

// rebindInterval is the pause after a failed attempt to bind.
const rebindInterval = 5 * time.Second

// shutdownTimeout bounds the time that requests have to finish at the end.
const shutdownTimeout = time.Second

// Run serves until ctx ends, which is not an error.
func (s *Server) Run(ctx context.Context) error {
	log := klog.FromContext(ctx).WithValues("server", s.Name, "address", s.Addr)
	for failures := 0; ctx.Err() == nil; failures++ {
		err := s.once(ctx, func() {
			if failures > 0 {
				log.Info("Serving after all", "attempts", failures+1)
			}
			failures = 0
		})
		if err == nil {
			return nil
		}
		if s.HardFail {
			return err
		}
		if failures == 0 {
			log.Error(err, "Not served; trying again until it works", "every", rebindInterval)
		}
		reconcile.Pause(ctx, rebindInterval)
	}
	return nil
}

// once serves until ctx ends or an error occurs. It calls bound once it listens.
func (s *Server) once(ctx context.Context, bound func()) error {
	l, err := s.listen(ctx)
	if s.Attempted != nil {
		s.Attempted(err)
	}
	if err != nil {
		return err
	}
	bound()
	if s.Listening != nil {
		s.Listening(l.Addr())
	}
	conns := s.Connections
	if conns == nil {
		conns = NewConnections(MaxConnections)
	}
	if s.TLS != nil {
		l = tls.NewListener(l, s.TLS)
	}
	return Serve(ctx, s.Name, l, s.Handler, conns)
}

func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	listen := s.Listen
	if listen == nil {
		var lc net.ListenConfig
		listen = lc.Listen
	}
	network, err := networkOf(s.Addr)
	if err != nil {
		return nil, fmt.Errorf("%s server: %w", s.Name, err)
	}
	l, err := listen(ctx, network, s.Addr)
	if port, all := strings.CutPrefix(s.Addr, "[::]:"); all && lacksFamily(err) {
		l, err = listen(ctx, "tcp4", "0.0.0.0:"+port)
	}
	if err != nil {
		return nil, fmt.Errorf("%s server: %w", s.Name, err)
	}
	return l, nil
}

// networkOf returns "tcp" for [::], which serves both families.
func networkOf(addr string) (string, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("address %q: want host:port", addr)
	}
	if ip := net.ParseIP(host); ip != nil && ip.To4() != nil {
		return "tcp4", nil
	}
	return "tcp", nil
}

// Serve answers on l until ctx ends, which is not an error, and closes l. It bounds the
// resources of slow or silent clients, for each one and in total.
func Serve(ctx context.Context, name string, l net.Listener, h http.Handler, conns *Connections) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnState:         conns.connState,
		ErrorLog:          newErrorLog(klog.FromContext(ctx), name).standard(),
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if srv.Shutdown(bye) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(l)
	if !stop() {
		<-done
	}
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("%s server: %w", name, err)
}

// Certificate is a certificate and its key, in files that may be replaced at any time.
type Certificate struct {
	certFile, keyFile string
	report            func(error)

	mu        sync.Mutex // held from a read to its report, so that reports keep their order
	cert, key []byte
	latest    *tls.Certificate
}

// maxCertificate bounds each file, in bytes.
const maxCertificate = 1 << 20

// LoadCertificate reads a certificate and its key in PEM. report, if not nil, is called
// with what a later read resulted in, nil for success.
func LoadCertificate(certFile, keyFile string, report func(error)) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, report: report}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// Config returns the configuration of a server with the certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.current}
}

// current returns the certificate in the files. While these cannot be used, it returns
// the previous one, for example while only one of the two files has been replaced.
func (c *Certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.read()
	if c.report != nil {
		c.report(err)
	}
	return c.latest, nil
}

func (c *Certificate) read() error {
	cert, _, err := files.Read(c.certFile, maxCertificate)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.certFile, err)
	}
	key, _, err := files.Read(c.keyFile, maxCertificate)
	if err != nil {
		return fmt.Errorf("key %s: %w", c.keyFile, err)
	}
	if c.latest != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w; want both in PEM, and of one pair", c.certFile, c.keyFile, err)
	}
	c.latest, c.cert, c.key = &pair, cert, key
	return nil
}

// MaxConnections bounds the connections to a server, if the process may open enough files.
const MaxConnections = 128

// Connections bounds the connections to one or several servers. A new one is always accepted: over
// the limit, the one that is idle for longest is closed, or the oldest. This suits probes, which
// send their request at once and close soon.
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

// connState is an http.Server's ConnState hook, called with one connection after the other.
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

// errorLogInterval is the time from one line about clients of a server to the next.
const errorLogInterval = time.Minute

// errorLog is the log of an http.Server. A client causes a line with each connection that
// is no TLS, so lines are at least a minute apart, and count those in between.
type errorLog struct {
	log    klog.Logger
	server string

	mu      sync.Mutex
	logged  time.Time
	omitted int
}

func newErrorLog(log klog.Logger, server string) *errorLog {
	return &errorLog{log: log, server: server}
}

// standard returns the log in the form that net/http takes.
func (e *errorLog) standard() *log.Logger { return log.New(e, "", 0) }

// Write implements io.Writer. A line is about a client, or a panic of ours, always logged.
func (e *errorLog) Write(line []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := string(bytes.TrimSpace(line))
	now := time.Now()
	switch {
	case strings.HasPrefix(text, "http: panic serving"):
		e.log.Error(nil, text, "server", e.server)
	case !e.logged.IsZero() && now.Sub(e.logged) < errorLogInterval:
		e.omitted++
	default:
		e.log.Info("A server could not answer a client", "server", e.server, "reason", text, "omitted", e.omitted)
		e.logged, e.omitted = now, 0
	}
	return len(line), nil
}

const (
	// freshFor is how long an answer is reused for equal requests.
	freshFor = 100 * time.Millisecond
	// maxShared bounds the memory of answers that clients do not read, but for a single one.
	maxShared = 4 << 20
)

// responseCache generates one answer for equal requests at about the same time. Over its limit for
// answers that clients do not read, it cuts off the readers of the oldest.
type responseCache struct {
	handler http.Handler

	buildMu   sync.Mutex // for one answer at a time
	mu        sync.Mutex
	responses []*cachedResponse // oldest first
}

// cachedResponse is one answer, shared by its readers. It implements http.ResponseWriter.
type cachedResponse struct {
	key     string
	made    time.Time
	header  http.Header
	status  int
	body    bytes.Buffer
	readers map[*http.ResponseController]bool
}

func (c *cachedResponse) Header() http.Header         { return c.header }
func (c *cachedResponse) WriteHeader(status int)      { c.status = status }
func (c *cachedResponse) Write(b []byte) (int, error) { return c.body.Write(b) }

func cached(h http.Handler) http.Handler { return &responseCache{handler: h} }

// ServeHTTP implements http.Handler.
func (r *responseCache) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	reader := http.NewResponseController(w)
	a := r.response(q, reader)
	defer r.release(a, reader)
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}

// response returns the latest answer to q if it is fresh, or otherwise a new one.
func (r *responseCache) response(q *http.Request, reader *http.ResponseController) *cachedResponse {
	key := q.Method + " " + q.URL.Path + "\n" + q.Header.Get("Accept") + "\n" + q.Header.Get("Accept-Encoding")
	r.buildMu.Lock()
	defer r.buildMu.Unlock()
	if a := r.fresh(key, reader); a != nil {
		return a
	}
	a := &cachedResponse{key: key, header: http.Header{}, status: http.StatusOK, readers: map[*http.ResponseController]bool{reader: true}}
	r.handler.ServeHTTP(a, q)
	a.made = time.Now()
	r.store(a)
	return a
}

// fresh returns an answer that is new enough, and registers the reader.
func (r *responseCache) fresh(key string, reader *http.ResponseController) *cachedResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.responses {
		if a.key == key && time.Since(a.made) < freshFor {
			a.readers[reader] = true
			return a
		}
	}
	return nil
}

// store adds a, and keeps as many older answers as the limit permits.
func (r *responseCache) store(a *cachedResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.responses = append(r.responses, a)
	size := 0
	for i, x := range slices.Backward(r.responses) {
		if size += x.body.Cap(); size <= maxShared || x == a {
			continue
		}
		for _, old := range r.responses[:i+1] {
			for reader := range old.readers {
				_ = reader.SetWriteDeadline(time.Now())
			}
		}
		r.responses = slices.Delete(r.responses, 0, i+1)
		return
	}
}

// release unregisters a reader that has read a or has gone.
func (r *responseCache) release(a *cachedResponse, reader *http.ResponseController) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(a.readers, reader)
	if len(a.readers) > 0 {
		return
	}
	if left := freshFor - time.Since(a.made); left > 0 {
		time.AfterFunc(left, func() { r.evict(a) })
		return
	}
	r.responses = slices.DeleteFunc(r.responses, func(x *cachedResponse) bool { return x == a })
}

// evict removes a, unless it has a reader.
func (r *responseCache) evict(a *cachedResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(a.readers) == 0 {
		r.responses = slices.DeleteFunc(r.responses, func(x *cachedResponse) bool { return x == a })
	}
}
