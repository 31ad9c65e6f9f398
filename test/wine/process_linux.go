// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Program describes the program to run.
type Program struct {
	// Path is a file of this machine, or the name of a program of Windows.
	Path string
	Args []string
	Env  []string // more variables
	Dir  string   // of this machine; empty for the current one
}

// Process is a program that was started. Its methods may be called from several
// goroutines.
type Process struct {
	program Program
	cmd     *exec.Cmd
	log     string
	ended   chan struct{}
}

// Start starts a program. Its output goes to a file: services that the program starts
// inherit its descriptors, and would keep a pipe open forever.
func (w *Wine) Start(p Program) (*Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logs++
	log := filepath.Join(w.prefix, fmt.Sprintf("log-%d-%s.txt", w.logs, strings.Map(plain, p.Path)))
	f, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Path, err)
	}
	defer f.Close() // the program has its own by then
	args := append(append(w.Command(), p.Path), p.Args...)
	cmd := w.command(args[0], args[1:]...)
	cmd.Env, cmd.Dir = append(append(cmd.Env, "WINEDEBUG=-all,err+all"), p.Env...), p.Dir
	cmd.Stdout, cmd.Stderr = f, f
	if err := w.launch(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Path, err)
	}
	process := &Process{program: p, cmd: cmd, log: log, ended: make(chan struct{})}
	w.processes = append(w.processes, process)
	go func() {
		_ = cmd.Wait() // the exit code shows the error
		close(process.ended)
	}()
	return process, nil
}

// plain keeps the characters of a path that a file name may have.
func plain(r rune) rune {
	if strings.ContainsRune(`/\: `, r) {
		return '_'
	}
	return r
}

// Run runs a program to its end and returns its exit code and output.
func (w *Wine) Run(ctx context.Context, p Program) (code int, output string, err error) {
	process, err := w.Start(p)
	if err != nil {
		return 0, "", err
	}
	code, err = process.Wait(ctx)
	if err != nil {
		process.Kill()
	}
	return code, process.Log(), err
}

// Wait waits for the program's end and returns its exit code, -1 if it was killed.
func (p *Process) Wait(ctx context.Context) (code int, err error) {
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for %s: %w", filepath.Base(p.program.Path), context.Cause(ctx))
	}
}

// Ended is closed when the program has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Interrupt sends Ctrl+C.
func (p *Process) Interrupt() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("interrupt %s: %w", filepath.Base(p.program.Path), err)
	}
	return nil
}

// Kill ends the program as a crash does, and returns when it has gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended by itself
	<-p.ended
}

// Log returns the program's output so far, with lines as on Linux.
func (p *Process) Log() string {
	said, _ := p.output()
	return said
}

// Errors returns the messages of Wine itself about the program. A program that Wine
// cannot start has no log, and exit code 1, which a test may expect of the program.
func (p *Process) Errors() string {
	_, errs := p.output()
	return errs
}

func (p *Process) output() (said, errs string) {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error(), ""
	}
	return split(string(text))
}

// wineError matches a line of Wine, with the thread if there was one yet.
var wineError = regexp.MustCompile(`(?m)^([0-9a-f]{4,8}:)?err:\w+:\w+ .*\n?`)

// split separates the lines of the program and of Wine, which share one output.
func split(text string) (said, errs string) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return wineError.ReplaceAllString(text, ""), strings.Join(wineError.FindAllString(text, -1), "")
}

// Tail returns the last lines of the log.
func (p *Process) Tail() string {
	const most = 60
	lines := strings.SplitAfter(p.Log(), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "")
}
