// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStalledLogDoesNotBlock starts the program with a pipe as standard error that is not
// read and fills up after some lines. Changes are still programmed, and a signal ends the
// program in time.
func TestStalledLogDoesNotBlock(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096); err != nil {
		t.Fatal(err)
	}
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms", "-v=9"}, c.mode.flags...)...)
	cmd.Stderr, cmd.Stdout = w, w
	ended := startOnNode(t, c, cmd)
	w.Close()
	for i := range 20 {
		c.save(t, app{name: "web", number: 10 + i}.on(c.webs()...))
		c.awaitProgrammed(t)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endsInTime(t, ended, 5*time.Second)
}

// TestLogWithoutReader ends the reader of the log while the program runs, as a log shipper that
// restarts. Changes are still programmed. A command that prints ends with its reader, silently.
func TestLogWithoutReader(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, defaultMode())
			cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms", "-v=4", "--logging-format=" + format}, c.mode.flags...)...)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr, cmd.Stdout = w, w
			ended := startOnNode(t, c, cmd)
			w.Close()
			if _, err := r.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			r.Close()
			for i := range 5 {
				c.save(t, app{name: "web", number: 10 + i}.on(c.webs()...))
				c.awaitProgrammed(t)
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			endsInTime(t, ended, 5*time.Second)
			if !cmd.ProcessState.Success() {
				t.Errorf("ended with %s", cmd.ProcessState)
			}
		})
	}
	for _, args := range [][]string{{"--help"}, {"--write-config-to=-"}} {
		cmd := kubeProxy.Command(args...)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		var problems strings.Builder
		cmd.Stdout, cmd.Stderr = w, &problems
		err = cmd.Run()
		w.Close()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGPIPE || problems.Len() > 0 {
			t.Errorf("%q: %v, %s; want an end by SIGPIPE", args, err, problems.String())
		}
	}
}

// TestPipesAndKernelFilesAreRefused replaces manifests by a named pipe and by a link to
// the kernel's log, beside a manifest that keeps changing.
func TestPipesAndKernelFilesAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	p := c.start(t)
	swap := func(make func(path string) error) {
		t.Helper()
		next := filepath.Join(c.dir, ".next")
		if err := make(next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(c.dir, "odd.yaml")); err != nil {
			t.Fatal(err)
		}
	}
	swap(func(path string) error { return unix.Mkfifo(path, 0o600) })
	p.AwaitLog(t, "odd.yaml", "is a named pipe; want a regular file")
	swap(func(path string) error { return os.Symlink("/proc/kmsg", path) })
	p.AwaitLog(t, "odd.yaml", "is a file of the kernel; want a regular file")
	for i := range 5 {
		swap(func(path string) error { return unix.Mkfifo(path, 0o600) })
		c.save(t, app{name: "two", number: 20 + i}.on(c.webs()...))
		c.remove(t, "odd.yaml") // the test itself could not read it
		c.awaitProgrammed(t)
	}
}

// startOnNode starts cmd on the node, and returns a channel that receives its error.
func startOnNode(t *testing.T, c *cluster, cmd *exec.Cmd) <-chan error {
	t.Helper()
	if err := c.Node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return ended
}

// endsInTime requires that a process ends.
func endsInTime(t *testing.T, ended <-chan error, limit time.Duration) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(limit):
		t.Errorf("has not ended after %s", limit)
	}
}
