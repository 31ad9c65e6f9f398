// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// serveTest serves h with at most the given number of connections until the test ends.
func serveTest(t *testing.T, h http.Handler, most int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Serve(ctx, "test", l, h, NewConnections(most)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// dialAndWrite connects and sends text.
func dialAndWrite(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
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
		if answer, err := io.ReadAll(io.LimitReader(c, 12)); err != nil || string(answer) != "HTTP/1.1 200" {
			t.Fatalf("%q, %v", answer, err)
		}
	}
	for i, c := range idle[:30] {
		// The read timeout of the server would close it later.
		if _ = c.SetReadDeadline(time.Now().Add(time.Second)); !closed(c) {
			t.Fatalf("idle connection %d is open", i)
		}
	}
}

// TestKeptConnectionsCount opens connections beyond the limit that have had an answer each.
func TestKeptConnectionsCount(t *testing.T) {
	const most = 10
	addr := serveTest(t, hello("hello"), most)
	var kept []net.Conn
	for range 4 * most {
		c := dialAndWrite(t, addr, request)
		if answer, err := io.ReadAll(io.LimitReader(c, 12)); err != nil || string(answer) != "HTTP/1.1 200" {
			t.Fatalf("%q, %v", answer, err)
		}
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
	if n := open.Load(); n > most {
		t.Errorf("%d of %d connections are open, of which %d may be", n, len(kept), most)
	}
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
		if want := []string{"buffer 65536", "linger 0", "close"}; !slices.Equal(first.done, want) {
			t.Errorf("%s: %q, want %q", name, first.done, want)
		}
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
	if grown > 16<<20 {
		t.Errorf("%d unread answers hold %d MB", most, grown>>20)
	}
	n, err := io.Copy(io.Discard, unread[0])
	if err == nil && n >= size {
		t.Error("the oldest was not cut off")
	}
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
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusTeapot || string(body) != "/a" || answer.Header.Get("Content-Type") != "text/x" {
			t.Errorf("%d %q %v", answer.StatusCode, body, answer.Header)
		}
	}
	if made > 19 {
		t.Errorf("made %d answers", made)
	}
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(time.Millisecond) {
		x := s.(*responseCache)
		x.mu.Lock()
		left := len(x.responses)
		x.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("answers are held that nobody reads")
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
