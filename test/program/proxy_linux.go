// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// Proxy is a running kube-proxy.
type Proxy struct {
	// Log is its whole log so far.
	Log *Log

	host  *netlab.Host
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of the process's end
}

// Start starts the proxy on h, with args as in Command, without waiting for it. It is
// killed at the end of the test. If the test has failed by then, its log becomes part of
// the test's.
func (p Program) Start(t testing.TB, h *netlab.Host, args ...string) *Proxy {
	t.Helper()
	return Start(t, h, p.Command(args...))
}

// Start starts a command with a special environment or special files.
func Start(t testing.TB, h *netlab.Host, cmd *exec.Cmd) *Proxy {
	t.Helper()
	r := &Proxy{Log: &Log{}, host: h, cmd: cmd, ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r.Log, r.Log
	if err := h.Start(r.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.err = r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("log of the proxy:\n%s", r.Log)
		}
	})
	return r
}

// Stop stops the proxy as a service manager does, and fails the test unless it exits with
// success.
func (r *Proxy) Stop(t testing.TB) {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("stop the proxy: %v", err)
	}
	if err := r.Wait(t); err != nil {
		t.Errorf("stopped, the proxy ended with %v, want exit status 0", err)
	}
}

// Wait waits until the proxy has ended and returns its error.
func (r *Proxy) Wait(t testing.TB) error {
	t.Helper()
	select {
	case <-r.ended:
		return r.err
	case <-time.After(kit.Limit): // see Kill
		t.Fatal("the proxy does not end")
		return nil
	}
}

// Ended returns whether the proxy has ended, for any reason.
func (r *Proxy) Ended() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// Kill ends the proxy as a crash does, if it still runs. A busy kernel may need a minute
// to free the resources of a killed process; Kill does not wait for that.
func (r *Proxy) Kill() {
	_ = r.cmd.Process.Kill()
	select {
	case <-r.ended:
	case <-time.After(2 * time.Second):
	}
}

// AwaitLog waits until one line of the log contains all of words.
func (r *Proxy) AwaitLog(t testing.TB, words ...string) {
	t.Helper()
	kit.Until(t, "a line of the log with "+strings.Join(words, " and "), func() bool { return r.Log.Has(words...) })
}
