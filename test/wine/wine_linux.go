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
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"kubeproxy/test/netlab"
)

// Options configure a Wine.
type Options struct {
	// Host, if not nil, is where Wine and its programs have their sockets.
	Host *netlab.Host
	// Env are variables, NAME=VALUE, of all programs and services.
	Env []string
}

// Wine is a running Windows. Its methods may be called from several goroutines.
type Wine struct {
	programs
	prefix  string
	options Options
	thread  thread
	server  *exec.Cmd
	release func() error

	mu        sync.Mutex
	processes []*Process
	logs      int
}

// New starts a Wine. The caller closes it. Its processes also end with this program, in
// whatever way that ends.
func New(ctx context.Context, windows Windows, o Options) (*Wine, error) {
	folder, release, err := windows.createCopy(ctx)
	if err != nil {
		return nil, fmt.Errorf("make a folder for Wine: %w", err)
	}
	w := &Wine{programs: windows.programs, prefix: folder, options: o, thread: newThread(), release: release}
	if err := errors.Join(windows.copyTo(folder), setEnvironment(folder, o.Env)); err != nil {
		return nil, errors.Join(fmt.Errorf("copy Wine's files: %w", err), w.Close())
	}
	if err := w.serve(ctx); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	// The services run as long as this program does.
	if _, err := w.Start(Program{Path: `C:\windows\system32\` + keepProgram}); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// awaitTimeout is how long Wine may take for anything on a busy machine.
const awaitTimeout = 2 * time.Minute

// serve starts the server that all programs of a prefix share, and returns when it
// accepts connections. It would start by itself, but then no process would end it.
func (w *Wine) serve(ctx context.Context) error {
	if err := os.MkdirAll(w.prefix, 0o755); err != nil {
		return err
	}
	cmd := w.command(w.programs.server, "-f", "-p")
	// On SIGINT it ends its programs; SIGKILL would leave them running.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	if err := w.launch(cmd); err != nil {
		return fmt.Errorf("start Wine's server: %w", err)
	}
	w.server = cmd
	for deadline := time.Now().Add(awaitTimeout); ; time.Sleep(5 * time.Millisecond) {
		socket, err := socketOf(cmd)
		if err == nil {
			_, err = os.Stat(socket)
		}
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return errors.Join(ctx.Err(), fmt.Errorf("wine's server does not take calls: %w", err))
		}
	}
}

// socketOf returns the socket of a server: it is in the server's working directory, which
// depends on how it was built.
func socketOf(server *exec.Cmd) (string, error) {
	folder, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", server.Process.Pid))
	if err != nil {
		return "", fmt.Errorf("find the folder of Wine's server: %w", err)
	}
	return filepath.Join(folder, "socket"), nil
}

// command returns a command in w's prefix.
func (w *Wine) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Env = w.Environ()
	return cmd
}

// Environ returns the environment for programs that run Command in w without Start.
func (w *Wine) Environ() []string {
	env := os.Environ()
	for _, gone := range []string{"DISPLAY", "WAYLAND_DISPLAY", "GOOS", "GOARCH", "GOFLAGS"} {
		env = without(env, gone)
	}
	return append(append(env,
		"WINEPREFIX="+w.prefix, "WINEARCH=win64", "WINEDEBUG=-all",
		"WINEDLLOVERRIDES=mscoree,mshtml,winemenubuilder.exe="), w.options.Env...)
}

func without(env []string, name string) []string {
	var rest []string
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			rest = append(rest, e)
		}
	}
	return rest
}

// Command is the program that runs Windows programs, and its first arguments. Append the
// Windows program and its arguments.
func (w *Wine) Command() []string { return append(slices.Clone(w.setarch), w.wine) }

// Prefix is the folder that contains drive_c.
func (w *Wine) Prefix() string { return w.prefix }

// File returns the path by which Windows programs open a file of this machine.
func File(path string) string { return `Z:` + strings.ReplaceAll(path, "/", `\`) }

// launch starts a command on the host of w's sockets.
func (w *Wine) launch(cmd *exec.Cmd) error {
	if w.options.Host != nil {
		return w.options.Host.Start(cmd)
	}
	return w.thread.start(cmd)
}

// run runs one of Windows' own programs.
func (w *Wine) run(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	p, err := w.Start(Program{Path: name, Args: args})
	if err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d\n%s%s", code, p.Errors(), p.Log())
	}
	if err != nil {
		p.Kill()
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// end ends all programs and the server, which writes the registry to disk.
func (w *Wine) end() error {
	defer w.thread.end()
	if w.server == nil {
		return nil
	}
	_ = w.server.Process.Signal(os.Interrupt) // fails only if it has ended
	ended := make(chan error, 1)
	go func() { ended <- w.server.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(awaitTimeout):
		return errors.Join(errors.New("wine's server does not end"), w.server.Process.Kill())
	}
}

// Close ends all programs and removes their files.
func (w *Wine) Close() error {
	w.mu.Lock()
	processes := w.processes
	w.mu.Unlock()
	for _, p := range processes {
		p.Kill()
	}
	return errors.Join(w.end(), os.RemoveAll(w.prefix), w.release())
}

// thread is a thread that lives as long as a Wine. A process with Pdeathsig dies with the
// thread that started it, see prctl(2), and any other thread may end earlier.
type thread chan func()

func newThread() thread {
	t := make(thread)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		for job := range t {
			job()
		}
	}()
	return t
}

func (t thread) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	started := make(chan error)
	t <- func() { started <- cmd.Start() }
	return <-started
}

func (t thread) end() { close(t) }

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Failed() bool
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Start runs a Wine for one test, and prepares it if necessary. If Wine is not installed,
// the test is skipped.
func Start(t TB, o Options) *Wine {
	t.Helper()
	windows, err := Build(t.Context(), os.Stderr)
	if errors.Is(err, ErrMissing) {
		t.Skipf("%v", err)
	}
	if err != nil {
		t.Fatalf("wine: %v", err)
	}
	w, err := New(t.Context(), windows, o)
	if err != nil {
		t.Fatalf("wine: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			w.report(t)
		}
		if err := w.Close(); err != nil {
			t.Errorf("close Wine: %v", err)
		}
	})
	return w
}

// report logs the last output of programs, and Wine's messages about them.
func (w *Wine) report(t TB) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.processes {
		name := filepath.Base(p.program.Path)
		if text := p.Tail(); text != "" {
			t.Logf("the end of the log of %s:\n%s", name, text)
		}
		if text := p.Errors(); text != "" {
			t.Logf("errors of Wine, running %s %q:\n%s", name, p.program.Args, text)
		}
	}
}

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
