// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/config"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/modes"
)

// TestCleanupWithoutRights runs this program again as a user without privileges.
func TestCleanupWithoutRights(t *testing.T) {
	if os.Getenv("TEST_CLEANUP") != "" {
		os.Exit(execute(t.Context(), modes.All(), []string{"--cleanup"}, streams{os.Stdout, os.Stderr}))
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
	if strings.Count(lastLine, "\n") != 1 || !strings.HasPrefix(lastLine, "kube-proxy: clean up ") || !strings.HasSuffix(lastLine, ": permission denied: "+host.Privileges+"\n") {
		t.Errorf("it says:\n%s\nwant one line that ends in what to do", lastLine)
	}
}

// TestCleanupIPVS checks that virtual servers stay when --cleanup-ipvs=false.
func TestCleanupIPVS(t *testing.T) {
	c, err := config.Load(&config.Flags{Modes: modes.All().Config()}, config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	all, err := newOptions(modes.All()).Targets(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		_, servers := p.Leftovers.(ipvs.Leftovers)
		_, upstream := p.Leftovers.(ipvs.Upstream)
		if p.IPVS != (servers || upstream) {
			t.Errorf("%s: ipvs is %v", p, p.IPVS)
		}
	}
	for args, want := range map[string]bool{"": true, "--cleanup-ipvs": true, "--cleanup-ipvs=false": false} {
		o := newOptions(modes.All())
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.register(fs)
		if err := fs.Parse(append([]string{"--cleanup"}, strings.Fields(args)...)); err != nil || o.Flags.CleanupIPVS != want {
			t.Errorf("%s: %v, %v, want %v", args, o.Flags.CleanupIPVS, err, want)
		}
	}
}
