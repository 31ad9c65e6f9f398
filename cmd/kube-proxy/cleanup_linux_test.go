// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"kubeproxy/config"
	"kubeproxy/platform/linux/ipvs"
)

// TestCleanupWithoutRights runs this program again as a user without privileges.
func TestCleanupWithoutRights(t *testing.T) {
	if os.Getenv("TEST_CLEANUP") != "" {
		os.Exit(execute(t.Context(), []string{"--cleanup"}, streams{os.Stdout, os.Stderr}))
	}
	c := exec.Command("/proc/self/exe", "-test.run=^TestCleanupWithoutRights$")
	c.Env = append(os.Environ(), "TEST_CLEANUP=1")
	c.Dir = "/"
	// The namespaces isolate it from the root user's setup on this machine.
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if os.Getuid() != 0 {
		c.SysProcAttr = nil
	}
	out, err := c.CombinedOutput()
	lastLine := lastLines(string(out))
	if code := c.ProcessState.ExitCode(); code != 1 {
		t.Fatalf("%v, exit %d:\n%s", err, code, out)
	}
	if strings.Count(lastLine, "\n") != 1 || !strings.HasPrefix(lastLine, "kube-proxy: clean up ") || !strings.HasSuffix(lastLine, ": permission denied: "+cleanupPrivileges+"\n") {
		t.Errorf("it says:\n%s\nwant one line that ends in what to do", lastLine)
	}
}

func TestOnlyForbidden(t *testing.T) {
	other := errors.New("other")
	tests := map[string]struct {
		err  error
		want bool
	}{
		"nothing":       {nil, false},
		"not permitted": {fmt.Errorf("look: %w: as root", syscall.EPERM), true},
		"unread":        {unreadError{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}}, true},
		"several":       {fmt.Errorf("look: %w", errors.Join(syscall.EPERM, syscall.EACCES)), true},
		"another":       {fmt.Errorf("look: %w", other), false},
		"mixed":         {errors.Join(syscall.EPERM, other), false},
	}
	for name, tt := range tests {
		if got := onlyForbidden(tt.err); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestCleanupIPVS checks that virtual servers stay when --cleanup-ipvs=false.
func TestCleanupIPVS(t *testing.T) {
	c, err := config.Load(&config.Flags{}, config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	all, err := cleanupTargets(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		_, servers := p.leftovers.(ipvs.Leftovers)
		_, upstream := p.leftovers.(ipvs.Upstream)
		if p.ipvs != (servers || upstream) {
			t.Errorf("%s: ipvs is %v", p, p.ipvs)
		}
	}
	for args, want := range map[string]bool{"": true, "--cleanup-ipvs": true, "--cleanup-ipvs=false": false} {
		o := &options{}
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.register(fs)
		if err := fs.Parse(append([]string{"--cleanup"}, strings.Fields(args)...)); err != nil || o.config.CleanupIPVS != want {
			t.Errorf("%s: %v, %v, want %v", args, o.config.CleanupIPVS, err, want)
		}
	}
}
