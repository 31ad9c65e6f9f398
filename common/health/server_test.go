// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"io"
	"kubeproxy/test/kit"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"
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
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
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
	if code, body := fetch(t, addr, "/"); code != 200 || body != "hi" {
		t.Errorf("answer = %d %q", code, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v, want nil at the end", err)
	}
	if log.Len() > 0 {
		t.Errorf("log = %s, want nothing", log)
	}
	if c, err := net.Dial("tcp", addr.String()); err == nil {
		c.Close()
		t.Error("still listening after the end")
	}
}

func TestAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var failed error
	s := Server{Name: "metrics", Addr: l.Addr().String(), HardFail: true, Attempted: func(err error) { failed = err }}
	got := s.Run(t.Context())
	if got == nil || !strings.Contains(got.Error(), "metrics server: listen tcp4 "+s.Addr) || !errors.Is(got, failed) {
		t.Errorf("Run = %v, reported %v; want the address in the error", got, failed)
	}
}

func TestBadAddress(t *testing.T) {
	s := Server{Name: "metrics", Addr: "localhost", HardFail: true}
	const want = `metrics server: address "localhost": want host:port`
	if err := s.Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("Run = %v, want %s", err, want)
	}
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
		if err := s.Run(t.Context()); err == nil || !slices.Equal(asked, want) {
			t.Errorf("after %v: %v, listened on %q, want %q", refusal, err, asked, want)
		}
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
			if network+addr != "tcp40.0.0.0:10256" {
				t.Errorf("listen on %s %s", network, addr)
			}
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
		if diff := cmp.Diff(want, tried); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]bool{false, false, false, true}, attempts); diff != "" {
			t.Errorf("reported (-want +got):\n%s", diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if a, b := strings.Count(log.String(), "Not served"), strings.Count(log.String(), "Serving after all"); a != 1 || b != 1 {
			t.Errorf("log = %s, want one line for the failure and one for its end", log)
		}
	})
}

func TestSoftFailEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), klog.Logger{}), time.Second)
		defer cancel()
		s := Server{Addr: "[::]:1", Listen: func(context.Context, string, string) (net.Listener, error) { return nil, errRefused }}
		begin := time.Now()
		if err := s.Run(ctx); err != nil || time.Since(begin) != time.Second {
			t.Errorf("Run = %v after %s, want the end of the context", err, time.Since(begin))
		}
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
		if err != nil {
			t.Errorf("Run = %v", err)
		}
	case <-time.After(20 * shutdownTimeout):
		t.Error("Run waits for a request that does not end")
	}
	select {
	case <-ended:
	case <-time.After(20 * shutdownTimeout):
		t.Error("the request was not ended")
	}
}
