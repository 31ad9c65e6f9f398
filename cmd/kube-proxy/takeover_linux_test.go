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

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/platform/linux/iptables"
)

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
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	const right = "run as root, because only user 0 may read it, or with the right CAP_DAC_READ_SEARCH besides CAP_NET_ADMIN and CAP_NET_RAW"
	for place, file := range map[string]string{"iptables-legacy": "ip_tables_names", "ip6tables-legacy": "ip6_tables_names"} {
		want := "it is unknown whether an earlier service proxy left rules in " + place + ": "
		_, rest, found := strings.Cut(string(out), want)
		if because := file + ": permission denied: " + right; !found || !strings.Contains(rest, because) {
			t.Errorf("it says\n%s\nwant %q because of %q", out, want, because)
		}
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
