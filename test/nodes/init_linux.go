// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runMachine is process 1 of a machine. It returns only if the machine cannot start.
func runMachine(m *Machine) error {
	if err := m.mountAll(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(m.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := os.Setenv("PATH", m.Path); err != nil {
		return err
	}
	if err := m.forward(); err != nil {
		return err
	}
	p := &processes{machine: m, running: map[int]Step{}, ended: make(chan ended)}
	go p.reap()
	return p.run()
}

// forward sends connections to the machine's listener on to an address in the machine.
func (m *Machine) forward() error {
	if m.Forward == "" {
		return nil
	}
	l, err := net.FileListener(os.NewFile(listenerFile, "listener"))
	if err != nil {
		return fmt.Errorf("take over the listener: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, "accept:", err)
				return
			}
			go m.join(c)
		}
	}()
	return nil
}

// join copies between a connection and one to the address that it is for.
func (m *Machine) join(c net.Conn) {
	defer c.Close()
	to, err := net.Dial("tcp", m.Forward)
	if err != nil {
		return // the client sees its connection end
	}
	defer to.Close()
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)           // a broken connection ends both ways
		_ = to.(*net.TCPConn).CloseWrite() // fails if that side is gone already
		done <- struct{}{}
	}
	go pass(to, c)
	go pass(c, to)
	<-done
	<-done
}

// processes are the children of process 1, and the orphans that the kernel gives it.
type processes struct {
	machine *Machine
	running map[int]Step
	ended   chan ended
}

type ended struct {
	pid    int
	status syscall.WaitStatus
}

// reap waits for all children, as nobody else does for orphans.
func (p *processes) reap() {
	for {
		var e ended
		pid, err := syscall.Wait4(-1, &e.status, 0, nil)
		switch {
		case errors.Is(err, syscall.ECHILD):
			time.Sleep(20 * time.Millisecond) // there is none
		case err == nil:
			e.pid = pid
			p.ended <- e
		}
	}
}

// retryPause is between the end of a program and its next start.
const retryPause = 500 * time.Millisecond

// run starts the steps one after the other, and again what ended too early.
func (p *processes) run() error {
	waiting, blocked := p.machine.Steps, false
	for {
		for len(waiting) > 0 && !blocked {
			if err := p.start(waiting[0]); err != nil {
				return err
			}
			blocked, waiting = waiting[0].Kind == Once, waiting[1:]
		}
		e := <-p.ended
		s, ours := p.running[e.pid]
		if !ours {
			continue // an orphan
		}
		delete(p.running, e.pid)
		if s.Kind == Once && e.status.ExitStatus() == 0 {
			blocked = false
			continue
		}
		time.Sleep(retryPause)
		if err := p.start(s); err != nil {
			return err
		}
	}
}

func (p *processes) start(s Step) error {
	log, err := os.OpenFile(p.machine.Log(s.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	path, err := exec.LookPath(s.Args[0])
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	child, err := os.StartProcess(path, s.Args, &os.ProcAttr{
		Dir: "/", Files: []*os.File{null, log, log}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	pid := child.Pid
	p.running[pid] = s
	// For those who want to end the program alone.
	return errors.Join(child.Release(), os.WriteFile(filepath.Join("/run", s.Name+".pid"), fmt.Appendln(nil, pid), 0o644))
}
