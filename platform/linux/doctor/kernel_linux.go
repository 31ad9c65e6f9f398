// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	netfilter "kubeproxy/platform/linux/netlink"
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
		one := Link{Name: a.Name, Index: uint32(a.Index), Bridge: l.Type() == "bridge", Master: names[a.MasterIndex]}
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
func nftChains(ctx context.Context) ([]netfilter.Chain, error) {
	s, err := netfilter.Dial(unix.NETLINK_NETFILTER, netfilter.Options{})
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	defer s.Close()
	all, err := netfilter.Chains(ctx, s, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, netfilter.NFTHint(err)
	}
	return slices.DeleteFunc(all, func(c netfilter.Chain) bool { return netfilter.FamilyNames[c.Family] == "" }), nil
}

var hooks = map[packet.Hook]Hook{packet.Input: Input, packet.Forward: Forward}

// FilterChains implements Kernel.
func (Netlink) FilterChains(ctx context.Context, each func(*Chain) error) error {
	for _, f := range service.Families {
		k, err := packet.Open(ctx, f, nil)
		if err != nil {
			return netfilter.NFTHint(err)
		}
		err = filterChains(f, k, each)
		k.Close()
		if err != nil {
			return err
		}
		legacy, err := packet.LegacyTables(ctx, f)
		if err != nil {
			return err
		}
		for _, l := range legacy {
			if l.Name != "filter" || l.Tables == nil {
				continue
			}
			if err := filterChains(f, l.Tables, each); err != nil {
				return err
			}
		}
	}
	return nil
}

func filterChains(f service.Family, t packet.Tables, each func(*Chain) error) error {
	for _, b := range t.Bases() {
		hook, filters := hooks[b.Hook]
		if !b.Drops || !filters || b.Family == "inet" && f == service.IPv6 { // seen for IPv4
			continue
		}
		c := &Chain{Hook: hook, Family: cmp.Or(b.Family, netfilter.FamilyName(f)), Table: b.Table, Name: b.Name, Legacy: b.Family == "", Tables: t, Base: b}
		if err := each(c); err != nil {
			return err
		}
	}
	return nil
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
