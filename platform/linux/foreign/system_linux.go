// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/iptables/walk"
)

// System asks the running system.
type System struct {
	// IsLocal reports whether an address belongs to the node.
	IsLocal func(netip.Addr) bool
	routes  map[netip.Addr]system
}

type system struct {
	link Link
	typ  uint8
}

// Local implements Node. Mode ipvs makes the addresses of Services local by routes, and the
// node has no such address then.
func (s *System) Local(a netip.Addr) bool {
	_, typ := s.Route(a)
	return typ == addrLocal || s.IsLocal(a)
}

// Route implements Node. It asks once for each address.
func (s *System) Route(a netip.Addr) (Link, uint8) {
	if r, known := s.routes[a]; known {
		return r.link, r.typ
	}
	r := system{}
	if all, err := netlink.RouteGet(a.AsSlice()); err == nil && len(all) > 0 {
		r = system{link(all[0].LinkIndex), uint8(all[0].Type)}
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

// LegacyTables reads the tables of iptables-legacy that exist.
func LegacyTables(ctx context.Context, f service.Family) ([]*Legacy, error) {
	names, err := iptables.LegacyTables(f)
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	var all []*Legacy
	for _, name := range names {
		l := &Legacy{Family: f, Name: name}
		command := strings.Fields(l.command())
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err == nil {
			l.Tables = walk.Parse(string(out))
		} else if !errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s: %w", l.command(), err)
		}
		all = append(all, l)
	}
	return all, nil
}
