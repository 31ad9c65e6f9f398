// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/sysctl"
)

// Node is what the checks read.
type Node struct {
	// Files is the root of the node's file system.
	Files fs.FS
	// Writable returns whether this process may write a file below the root.
	Writable func(name string) bool
	// Kernel lists what the kernel has in the network namespace of the process.
	Kernel Kernel
	// Settings are those that the configuration asks for.
	Settings sysctl.Settings
	// Modes are the modes to check for, at least one.
	Modes []Mode
	// ProxyName is the name of a proxy for labelled Services, empty for others.
	ProxyName string
	// Services returns the Services that are to be served, nil if none are known.
	Services func(context.Context) (*service.Snapshot, error)
	// Proc is the file system at /proc.
	Proc fs.FS
	// Servers are those of the proxy.
	Servers []Server
	// Holder returns the proxy that programs the node, false for none that can be asked.
	Holder func(context.Context) (lease.Identity, bool)
	// Answered is whether a proxy of this kind runs and answered.
	Answered bool
	// Targets are where service proxies may have left rules, without those that the modes
	// keep in order. CleanupCommand empties them.
	Targets        []Target
	CleanupCommand string
	// IPTables returns which variants of iptables are in use. It fails where there is none.
	IPTables func() (Variants, error)
	// Route returns an error if packets of the node cannot leave for an address.
	Route func(netip.Addr) error
	// Acceleration is socket acceleration.
	Acceleration Acceleration
}

// Kernel lists what the kernel has. It changes nothing.
type Kernel interface {
	// Links lists the network interfaces.
	Links() ([]Link, error)
	// FilterChains lists the chains that filter packets to this node, and those that it
	// forwards, and drop what no rule accepts.
	FilterChains(ctx context.Context) ([]Chain, error)
	// FirewallNames lists the tables and chains by whose names firewall services are
	// known.
	FirewallNames(context.Context) ([]string, error)
}

// Link is a network interface.
type Link struct {
	Name   string
	Bridge bool
	// Master is the bridge that it is a port of, empty for none.
	Master string
	// Global is, by family, whether it has an address that other machines reach.
	Global [2]bool
	// Subnet is whether it has an IPv4 address in a network, so that it leads to other
	// machines. A link to a single pod has only an address.
	Subnet bool
}

// only returns whether all modes to check for are among names.
func (n *Node) only(names ...string) bool {
	return !slices.ContainsFunc(n.Modes, func(m Mode) bool { return !slices.Contains(names, m.Name) })
}

// has returns whether a mode to check for is among names.
func (n *Node) has(names ...string) bool {
	return slices.ContainsFunc(n.Modes, func(m Mode) bool { return slices.Contains(names, m.Name) })
}

// Checks returns all checks of the node.
func (n *Node) Checks() []doctor.Check {
	var all []doctor.Check
	for _, m := range n.Modes {
		all = append(all, n.modeCheck(m))
	}
	return append(all, []doctor.Check{
		{Name: "forwarding", Look: n.forwarding},
		{Name: "reverse path filter", Look: n.reversePathFilter},
		{Name: "bridges", Look: n.bridges},
		{Name: "settings", Look: n.settings},
		{Name: "connection tracking", Look: n.conntrack},
		{Name: "firewalls", Look: n.firewalls},
		{Name: "routes to Services", Look: n.serviceRoutes},
		{Name: "policy of INPUT", Look: n.inputPolicy},
		{Name: "policy of FORWARD", Look: n.forwardPolicy},
		{Name: "iptables variants", Look: n.variants},
		{Name: "xtables lock", Look: n.xtablesLock},
		{Name: "other proxies", Look: n.otherProxies},
		{Name: "leftovers", Look: n.leftovers},
		{Name: "socket acceleration", Look: n.acceleration},
		{Name: "ports of the proxy", Look: n.takenPorts},
		{Name: "NodePorts and listeners", Look: n.hiddenListeners},
	}...)
}

// read returns the trimmed content of a file.
func (n *Node) read(name string) (string, error) {
	b, err := fs.ReadFile(n.Files, name)
	return trim(b), err
}

// dryFiles are files that sysctl may write without effect.
type dryFiles struct{ n *Node }

// ReadFile implements sysctl.Files.
func (d dryFiles) ReadFile(name string) ([]byte, error) { return fs.ReadFile(d.n.Files, name) }

// WriteFile implements sysctl.Files. It succeeds if the file could be written.
func (d dryFiles) WriteFile(name string, _ []byte) error {
	if d.n.Writable(name) {
		return nil
	}
	return fmt.Errorf("write /%s: %w", name, fs.ErrPermission)
}

// Writable implements sysctl.Files.
func (d dryFiles) Writable(name string) bool { return d.n.Writable(name) }
