// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
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

// chain is a chain of nftables as the kernel lists it.
type chain struct {
	family, table, name string
	hook                uint32
	base, drops         bool
}

var familyName = map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}

// nftChains lists all chains of nftables.
func nftChains() ([]chain, error) {
	c, err := mdlayher.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to netfilter: %w", err)
	}
	defer c.Close()
	replies, err := c.Execute(mdlayher.Message{
		Header: mdlayher.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Flags: mdlayher.Request | mdlayher.Dump},
		Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return nil, nil // the kernel lacks nftables
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("list chains of nftables: %w: the right CAP_NET_ADMIN is needed", err)
	case err != nil:
		return nil, fmt.Errorf("list chains of nftables: %w", err)
	}
	var all []chain
	for _, m := range replies {
		if one, ok := parseChain(m.Data); ok {
			all = append(all, one)
		}
	}
	return all, nil
}

// parseChain parses a reply. Numbers are in network order, see
// include/uapi/linux/netfilter/nf_tables.h.
func parseChain(body []byte) (chain, bool) {
	const head = 4
	if len(body) < head || familyName[body[0]] == "" {
		return chain{}, false
	}
	d, err := mdlayher.NewAttributeDecoder(body[head:])
	if err != nil {
		return chain{}, false
	}
	d.ByteOrder = binary.BigEndian
	c := chain{family: familyName[body[0]]}
	for d.Next() {
		switch d.Type() {
		case unix.NFTA_CHAIN_TABLE:
			c.table = d.String()
		case unix.NFTA_CHAIN_NAME:
			c.name = d.String()
		case unix.NFTA_CHAIN_POLICY:
			c.drops = d.Uint32() == 0 // NF_DROP of linux/netfilter.h
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
			d.Nested(c.parseHook)
		}
	}
	return c, d.Err() == nil
}

func (c *chain) parseHook(d *mdlayher.AttributeDecoder) error {
	for d.Next() {
		if d.Type() == unix.NFTA_HOOK_HOOKNUM {
			c.hook = d.Uint32()
		}
	}
	return d.Err()
}

// hooks are the numbers of linux/netfilter.h.
var hooks = map[uint32]Hook{unix.NF_INET_LOCAL_IN: Input, unix.NF_INET_FORWARD: Forward}

// FilterChains implements Kernel.
func (Netlink) FilterChains(ctx context.Context) ([]Chain, error) {
	found, err := nftChains()
	if err != nil {
		return nil, err
	}
	var all []Chain
	for _, c := range found {
		hook, filters := hooks[c.hook]
		if !c.base || !c.drops || !filters {
			continue
		}
		rules := output(ctx, "nft", "-nn", "list", "chain", c.family, c.table, c.name)
		all = append(all, Chain{Hook: hook, Family: c.family, Table: c.table, Name: c.name, Rules: rules})
	}
	for _, f := range []struct{ family, command, names string }{
		{"ip", "iptables-legacy", "/proc/thread-self/net/ip_tables_names"}, {"ip6", "ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"},
	} {
		tables, err := legacyTables(f.names)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(tables, "filter") { // the command would make it
			continue
		}
		for hook, name := range map[Hook]string{Input: "INPUT", Forward: "FORWARD"} {
			rules := output(ctx, f.command, "-S", name)
			if slices.Contains(rules, "-P "+name+" DROP") {
				all = append(all, Chain{Hook: hook, Family: f.family, Table: "filter", Name: name, Legacy: true, Rules: rules})
			}
		}
	}
	return all, nil
}

func legacyTables(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	return strings.Fields(string(text)), nil
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
func (Netlink) FirewallNames() ([]string, error) {
	found, err := nftChains()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range found {
		names = append(names, c.table, c.name)
	}
	return names, nil
}
