// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
)

// The addresses. A node's last number is 10 and its own number, its pods are in a network
// with that number.
const (
	controlIPv4, controlIPv6 = "172.30.0.1", "fd30::1"
	ServiceCIDR              = "10.96.0.0/16,fd00:10:96::/112"
	PodCIDR                  = "10.244.0.0/16,fd00:10:244::/48"
	dnsIP                    = "10.96.0.10"
)

// NodeIPv4 returns the address of a node, from 1.
func NodeIPv4(i int) string { return fmt.Sprintf("172.30.0.1%d", i) }

// NodeIPv6 returns the other address of a node.
func NodeIPv6(i int) string { return fmt.Sprintf("fd30::1%d", i) }

func podCIDRs(i int) (ipv4, ipv6 string) {
	return fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:10:244:%d::/64", i)
}

// forwarding are the settings of a host that passes packets on. Addresses are used at
// once, without a search for duplicates.
var forwarding = map[string]string{
	"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
	"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0",
	"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
}

// addNamespace makes the machine's network namespace, a host that passes packets on.
func (m *Machine) addNamespace() error {
	if err := ip("netns", "add", m.namespace()); err != nil {
		return err
	}
	return m.inside(func() error {
		var errs []error
		for name, value := range forwarding {
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644))
		}
		return errors.Join(errs...)
	})
}

// removeNamespace removes the machine's network namespace, and its links with it.
func (m *Machine) removeNamespace() error {
	if !m.hasNamespace() {
		return nil
	}
	return ip("netns", "del", m.namespace())
}

// hasNamespace returns whether the machine's network namespace is there, as it is before the
// machine starts and until it is removed.
func (m *Machine) hasNamespace() bool {
	_, err := os.Stat(filepath.Join("/run/netns", m.namespace()))
	return err == nil
}

// inside runs fn on a thread in the machine's network namespace.
func (m *Machine) inside(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		ns, err := netns.GetFromName(m.namespace())
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err != nil {
			result <- fmt.Errorf("enter network namespace %s: %w", m.namespace(), err)
			return
		}
		result <- fn()
	}()
	return <-result
}

// ips runs lines of ip(8) in the machine's network namespace.
func (m *Machine) ips(lines ...string) error {
	cmd := exec.Command("ip", "-n", m.namespace(), "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip in %s: %w\n%s", m.namespace(), err, out)
	}
	return nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// connectControl makes the network of the nodes, a bridge on the control plane's machine.
func connectControl(m *Machine) error {
	if err := m.addNamespace(); err != nil {
		return err
	}
	return m.ips(
		"link set lo up",
		"link add br0 type bridge mcast_snooping 0",
		"link set br0 up",
		"addr add "+controlIPv4+"/24 dev br0",
		"addr add "+controlIPv6+"/64 dev br0 nodad",
	)
}

// cardAddress returns the link-layer address of a node. It is that of its card, and so the
// same after a reboot. Neighbours would send to another one for as long as they believe in
// it, half a minute and more, see base_reachable_time_ms in arp(7).
func cardAddress(i int) string { return fmt.Sprintf("02:00:ac:1e:00:1%d", i) }

// disconnectNode pulls the plug. The kernel ends a network namespace some time after the
// last process, and its links with it, so one that boots again would find the plug in use.
func (c *Cluster) disconnectNode(i int) error {
	return c.Machine(control).ips("link del " + node(i))
}

// connectNode plugs a node into the network. Each host has a route to the pods of each
// node, unless the nodes find their ways to each other by themselves, and everything else
// goes to the control plane's machine, which knows no way on.
func (c *Cluster) connectNode(i int) error {
	m, to := c.Machine(node(i)), c.Machine(control)
	if err := m.addNamespace(); err != nil {
		return err
	}
	own4, own6 := podCIDRs(i)
	err := to.ips(
		fmt.Sprintf("link add n%d type veth peer name eth0 address %s netns %s", i, cardAddress(i), m.namespace()),
		fmt.Sprintf("link set n%d master br0", i),
		fmt.Sprintf("link set n%d up", i),
		"route replace "+own4+" via "+NodeIPv4(i),
		"route replace "+own6+" via "+NodeIPv6(i),
	)
	if err != nil {
		return err
	}
	lines := []string{
		"link set lo up", "link set eth0 up",
		"addr add " + NodeIPv4(i) + "/24 dev eth0",
		"addr add " + NodeIPv6(i) + "/64 dev eth0 nodad",
		"route add default via " + controlIPv4,
		"route add ::/0 via " + controlIPv6,
	}
	for j := 1; j <= c.Nodes; j++ {
		if j != i && c.Network == "" {
			v4, v6 := podCIDRs(j)
			lines = append(lines, "route add "+v4+" via "+NodeIPv4(j), "route add "+v6+" via "+NodeIPv6(j))
		}
	}
	return m.ips(lines...)
}
