// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"kubeproxy/test/netlab"
)

// Process is a program of the control plane, which may be ended and started again. It
// never outlives the test program.
type Process struct {
	name    string
	host    *netlab.Host
	program string
	args    []string
	log     string // a file, which all runs append to
	// ready returns why the program is not ready, nil when it is.
	ready func(context.Context) error

	mu    sync.Mutex
	cmd   *exec.Cmd // nil when it does not run
	ended chan struct{}
}

// awaitTimeout is how long a program may take until it is ready on a busy machine.
const awaitTimeout = 2 * time.Minute

// Start starts the program, with the flags of the previous run, and returns when it is
// ready.
func (p *Process) Start(ctx context.Context) error {
	if err := p.launch(); err != nil {
		return err
	}
	return p.await(ctx)
}

func (p *Process) launch() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("start %s: it runs", p.name)
	}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer f.Close() // the program has its own by then
	cmd := exec.Command(p.program, p.args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := p.host.Start(cmd); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its error is in the log, and its end is seen in await
		close(ended)
	}()
	p.cmd, p.ended = cmd, ended
	return nil
}

func (p *Process) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			p.Kill()
			return fmt.Errorf("%s ended instead of getting ready; the end of its log:\n%s", p.name, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", p.name, err, p.Tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the program as a crash does, if it runs, and returns when it has gone.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended by itself
	<-p.ended
	p.cmd = nil
}

// Restart is Kill and Start.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.Start(ctx)
}

// Pause stops the program without ending it, and returns when it has stopped. The kernel
// still accepts its connections and data for it, but the program does not answer.
func (p *Process) Pause() error {
	pid := p.Pid()
	if pid == 0 {
		return fmt.Errorf("pause %s: it does not run", p.name)
	}
	return netlab.Pause(pid)
}

// Resume continues a paused program.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("send %s to %s: it does not run", s, p.name)
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Pid is the program's process number, 0 when it does not run.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Memory returns the program's resident set in bytes.
func (p *Process) Memory() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kilobytes * 1024, err
		}
	}
	return 0, fmt.Errorf("memory of %s: %w", p.name, errors.New("no VmRSS: it has ended"))
}

// Tail returns the last lines of the program's log.
func (p *Process) Tail() string {
	const most = 40
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-most-1):], nil))
}
