// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/foreign"
)

// Flows returns the connections of the client of c to its destination that connection
// tracking knows. want is the snapshot in force.
func Flows(ctx context.Context, want *service.Snapshot, c route.Conn) ([]explain.Flow, error) {
	entries, err := conntrack.Entries(ctx, conntrack.Netlink{}, want, conntrack.Client{Protocol: c.Protocol, From: c.From, To: c.To})
	var all []explain.Flow
	for _, e := range entries {
		f := explain.Flow{Client: e.Src, Target: e.ReplySrc, Answered: e.Answered, Stale: e.Stale}
		if e.Stale {
			f.Remedy = fmt.Sprintf("conntrack -D -p %s -s %s --sport %d -d %s --dport %d", c.Protocol, e.Src.Addr(), e.Src.Port(), c.To.Addr(), c.To.Port())
		}
		all = append(all, f)
	}
	return all, err
}

// routeTypes are the types of routes that lead nowhere or here, see ip-route(8).
var routeTypes = map[int]string{
	unix.RTN_LOCAL: "to the node itself", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibited",
}

// refusedRoutes are the errors that stand for a type of route, over IPv4, see ip-route(8).
var refusedRoutes = map[unix.Errno]int{unix.EINVAL: unix.RTN_BLACKHOLE, unix.EHOSTUNREACH: unix.RTN_UNREACHABLE, unix.EACCES: unix.RTN_PROHIBIT}

// Route describes how packets of the node get to an address. The error is that of the
// kernel if there is no route.
func Route(to netip.Addr) (string, error) {
	all, err := netlink.RouteGet(to.AsSlice())
	for errno, t := range refusedRoutes {
		if errors.Is(err, errno) {
			return "", errors.New(routeTypes[t])
		}
	}
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return "", errors.New("the kernel names none")
	}
	r := all[0]
	if text, known := routeTypes[r.Type]; known {
		if r.Type == unix.RTN_LOCAL {
			return text, nil
		}
		return "", errors.New(text)
	}
	text := "direct"
	if r.Gw != nil {
		text = "via " + r.Gw.String()
	}
	if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
		text += ", interface " + l.Attrs().Name
	}
	if r.Src != nil {
		text += fmt.Sprintf(", source %s", r.Src)
	}
	return text, nil
}

// AddOthers follows c through the rules of others, and adds to w what they do with it. w is
// what the mode does. local reports whether an address belongs to the node, marks are the
// bits of the mark that the mode sets.
func AddOthers(ctx context.Context, w *explain.Walk, c route.Conn, local func(netip.Addr) bool, marks uint32) error {
	family := service.FamilyOf(c.To.Addr())
	kernel, err := foreign.Open(ctx, family, w.Followed)
	if err != nil {
		return err
	}
	defer kernel.Close()
	var legacy []*foreign.Legacy
	if !slices.Contains(w.Followed, explain.LegacyTables) {
		if legacy, err = foreign.LegacyTables(ctx, family); err != nil {
			return err
		}
	}
	node := &foreign.System{IsLocal: local}
	f := &foreign.Connection{Conn: c, Action: w.Action, Targets: w.Targets, Via: w.Via, Served: w.Served, Marks: marks}
	if c.Interface != "" {
		f.In = node.Entry(c.Interface, c.From)
	}
	all, err := foreign.Follow(kernel, legacy, node, f)
	w.Others = append(w.Others, all...)
	if note := f.Note(); note != "" && len(all) > 0 {
		w.Notes = append(w.Notes, note)
	}
	return err
}
