// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
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
	code := c.ProcessState.ExitCode()
	kit.Need(t, code == 1, "%v, exit %d:\n%s", err, code, out)
	kit.Check(t, strings.Count(lastLine, "\n") == 1 && strings.HasPrefix(lastLine, "kube-proxy: clean up ") && strings.HasSuffix(lastLine, ": permission denied: "+host.Privileges+"\n"),
		"it says:\n%s\nwant one line that ends in what to do", lastLine)
}

// TestCleanupIPVS checks that virtual servers stay when --cleanup-ipvs=false.
func TestCleanupIPVS(t *testing.T) {
	c, err := config.Load(&config.Flags{Modes: modes.All().Config()}, config.Linux)
	kit.Must(t, err)
	all, err := newOptions(modes.All()).Targets(t.Context(), c)
	kit.Must(t, err)
	for _, p := range all {
		_, servers := p.Leftovers.(ipvs.Leftovers)
		_, upstream := p.Leftovers.(ipvs.Upstream)
		kit.Check(t, p.IPVS == (servers || upstream), "%s: ipvs is %v", p, p.IPVS)
	}
	for args, want := range map[string]bool{"": true, "--cleanup-ipvs": true, "--cleanup-ipvs=false": false} {
		o := newOptions(modes.All())
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		o.register(fs)
		err := fs.Parse(append([]string{"--cleanup"}, strings.Fields(args)...))
		kit.Check(t, err == nil && o.Flags.CleanupIPVS == want, "%s: %v, %v, want %v", args, o.Flags.CleanupIPVS, err, want)
	}
}

// TestTakeoverWithoutRights runs this program again as a user who may program rules, but
// may not read which tables iptables-legacy has. The takeover reports that with the
// remedy.
func TestTakeoverWithoutRights(t *testing.T) {
	if os.Getenv("TEST_TAKEOVER") != "" {
		showLegacy(t)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give another user rights")
	}
	if _, err := os.Stat("/proc/self/net/ip_tables_names"); err != nil {
		t.Skip("the kernel has no iptables-legacy")
	}
	c := exec.Command("/proc/self/exe", "-test.run=^TestTakeoverWithoutRights$")
	c.Env = append(os.Environ(), "TEST_TAKEOVER=1")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET, Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW},
	}
	out, err := c.CombinedOutput()
	kit.Need(t, err == nil, "%v:\n%s", err, out)
	const right = "run as root, because only user 0 may read it, or with the right CAP_DAC_READ_SEARCH besides CAP_NET_ADMIN and CAP_NET_RAW"
	for place, file := range map[string]string{"iptables-legacy": "ip_tables_names", "ip6tables-legacy": "ip6_tables_names"} {
		want := "it is unknown whether an earlier service proxy left rules in " + place + ": "
		_, rest, found := strings.Cut(string(out), want)
		because := file + ": permission denied: " + right
		kit.Check(t, found && strings.Contains(rest, because), "it says\n%s\nwant %q because of %q", out, want, because)
	}
}

// showLegacy prints what a takeover shows of iptables-legacy.
func showLegacy(t *testing.T) {
	t.Helper()
	for _, f := range service.Families {
		ctx, cancel := context.WithCancel(t.Context())
		w := takeover.New(takeover.Options{
			Family:  f,
			Targets: []takeover.Target{{Leftovers: iptables.Leftovers{Variant: iptables.Legacy, Family: f}, Family: f}},
			Condition: func(text string) {
				fmt.Println(text)
				cancel() // the first condition is enough
			},
		})
		w.Discover(ctx)
		w.Run(ctx)
	}
}

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
		kit.Check(t, err == nil && strings.Count(string(out), want) == 2 && strings.Contains(string(out), ", wanted 1999999999: only the first network namespace"),
			"%s: %v, want success and twice %q:\n%s", args, err, want, out)
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
