// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/test/kit"
)

// hello is a handler with a recognizable answer.
func hello(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) })
}

// fetch sends a request to a server on loopback.
func fetch(t *testing.T, addr net.Addr, path string) (int, string) {
	t.Helper()
	c := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get("http://" + addr.String() + path)
	kit.Must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	kit.Must(t, err)
	return res.StatusCode, string(body)
}

func TestServerServesUntilTheEnd(t *testing.T) {
	logger, log := kit.NewLog(0)
	ctx := klog.NewContext(t.Context(), logger)
	ctx, cancel := context.WithCancel(ctx)
	bound, done := make(chan net.Addr, 1), make(chan error, 1)
	s := Server{Name: "health", Addr: "127.0.0.1:0", Handler: hello("hi"), Listening: func(a net.Addr) { bound <- a }}
	go func() { done <- s.Run(ctx) }()
	addr := <-bound
	code, body := fetch(t, addr, "/")
	kit.Check(t, code == 200 && body == "hi", "answer = %d %q", code, body)
	cancel()
	err := <-done
	kit.Check(t, err == nil, "Run = %v, want nil at the end", err)
	kit.Check(t, log.Len() == 0, "log = %s, want nothing", log)
	if c, err := net.Dial("tcp", addr.String()); err == nil {
		c.Close()
		t.Error("still listening after the end")
	}
}

func TestAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	kit.Must(t, err)
	defer l.Close()
	var failed error
	s := Server{Name: "metrics", Addr: l.Addr().String(), HardFail: true, Attempted: func(err error) { failed = err }}
	got := s.Run(t.Context())
	kit.Check(t, got != nil && strings.Contains(got.Error(), "metrics server: listen tcp4 "+s.Addr) && errors.Is(got, failed),
		"Run = %v, reported %v; want the address in the error", got, failed)
}

func TestBadAddress(t *testing.T) {
	s := Server{Name: "metrics", Addr: "localhost", HardFail: true}
	const want = `metrics server: address "localhost": want host:port`
	err := s.Run(t.Context())
	kit.Check(t, err != nil && err.Error() == want, "Run = %v, want %s", err, want)
}

// TestNodeWithoutIPv6 checks that [::] is every address of IPv4 where the kernel has no
// IPv6, and that another failure is none of that.
func TestNodeWithoutIPv6(t *testing.T) {
	for _, refusal := range []syscall.Errno{syscall.EAFNOSUPPORT, 10047, syscall.EADDRINUSE} {
		var asked []string
		s := Server{Name: "health", Addr: "[::]:10256", HardFail: true, Listen: func(_ context.Context, network, addr string) (net.Listener, error) {
			asked = append(asked, network+" "+addr)
			return nil, &net.OpError{Op: "listen", Net: network, Err: os.NewSyscallError("socket", refusal)}
		}}
		want := []string{"tcp [::]:10256"}
		if refusal != syscall.EADDRINUSE {
			want = append(want, "tcp4 0.0.0.0:10256")
		}
		err := s.Run(t.Context())
		kit.Check(t, err != nil && slices.Equal(asked, want), "after %v: %v, listened on %q, want %q", refusal, err, asked, want)
	}
}

// stuckListener is a listener that never returns a connection.
type stuckListener struct {
	net.Listener
	closed chan struct{}
}

func (s *stuckListener) Accept() (net.Conn, error) {
	<-s.closed
	return nil, net.ErrClosed
}

func (s *stuckListener) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func (s *stuckListener) Addr() net.Addr { return &net.TCPAddr{} }

// An address that cannot be bound is retried every five seconds, and logged once.
func TestSoftFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, log := kit.NewLog(0)
		ctx := klog.NewContext(t.Context(), logger)
		ctx, cancel := context.WithCancel(ctx)
		var tried []time.Duration
		var attempts []bool
		begin, running := time.Now(), &stuckListener{closed: make(chan struct{})}
		s := Server{Name: "health", Addr: "0.0.0.0:10256", Handler: hello("hi")}
		s.Attempted = func(err error) { attempts = append(attempts, err == nil) }
		s.Listen = func(_ context.Context, network, addr string) (net.Listener, error) {
			tried = append(tried, time.Since(begin))
			kit.Check(t, network+addr == "tcp40.0.0.0:10256", "listen on %s %s", network, addr)
			if len(tried) == 4 {
				return running, nil
			}
			return nil, errRefused
		}
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second}
		kit.Same(t, "attempts (-want +got)", want, tried)
		kit.Same(t, "reported (-want +got)", []bool{false, false, false, true}, attempts)
		cancel()
		err := <-done
		kit.Check(t, err == nil, "Run = %v", err)
		a, b := strings.Count(log.String(), "Not served"), strings.Count(log.String(), "Serving after all")
		kit.Check(t, a == 1 && b == 1, "log = %s, want one line for the failure and one for its end", log)
	})
}

func TestSoftFailEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), klog.Logger{}), time.Second)
		defer cancel()
		s := Server{Addr: "[::]:1", Listen: func(context.Context, string, string) (net.Listener, error) { return nil, errRefused }}
		begin := time.Now()
		err := s.Run(ctx)
		kit.Check(t, err == nil && time.Since(begin) == time.Second, "Run = %v after %s, want the end of the context", err, time.Since(begin))
	})
}

// A request in progress may finish, within a limit.
func TestSlowRequestDoesNotHoldUpTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	bound, done := make(chan net.Addr, 1), make(chan error, 1)
	began := make(chan struct{})
	ended := make(chan struct{})
	h := http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		close(began)
		<-q.Context().Done()
		close(ended)
	})
	s := Server{Addr: "127.0.0.1:0", Handler: h, Listening: func(a net.Addr) { bound <- a }}
	go func() { done <- s.Run(ctx) }()
	addr := <-bound
	go http.Get("http://" + addr.String())
	<-began
	cancel()
	select {
	case err := <-done:
		kit.Check(t, err == nil, "Run = %v", err)
	case <-time.After(20 * shutdownTimeout):
		t.Error("Run waits for a request that does not end")
	}
	select {
	case <-ended:
	case <-time.After(20 * shutdownTimeout):
		t.Error("the request was not ended")
	}
}

// keyPair returns a certificate with a serial number and its key, in PEM.
func keyPair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err = x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	kit.Must(t, err)
	key, err = x509.MarshalPKCS8PrivateKey(private)
	kit.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	kit.Must(t, os.WriteFile(file, text, 0o600))
}

// serial asks a server, and returns the serial number of its certificate.
func serial(t *testing.T, addr string) int64 {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Get("https://" + addr + "/")
	kit.Must(t, err)
	answer.Body.Close()
	return answer.TLS.PeerCertificates[0].SerialNumber.Int64()
}

// TestCertificate replaces the files of a server that runs. Half of a pair, and a file
// that has gone, change nothing and are reported.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	oldCert, oldKey := keyPair(t, 1)
	newCert, newKey := keyPair(t, 2)
	write(t, certFile, oldCert)
	write(t, keyFile, oldKey)
	reports := make(chan error, 10)
	c, err := LoadCertificate(certFile, keyFile, func(err error) { reports <- err })
	kit.Must(t, err)
	bound := make(chan string, 1)
	s := Server{Name: "test", Addr: "127.0.0.1:0", Handler: hello("x"), TLS: c.Config(), Listening: func(a net.Addr) { bound <- a.String() }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	addr := <-bound
	for _, step := range []struct {
		name   string
		change func()
		want   int64
		report string
	}{
		{"as loaded", func() {}, 1, ""},
		{"half of a pair", func() { write(t, certFile, newCert) }, 1, "of one pair"},
		{"both", func() { write(t, keyFile, newKey) }, 2, ""},
		{"no file", func() { os.Remove(keyFile) }, 2, keyFile},
	} {
		step.change()
		got := serial(t, addr)
		kit.Check(t, got == step.want, "%s: certificate %d, want %d", step.name, got, step.want)
		if err := <-reports; (err == nil) != (step.report == "") || err != nil && !strings.Contains(err.Error(), step.report) {
			t.Errorf("%s: reported %v, want %q", step.name, err, step.report)
		}
	}
	cancel()
	err = <-ended
	kit.Check(t, err == nil, "%v", err)
	_, err = LoadCertificate(certFile, keyFile, nil)
	kit.Check(t, err != nil && strings.Contains(err.Error(), keyFile), "loaded without a key: %v", err)
}

// serveTest serves h with at most the given number of connections until the test ends.
func serveTest(t *testing.T, h http.Handler, most int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Serve(ctx, "test", l, h, NewConnections(most)) }()
	t.Cleanup(func() {
		cancel()
		err := <-done
		kit.Check(t, err == nil, "%v", err)
	})
	return l.Addr().String()
}

// dialAndWrite connects and sends text.
func dialAndWrite(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	_, err = io.WriteString(c, text)
	kit.Must(t, err)
	return c
}

const request = "GET / HTTP/1.1\r\nHost: node\r\n\r\n"

// closed waits for the end of c.
func closed(c net.Conn) bool {
	_, err := io.Copy(io.Discard, c)
	timeout, ok := err.(net.Error)
	return !ok || !timeout.Timeout()
}

// TestNewConnectionsGetIn closes the connections that have been idle for longest.
func TestNewConnectionsGetIn(t *testing.T) {
	addr := serveTest(t, hello("hello"), 10)
	var idle []net.Conn
	for i := range 50 {
		idle = append(idle, dialAndWrite(t, addr, []string{"", "GET / HT"}[i%2]))
	}
	for range 20 {
		c := dialAndWrite(t, addr, request)
		answer, err := io.ReadAll(io.LimitReader(c, 12))
		kit.Need(t, err == nil && string(answer) == "HTTP/1.1 200", "%q, %v", answer, err)
	}
	for i, c := range idle[:30] {
		// The read timeout of the server would close it later.
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		kit.Need(t, closed(c), "idle connection %d is open", i)
	}
}

// TestKeptConnectionsCount opens connections beyond the limit that have had an answer each.
func TestKeptConnectionsCount(t *testing.T) {
	const most = 10
	addr := serveTest(t, hello("hello"), most)
	var kept []net.Conn
	for range 4 * most {
		c := dialAndWrite(t, addr, request)
		answer, err := io.ReadAll(io.LimitReader(c, 12))
		kit.Need(t, err == nil && string(answer) == "HTTP/1.1 200", "%q, %v", answer, err)
		kept = append(kept, c)
	}
	var open atomic.Int64
	var all sync.WaitGroup
	for _, c := range kept {
		all.Go(func() {
			if _ = c.SetReadDeadline(time.Now().Add(time.Second)); !closed(c) {
				open.Add(1)
			}
		})
	}
	all.Wait()
	kit.Check(t, open.Load() <= most, "%d of %d connections are open, of which %d may be", open.Load(), len(kept), most)
}

// fakeConn records what is done to a connection of TCP.
type fakeConn struct {
	net.Conn // nil: nothing else may be called
	done     []string
}

func (f *fakeConn) SetWriteBuffer(n int) error { return f.record("buffer " + strconv.Itoa(n)) }
func (f *fakeConn) SetLinger(n int) error      { return f.record("linger " + strconv.Itoa(n)) }
func (f *fakeConn) Close() error               { return f.record("close") }

func (f *fakeConn) record(what string) error {
	f.done = append(f.done, what)
	return nil
}

// TestConnectionsAreBounded checks that each connection has a bounded buffer, and that one which
// makes room leaves nothing in it, with and without TLS. Nothing is sent at its end, since the
// client may not read.
func TestConnectionsAreBounded(t *testing.T) {
	for name, wrap := range map[string]func(net.Conn) net.Conn{
		"HTTP":  func(c net.Conn) net.Conn { return c },
		"HTTPS": func(c net.Conn) net.Conn { return tls.Server(c, &tls.Config{}) },
	} {
		conns, first := NewConnections(1), &fakeConn{}
		conns.connState(wrap(first), http.StateNew)
		conns.connState(wrap(&fakeConn{}), http.StateNew)
		want := []string{"buffer 65536", "linger 0", "close"}
		kit.Check(t, slices.Equal(first.done, want), "%s: %q, want %q", name, first.done, want)
	}
}

// TestUnreadAnswersShare checks that unread answers share memory, and that their readers
// are cut off at the limit.
func TestUnreadAnswersShare(t *testing.T) {
	const size, most = 4 << 20, 100
	var made atomic.Int64
	addr := serveTest(t, cached(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte(strconv.Itoa(int(made.Add(1)%10))), size))
	})), most)
	before := heap()
	var unread []net.Conn
	for i := range most {
		unread = append(unread, dialAndWrite(t, addr, "GET /"+strconv.Itoa(i)+" HTTP/1.1\r\nHost: node\r\n\r\n"))
	}
	for deadline := time.Now().Add(10 * time.Second); made.Load() < most && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // a later answer to one of them would cut off the readers
	}
	c := dialAndWrite(t, addr, "GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
	if answer, err := io.ReadAll(c); err != nil || len(answer) < size {
		t.Fatalf("who reads has %d bytes, %v", len(answer), err)
	}
	grown := heap() - before
	for deadline := time.Now().Add(10 * time.Second); grown > 16<<20 && time.Now().Before(deadline); grown = heap() - before {
		time.Sleep(10 * time.Millisecond) // a reader that was cut off has to notice
	}
	kit.Check(t, grown <= 16<<20, "%d unread answers hold %d MB", most, grown>>20)
	n, err := io.Copy(io.Discard, unread[0])
	kit.Check(t, err != nil || n < size, "the oldest was not cut off")
}

// TestAnswersAreShared checks that requests within a moment share an answer.
func TestAnswersAreShared(t *testing.T) {
	made := 0
	s := cached(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		made++
		w.Header().Set("Content-Type", "text/x")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, q.URL.Path)
	}))
	addr := serveTest(t, s, MaxConnections)
	for range 20 {
		answer, err := http.Get("http://" + addr + "/a")
		kit.Must(t, err)
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		kit.Check(t, answer.StatusCode == http.StatusTeapot && string(body) == "/a" && answer.Header.Get("Content-Type") == "text/x",
			"%d %q %v", answer.StatusCode, body, answer.Header)
	}
	kit.Check(t, made <= 19, "made %d answers", made)
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(time.Millisecond) {
		x := s.(*responseCache)
		x.mu.Lock()
		left := len(x.responses)
		x.mu.Unlock()
		if left == 0 {
			break
		}
		kit.Need(t, !time.Now().After(deadline), "answers are held that nobody reads")
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestClientsDoNotFillTheLog checks that a thousand connections without TLS take a line a
// minute, and that a panic is not lost among them.
func TestClientsDoNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, text := kit.NewLog(0)
		log := newErrorLog(logger, "metrics").standard()
		for range 2 {
			for range 500 {
				log.Printf("http: TLS handshake error from 192.0.2.1:4711: client sent an HTTP request to an HTTPS server")
			}
			time.Sleep(errorLogInterval)
		}
		log.Printf("http: panic serving 192.0.2.1:4711: a fault\nat a place")
		if got := text.String(); strings.Count(got, "TLS handshake error") != 2 || !strings.Contains(got, "omitted=499") || !strings.Contains(got, "panic serving") || strings.Count(got, `server="metrics"`) != 3 {
			t.Errorf("log:\n%s", got)
		}
	})
}
