// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"kubeproxy/platform/modes"
)

// TestInitOnlyWithoutRights runs this program again as a user without privileges, in a
// network namespace of its own.
func TestInitOnlyWithoutRights(t *testing.T) {
	if os.Getenv("TEST_INIT_ONLY") != "" {
		os.Exit(execute(t.Context(), modes.All(), []string{"--init-only", "--conntrack-min=1999999999"}, streams{os.Stdout, os.Stderr}))
	}
	c := exec.Command("/proc/self/exe", "-test.run=^TestInitOnlyWithoutRights$")
	c.Env = append(os.Environ(), "TEST_INIT_ONLY=1")
	c.Dir = "/"
	if os.Getuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, _ := c.CombinedOutput()
	lastLine := lastLines(string(out))
	if code := c.ProcessState.ExitCode(); code != 1 || strings.Count(lastLine, "\n") != 1 || !strings.HasPrefix(lastLine, "kube-proxy: prepare the node: ") || !strings.Contains(lastLine, "nf_conntrack_tcp_timeout_established") {
		t.Errorf("exit %d:\n%s\nwant 1 and one line that names the setting", code, out)
	}
}

// TestInitOnlyInContainer runs this program again as root of a network namespace that is not
// the first one, as on a node that is a container. The size of the table cannot be set there
// by anybody, so it is a warning, each time.
func TestInitOnlyInContainer(t *testing.T) {
	if args := os.Getenv("TEST_INIT_ONLY_IN_CONTAINER"); args != "" {
		var code int
		for range 2 {
			code = max(code, execute(t.Context(), modes.All(), strings.Fields(args), streams{os.Stdout, os.Stderr}))
		}
		os.Exit(code)
	}
	const size = "--init-only --conntrack-max-per-core=1000000 --conntrack-min=1999999999"
	for _, args := range []string{size, size + " --conntrack-tcp-timeout-established=0s --conntrack-tcp-timeout-close-wait=0s"} {
		c := exec.Command("/proc/self/exe", "-test.run=^TestInitOnlyInContainer$")
		c.Env = append(os.Environ(), "TEST_INIT_ONLY_IN_CONTAINER="+args)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		}
		out, err := c.CombinedOutput()
		const want = `Warning: system setting net.netfilter.nf_conntrack_max stays `
		if err != nil || strings.Count(string(out), want) != 2 || !strings.Contains(string(out), ", wanted 1999999999: only the first network namespace") {
			t.Errorf("%s: %v, want success and twice %q:\n%s", args, err, want, out)
		}
	}
}

// TestRehearsedInit checks that --dry-run --init-only lists the settings of the chosen
// mode, whether its module is loaded or not. It runs this program again, in a network
// namespace of its own, in which the settings of IPVS have their defaults.
func TestRehearsedInit(t *testing.T) {
	if args := os.Getenv("TEST_REHEARSED_INIT"); args != "" {
		os.Exit(execute(t.Context(), modes.All(), strings.Fields(args), streams{os.Stdout, os.Stderr}))
	}
	for mode, want := range map[string]int{"ipvs": 3, "nftables": 0} {
		c := exec.Command("/proc/self/exe", "-test.run=^TestRehearsedInit$")
		c.Env = append(os.Environ(), "TEST_REHEARSED_INIT=--dry-run --init-only --oom-score-adj=-7 --proxy-mode="+mode)
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		}
		out, err := c.Output()
		if got := strings.Count(string(out), "~ net.ipv4.vs."); err != nil || got != want || strings.Contains(string(out), "oom_score_adj") {
			t.Errorf("%s: %v, %d settings of IPVS, want %d, and no score of the process that ends:\n%s", mode, err, got, want, out)
		}
	}
}

// TestModeMisspelt is separate because each system has other modes.
func TestModeMisspelt(t *testing.T) {
	const want = `--proxy-mode: mode: "nftable" is no mode on linux; did you mean nftables? want iptables, ipvs, nftables, userspace or nothing`
	var out, errs strings.Builder
	if code := execute(t.Context(), modes.All(), []string{"--proxy-mode=nftable"}, streams{&out, &errs}); code != 1 || !strings.Contains(errs.String(), want) {
		t.Errorf("exit code %d, %q, want 1 and %q", code, errs.String(), want)
	}
}
