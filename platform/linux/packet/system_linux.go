// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/service"
)

// System asks the running system.
type System struct {
	// IsLocal reports whether an address belongs to the node.
	IsLocal func(netip.Addr) bool
	routes  map[netip.Addr]system
	roads
}

type system struct {
	link Link
	typ  uint8
}

// Local implements Node. Mode ipvs makes addresses of Services local by routes alone.
func (s *System) Local(a netip.Addr) bool {
	_, typ := s.Route(a)
	return typ == Local || s.IsLocal(a)
}

// Route implements Node. It asks once for each address.
func (s *System) Route(a netip.Addr) (Link, uint8) {
	if r, known := s.routes[a]; known {
		return r.link, r.typ
	}
	r := system{}
	if all, err := s.kernel().RouteGet(a.AsSlice()); err == nil && len(all) > 0 {
		r = system{s.link(all[0].LinkIndex), uint8(all[0].Type)}
	}
	if s.routes == nil {
		s.routes = map[netip.Addr]system{}
	}
	s.routes[a] = r
	return r.link, r.typ
}

func link(index int) Link {
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return Link{Unknown: true}
	}
	return Link{Name: l.Attrs().Name, Index: uint32(index)}
}

// Entry returns the interface by which packets of a client enter the node: the one of a
// name, or else the one by which the node reaches the client.
func (s *System) Entry(name string, client netip.Addr) Link {
	if l, err := netlink.LinkByName(name); err == nil {
		return Link{Name: name, Index: uint32(l.Attrs().Index)}
	}
	if l, _ := s.Route(client); l.Index != 0 {
		return l
	}
	return Link{Unknown: true}
}

// LegacyNames lists the tables of iptables-legacy in this thread's network namespace. Root of the
// namespace owns the file that it reads, with mode 0440 (kernel: net/netfilter/x_tables.c,
// xt_proto_init): others need CAP_DAC_READ_SEARCH
// (https://man7.org/linux/man-pages/man7/capabilities.7.html).
func LegacyNames(f service.Family) ([]string, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if f == service.IPv6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	names, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w: run as root, because only user 0 may read it, or with the right CAP_DAC_READ_SEARCH besides CAP_NET_ADMIN and CAP_NET_RAW", err)
	}
	return strings.Fields(string(names)), err
}

// LegacyTables reads the tables of iptables-legacy that exist.
func LegacyTables(ctx context.Context, f service.Family) ([]*Legacy, error) {
	names, err := LegacyNames(f)
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	var all []*Legacy
	for _, name := range names {
		l := &Legacy{Family: f, Name: name}
		command := strings.Fields(l.command())
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err == nil {
			l.Tables = Parse(string(out))
		} else if !errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s: %w", l.command(), err)
		}
		all = append(all, l)
	}
	return all, nil
}
