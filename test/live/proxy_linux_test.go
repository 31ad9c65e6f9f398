// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"kubeproxy/test/netlab"
)

// proxy is a running kube-proxy.
type proxy struct {
	cmd   *exec.Cmd
	log   *logbook
	ended chan struct{}
	err   error // of the end
}

// gentle keeps the program from changing what namespaces share with the
// machine.
var gentle = []string{
	"--hostname-override=" + netlab.NodeName, "--conntrack-max-per-core=0", "--oom-score-adj=0",
	"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "-v=2",
}

// command prepares a run of the program.
func command(args ...string) *exec.Cmd {
	return exec.Command(program, append(gentle[:len(gentle):len(gentle)], args...)...)
}

// start starts the proxy on h and waits for nothing.
func start(t *testing.T, h *netlab.Host, args ...string) *proxy {
	t.Helper()
	p := &proxy{cmd: command(args...), log: &logbook{}, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	if err := h.Start(p.cmd); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the proxy:\n%s", p.log)
		}
	})
	return p
}

// stop ends p as a service manager does.
func (p *proxy) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatalf("stop the proxy: %v", err)
	}
	select {
	case <-p.ended:
	case <-time.After(4 * patience): // see kill
		t.Fatalf("the proxy does not stop")
	}
	if p.err != nil {
		t.Errorf("stopped, the proxy ended with %v, want exit status 0", p.err)
	}
}

// kill ends p as a crash does, if it is still there. A kernel with much to do
// may need a minute to take apart what a process held that does nothing any
// more; nobody waits for that.
func (p *proxy) kill() {
	_ = p.cmd.Process.Kill()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Second):
	}
}

// awaitLog waits until one line of the log holds all of words.
func (p *proxy) awaitLog(t *testing.T, words ...string) {
	t.Helper()
	await(t, "a line of the log with "+strings.Join(words, " and "), func() bool { return p.log.has(words...) })
}

// logbook is the output of a program that still runs.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// has reports that a line holds all of words.
func (l *logbook) has(words ...string) bool { return l.count(words...) > 0 }

// count returns how many lines hold all of words.
func (l *logbook) count(words ...string) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	return n
}

// run runs a program on h and returns what it prints.
func run(t *testing.T, h *netlab.Host, cmd *exec.Cmd) (string, error) {
	t.Helper()
	out := &logbook{}
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = out
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	return out.String(), err
}
