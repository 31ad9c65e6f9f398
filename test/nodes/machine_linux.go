// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is one host of a cluster. What it runs is written to a file, which its process 1
// reads.
type Machine struct {
	Name string
	// Cluster distinguishes machines of several clusters that have the same name.
	Cluster string
	Folder  string // has its files, and its log files in log
	// Path is where its programs are found.
	Path string
	// Forward is an address in the machine that connections to its listener go to.
	Forward string
	Steps   []Step
}

// Step is a program that a machine runs at its start, in order.
type Step struct {
	Name string // of its log
	Args []string
	// Kind says when the next step begins.
	Kind StepKind
}

// StepKind is how a Step runs.
type StepKind string

// A Once step ends before the next one begins, and is tried until it succeeds. A Forever
// step goes on, and starts again when it ends. It is what systemd would do.
const (
	Once    StepKind = "once"
	Forever StepKind = "forever"
)

// namespace is the name of the machine's network namespace, see ip-netns(8), and of its
// cgroups.
func (m *Machine) namespace() string {
	if m.Cluster != "" {
		return "kubeproxy-" + m.Cluster + "-" + m.Name
	}
	return "kubeproxy-" + m.Name
}

func (m *Machine) path(name string) string { return filepath.Join(m.Folder, name) }

// Log returns the file that has the output of a step.
func (m *Machine) Log(step string) string { return filepath.Join(m.Folder, "log", step+".log") }

// boot starts the machine. Its network namespace must exist. A listener, if it has one,
// becomes that of the machine.
func (m *Machine) boot(l *net.TCPListener) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Join(m.Folder, "log"), 0o755), os.WriteFile(m.path("machine.json"), text, 0o600))
	}
	if err != nil {
		return fmt.Errorf("describe %s: %w", m.Name, err)
	}
	cmd := exec.Command("/proc/self/exe", BootCommand, m.path("machine.json"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl+C ends it before it has written the number of process 1
	if l != nil {
		f, err := l.File()
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles = []*os.File{f}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("boot %s: %w\n%s", m.Name, err, out)
	}
	return nil
}

// process returns the number of the machine's process 1 in the namespace of the host, 0 if
// the machine does not run. A file says it, and if that is wrong, all processes are searched:
// what boots a machine can end before it has written the file, and the file can be lost.
func (m *Machine) process() int {
	text, _ := os.ReadFile(m.path("pid"))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && m.isFirst(pid) {
		return pid
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	for _, folder := range all {
		if pid, err := strconv.Atoi(filepath.Base(folder)); err == nil && m.isFirst(pid) {
			return pid
		}
	}
	return 0
}

// isFirst returns whether a process is the machine's process 1.
func (m *Machine) isFirst(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.HasSuffix(string(line), "\x00"+initCommand+"\x00"+m.path("machine.json")+"\x00")
}

// stopTimeout is how long the kernel may take to end a machine.
const stopTimeout = 30 * time.Second

// kill ends all processes of the machine at once, as a power failure does, and removes
// its cgroups.
func (m *Machine) kill() error {
	if pid := m.process(); pid != 0 {
		if err := unix.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("end %s: %w", m.Name, err)
		}
		if err := poll(context.Background(), stopTimeout, func() (bool, error) { return !m.isFirst(pid), nil }); err != nil {
			return fmt.Errorf("end %s: %w", m.Name, err)
		}
	}
	return m.removeCgroups()
}

// remove is kill, and takes the machine's network away.
func (m *Machine) remove() error {
	return errors.Join(m.kill(), m.removeNamespace())
}

// Command returns a command that runs in the machine as if somebody had logged in there. With
// ctx ends its process group: nsenter(1) only waits for the command, as a process does not
// enter a namespace of processes itself.
func (m *Machine) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	cmd, err := m.command(ctx, args)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := unix.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, unix.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	return cmd, nil
}

// Enter is Command for somebody at a terminal, which sends Ctrl+C to the command: it stays in
// the process group of this program.
func (m *Machine) Enter(args ...string) (*exec.Cmd, error) {
	return m.command(context.Background(), args)
}

func (m *Machine) command(ctx context.Context, args []string) (*exec.Cmd, error) {
	pid := m.process()
	if pid == 0 {
		return nil, fmt.Errorf("%s does not run", m.Name)
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target=" + strconv.Itoa(pid), "--all", "--wdns=/", "--"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+m.Path)
	return cmd, nil
}

// poll asks done until it says so, the time is over or ctx ends. An error of done is the
// reason why it is not done yet.
func poll(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		ok, err := done()
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline) && err != nil:
			return fmt.Errorf("not done after %s: %w", limit, err)
		case time.Now().After(deadline):
			return fmt.Errorf("not done after %s", limit)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// program returns the number of a program of a step, in the numbers of the host. The
// machine knows it by another number, see pid_namespaces(7).
func (m *Machine) program(step string) (int, error) {
	own := m.process()
	if own == 0 {
		return 0, fmt.Errorf("%s does not run", m.Name)
	}
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", own)) // each thread has its own
	if err != nil {
		return 0, err
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may end meanwhile
		for _, child := range strings.Fields(string(text)) {
			name, err := os.ReadFile(filepath.Join("/proc", child, "cmdline"))
			if first, _, _ := strings.Cut(string(name), "\x00"); err == nil && filepath.Base(first) == step {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, fmt.Errorf("%s runs no %s", m.Name, step)
}
