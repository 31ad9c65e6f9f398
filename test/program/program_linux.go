// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"kubeproxy/test/netlab"
	"kubeproxy/test/vm"
)

// Program is the built proxy.
type Program struct {
	// Path is its file, until Main returns.
	Path string
}

// Main is the whole of a TestMain: it enters a namespace in which tests may build
// networks, builds the proxy into p and runs the tests. It returns the exit code.
func Main(m *testing.M, p *Program) int {
	return netlab.Main(func() int {
		remove, err := p.build()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return code
	})
}

// build builds the program in a folder of its own, which the caller removes. A virtual
// machine cannot build, so the program is installed there in advance.
func (p *Program) build() (remove func() error, err error) {
	if p.Path = os.Getenv(vm.ProxyVariable); p.Path != "" {
		return func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "kube-proxy-test-")
	if err != nil {
		return nil, err
	}
	p.Path = filepath.Join(dir, "kube-proxy")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", p.Path, "kubeproxy/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	remove = func() error { return os.RemoveAll(dir) }
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the proxy: %w\n%s", err, out), remove())
	}
	return remove, nil
}

// baseFlags keep the program from changing what namespaces share with the machine, and
// name its node.
var baseFlags = []string{
	"--hostname-override=" + netlab.NodeName, "--conntrack-max-per-core=0", "--oom-score-adj=0",
	"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "-v=2",
}

// Command prepares a run with the flags that every test needs, and then args. The last of
// two equal flags wins.
func (p Program) Command(args ...string) *exec.Cmd {
	return exec.Command(p.Path, append(baseFlags[:len(baseFlags):len(baseFlags)], args...)...)
}

// RunTimeout bounds how long a command may take that should end by itself.
const RunTimeout = 3 * time.Minute

// Run runs cmd on h until it ends, and returns its output. If cmd has a Stdout already,
// that is only its standard error. A command that takes longer than RunTimeout is killed,
// and the test fails.
func Run(t testing.TB, h *netlab.Host, cmd *exec.Cmd) (string, error) {
	t.Helper()
	out := &Log{}
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = out
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(RunTimeout, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !limit.Stop() {
		t.Errorf("%s: did not end within %s", cmd, RunTimeout)
	}
	return out.String(), err
}

// ReplyTimeout bounds the wait for a single response. A test that may repeat a request to
// a process that is gone should not wait longer.
const ReplyTimeout = 15 * time.Second
