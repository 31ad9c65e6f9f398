// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"kubeproxy/common/service"
)

// The address of a Service is not assigned to an interface. A route of type local
// delivers packets to the node as an address would (ip-route(8)). In addition the route
// sets the source of the node's own connections, and its protocol identifies the owner.
const (
	// routeProtocol identifies our routes. No routing daemon is known to use this
	// number.
	routeProtocol = 107
	// metric gives precedence to an address that another process assigns to an
	// interface.
	metric = 1024
	// deviceAlias shows that we made the interface.
	deviceAlias = "addresses of Services, by kube-proxy"
)

// addDevice creates the interface and brings it up.
func (k *kernel) addDevice() error {
	l, err := k.links.LinkByName(Device)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		a := netlink.NewLinkAttrs()
		a.Name = Device
		if err := k.links.LinkAdd(&netlink.Dummy{LinkAttrs: a}); err != nil && !errors.Is(err, unix.EEXIST) {
			return dummyError(err)
		}
		l, err = k.links.LinkByName(Device)
	}
	if err != nil {
		return err
	}
	if l.Type() != "dummy" {
		return fmt.Errorf("interface %s is of type %s: want none of this name, or a dummy", Device, l.Type())
	}
	if l.Attrs().Alias == "" { // new, or made by kube-proxy
		if err := k.links.LinkSetAlias(l, deviceAlias); err != nil {
			return err
		}
	}
	if err := k.links.LinkSetUp(l); err != nil || k.family != service.IPv6 {
		return err
	}
	if err := disableIPv6.set(klog.Background()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("have IPv6 on interface %s: %w", Device, err)
	}
	return nil
}

// disableIPv6 is 1 on a new interface if that is the default of the node. The interface
// then accepts no IPv6 routes.
var disableIPv6 = setting{file: "net/ipv6/conf/" + Device + "/disable_ipv6", value: "0"}

// usable reports whether l is up and may have routes of k's family. Otherwise the kernel
// has removed those of IPv6 (kernel: net/ipv6/addrconf.c, addrconf_ifdown). Those of IPv4
// stay in force, because their scope is host (kernel: net/ipv4/fib_semantics.c,
// fib_sync_down_dev).
func (k *kernel) usable(l netlink.Link) bool {
	if l.Attrs().Flags&net.FlagUp == 0 {
		return false
	}
	off, _ := disableIPv6.current()
	return k.family != service.IPv6 || off != "1"
}

func (k *kernel) applyRoute(o *op) error {
	if k.device == nil {
		l, err := k.links.LinkByName(Device)
		if err != nil {
			return err
		}
		k.device = l
	}
	r := o.route.netlinkRoute(k.device, metric)
	if o.verb == delRoute {
		r.Src = nil
		return k.links.RouteDel(r)
	}
	return k.links.RouteReplace(r)
}

// netlinkRoute converts r.
func (r localRoute) netlinkRoute(l netlink.Link, metric int) *netlink.Route {
	bits := r.addr.BitLen()
	route := &netlink.Route{
		LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: r.addr.AsSlice(), Mask: net.CIDRMask(bits, bits)},
		Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol, Priority: metric,
	}
	if r.source.IsValid() {
		route.Src = r.source.AsSlice()
	}
	return route
}

// readRoutes reports whether the interface exists and is usable, and returns our routes
// to it, also if it is not usable.
func (k *kernel) readRoutes() (bool, []localRoute, error) {
	l, err := k.links.LinkByName(Device)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	usable := k.usable(l)
	filter := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: routeProtocol, Type: unix.RTN_LOCAL}
	list, err := k.links.RouteListFiltered(int(af(k.family)), filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TYPE)
	if err != nil {
		return usable, nil, err
	}
	var routes []localRoute
	for _, x := range list {
		if x.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(x.Dst.IP)
		if !ok {
			continue
		}
		r := localRoute{addr: a.Unmap()}
		if s, ok := netip.AddrFromSlice(x.Src); ok {
			r.source = s.Unmap()
		}
		routes = append(routes, r)
	}
	return usable, routes, nil
}

// RemoveDevice implements Driver: it removes the interface if we made it and neither
// family uses it any more.
func (k *kernel) RemoveDevice(context.Context) error { return k.removeDevice(deviceAlias) }

// removeDevice removes the interface if it has no addresses and routes and its alias is
// ours or the given one. kube-proxy sets none.
func (k *kernel) removeDevice(alias string) error {
	l, err := k.links.LinkByName(Device)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) || err == nil && (l.Type() != "dummy" || l.Attrs().Alias != deviceAlias && l.Attrs().Alias != alias) {
		return nil
	}
	if err != nil {
		return err
	}
	addrs, err := k.links.AddrList(l, netlink.FAMILY_ALL)
	if err != nil || slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() }) {
		return err
	}
	for _, f := range service.Families {
		other := kernel{family: f, links: k.links}
		_, routes, err := other.readRoutes()
		if err != nil || len(routes) > 0 {
			return err
		}
	}
	if err := k.links.LinkDel(l); !errors.Is(err, unix.ENODEV) { // the other family may be faster
		return err
	}
	return nil
}

// Watch implements Driver.
func (k *kernel) Watch(ctx context.Context, touched func()) error {
	updates := make(chan netlink.AddrUpdate)
	done := make(chan struct{})
	broken := make(chan error, 1)
	options := netlink.AddrSubscribeOptions{ErrorCallback: func(err error) {
		select {
		case broken <- err:
		default:
		}
	}}
	if err := netlink.AddrSubscribeWithOptions(updates, done, options); err != nil {
		return fmt.Errorf("watch the node's addresses: %w", err)
	}
	defer close(done)
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return fmt.Errorf("watch the node's addresses: %w", err)
		case _, open := <-updates:
			if !open {
				return errors.New("watch the node's addresses: the kernel closed the socket")
			}
			touched()
		}
	}
}

// listPath lists the virtual servers in the network namespace of this thread, which may
// differ from that of the process.
const listPath = "/proc/thread-self/net/ip_vs"

func readDests(servers map[key]*observedServer) error {
	f, err := os.Open(listPath)
	if err != nil {
		return err
	}
	defer f.Close()
	return fillDests(servers, f)
}
