// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	netfilter "kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
	"kubeproxy/platform/linux/packet"
)

// Writable implements Writable of Node for the running system.
func Writable(name string) bool { return unix.Access("/"+name, unix.W_OK) == nil }

// Netlink implements Kernel.
type Netlink struct{}

// Links implements Kernel.
func (Netlink) Links() ([]Link, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	defer h.Close()
	found, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range found {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var all []Link
	for _, l := range found {
		a := l.Attrs()
		if a.Flags&net.FlagLoopback != 0 || a.Flags&net.FlagUp == 0 || l.Type() == "dummy" {
			continue
		}
		one := Link{Name: a.Name, Bridge: l.Type() == "bridge", Master: names[a.MasterIndex]}
		for f, family := range []int{service.IPv4: unix.AF_INET, service.IPv6: unix.AF_INET6} {
			addrs, err := h.AddrList(l, family)
			if err != nil {
				continue // the interface may have disappeared
			}
			for _, a := range addrs {
				bits, all := a.Mask.Size()
				one.Global[f] = one.Global[f] || a.IP.IsGlobalUnicast()
				one.Subnet = one.Subnet || f == int(service.IPv4) && a.IP.IsGlobalUnicast() && bits < all
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// nftChains lists the chains of nftables in tables that see packets of IPv4 or IPv6.
func nftChains(ctx context.Context) ([]nft.Chain, error) {
	s, err := netfilter.Dial(unix.NETLINK_NETFILTER, netfilter.Options{})
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	defer s.Close()
	all, err := nft.Chains(ctx, s, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, nft.WithHint(err)
	}
	return slices.DeleteFunc(all, func(c nft.Chain) bool { return nft.FamilyNames[c.Family] == "" }), nil
}

// hooks are the numbers of linux/netfilter.h.
var hooks = map[uint32]Hook{unix.NF_INET_LOCAL_IN: Input, unix.NF_INET_FORWARD: Forward}

// FilterChains implements Kernel.
func (Netlink) FilterChains(ctx context.Context) ([]Chain, error) {
	found, err := nftChains(ctx)
	if err != nil {
		return nil, err
	}
	var all []Chain
	for _, c := range found {
		if c.Base == nil || !c.Base.Drops {
			continue
		}
		if hook, filters := hooks[c.Base.Hook]; filters {
			family := nft.FamilyNames[c.Family]
			rules := output(ctx, "nft", "-nn", "list", "chain", family, c.Table, c.Name)
			all = append(all, Chain{Hook: hook, Family: family, Table: c.Table, Name: c.Name, Rules: rules})
		}
	}
	for f, command := range [...]string{service.IPv4: "iptables-legacy", service.IPv6: "ip6tables-legacy"} {
		tables, err := packet.LegacyNames(service.Family(f))
		if err != nil {
			return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
		}
		if !slices.Contains(tables, "filter") { // the command would make it
			continue
		}
		for hook, name := range map[Hook]string{Input: "INPUT", Forward: "FORWARD"} {
			rules := output(ctx, command, "-S", name)
			if slices.Contains(rules, "-P "+name+" DROP") {
				all = append(all, Chain{Hook: hook, Family: nft.FamilyName(service.Family(f)), Table: "filter", Name: name, Legacy: true, Rules: rules})
			}
		}
	}
	return all, nil
}

// output returns the trimmed lines that a command prints, nothing if it fails.
func output(ctx context.Context, name string, args ...string) []string {
	text, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return nil
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, line)
		}
	}
	return all
}

// FirewallNames implements Kernel.
func (Netlink) FirewallNames(ctx context.Context) ([]string, error) {
	found, err := nftChains(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range found {
		names = append(names, c.Table, c.Name)
	}
	return names, nil
}

// InPrivateNetwork runs fn in a network namespace of its own, so that what fn makes there
// does not exist on the node. The namespace ends with its thread.
func InPrivateNetwork(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace to try it in: %w", err)
			return
		}
		done <- fn()
	}()
	return <-done
}
