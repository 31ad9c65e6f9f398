// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"os/exec"
	"testing"
	"time"

	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/program"
)

// eachVariant runs test in mode iptables with each of the variants.
func eachVariant(t *testing.T, test func(*testing.T, mode)) {
	t.Parallel()
	for _, v := range program.IPTablesVariants {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			m := defaultMode()
			m.flags = append(m.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false")
			m.iptables = v
			test(t, m)
		})
	}
}

// proxyMode is the mode of the proxy, as its log names it.
func (m mode) proxyMode() string {
	switch {
	case m.userspace:
		return "userspace"
	case m.iptables != "":
		return "iptables"
	case m.ipvs:
		return "ipvs"
	}
	return "nftables"
}

// withoutPodDetection is m without the flags that identify pods.
func (m mode) withoutPodDetection() mode {
	switch {
	case m.ipvs:
		return mode{ipvs: true, flags: []string{"--proxy-mode=ipvs"}}
	case m.iptables == "":
		return mode{}
	}
	flags := []string{"--proxy-mode=" + m.proxyMode(), "--iptables-localhost-nodeports=false"}
	if m.userspace {
		flags = append(flags, slowUDP)
	}
	return mode{iptables: m.iptables, userspace: m.userspace, flags: flags}
}

// audit returns a Kernel for c's mode.
func (c *cluster) audit(t *testing.T) *program.Kernel {
	t.Helper()
	m := c.mode
	if m.ipvs {
		return program.NewIPVSKernel(t, c.Node, ipvs.Options{MasqueradeBit: cmp.Or(m.bit, 14), Scheduler: m.scheduler, SyncPeriod: time.Minute})
	}
	if m.iptables == "" {
		return program.NewKernel(t, c.Node, m.bit)
	}
	if c.commands == "" {
		c.commands = program.IPTables(t, m.iptables)
	}
	o := iptables.Options{MasqueradeBit: cmp.Or(m.bit, 14), LocalhostNodePorts: m.localhost, DropInvalid: true, Dir: c.commands}
	if m.userspace {
		b := m.bound
		b.Rules = o
		return program.NewUserspaceKernel(t, c.Node, b)
	}
	return program.NewIPTablesKernel(t, c.Node, o)
}

// command prepares a run of the proxy in c's mode.
func (c *cluster) command(args ...string) *exec.Cmd {
	if c.Cgroup != "" { // it is on even where it cannot work
		args = append([]string{"--socket-acceleration"}, args...)
	}
	return program.With(kubeProxy.Command(args...), c.commands)
}

func TestIPTablesEveryCell(t *testing.T) { eachVariant(t, everyCell) }

func TestIPTablesSCTP(t *testing.T) { eachVariant(t, everySCTPCell) }

func TestIPTablesModes(t *testing.T) { eachVariant(t, everyMode) }

func TestIPTablesBridge(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) { onBridge(t, m.withoutPodDetection()) })
}
