// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/service"
)

// Upstream are the leftovers of kube-proxy's mode ipvs in the network namespace of the
// calling thread: the addresses of the interface kube-ipvs0, virtual servers on them
// and, for the ports in its ipsets, on the node's addresses, the ipsets, and the
// interface. Other virtual servers and sets are not among them. Package iptables handles
// its iptables rules.
type Upstream struct {
	Family service.Family
	// Exclude are prefixes in which virtual servers and addresses stay.
	Exclude []netip.Prefix
}

// String returns a name for the leftovers.
func (u Upstream) String() string { return "kube-proxy's IPVS for " + u.Family.String() }

// Find describes the leftovers, "" if there are none.
func (u Upstream) Find(ctx context.Context) (string, error) {
	var found []string
	err := u.with(func(k *kernel) error {
		has, err := k.readUpstream()
		if err != nil {
			return err
		}
		var e ownedServers
		if has.any() {
			s, err := k.Read(ctx)
			if err != nil {
				return err
			}
			e = has.ownedServers(s, Options{Exclude: u.Exclude})
		}
		for _, x := range []struct {
			n    int
			what string
		}{{len(e.servers), "virtual servers"}, {len(e.addrOps), "addresses on " + Device}, {len(has.sets), "ipsets"}} {
			if x.n > 0 {
				found = append(found, fmt.Sprintf("%d %s", x.n, x.what))
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", u, err)
	}
	return strings.Join(found, ", "), nil
}

// Remove removes all leftovers, with their connections.
func (u Upstream) Remove(ctx context.Context) error {
	_, err := u.Drain(ctx, time.Now().Add(-2*DrainTimeout))
	return err
}

// Drain stops new connections and removes what no connection needs any more. See
// Leftovers.Drain.
func (u Upstream) Drain(ctx context.Context, since time.Time) (string, error) {
	var elapsed time.Duration
	if !since.IsZero() {
		elapsed = time.Since(since)
	}
	var remaining drainResult
	err := u.with(func(k *kernel) error {
		has, err := k.readUpstream()
		if err != nil {
			return err
		}
		of := func(s *state) ownedServers { return has.ownedServers(s, Options{Exclude: u.Exclude}) }
		if remaining, err = drainOwned(ctx, k, of, elapsed); err != nil || remaining.servers > 0 {
			return err // the sets identify the virtual servers, so they stay
		}
		return errors.Join(has.destroySets(), k.removeDevice(""))
	})
	if err := errors.Join(err, deleteCutFlows(ctx, u.Family, remaining.cut)); err != nil {
		return "", fmt.Errorf("drain %s: %w", u, err)
	}
	if remaining.servers > 0 {
		return fmt.Sprintf("%s, for %s at most", remaining, DrainTimeout), nil
	}
	return "", nil
}

func (u Upstream) with(do func(*kernel) error) error {
	return Leftovers{Family: u.Family}.with(do)
}

func (u *upstreamState) any() bool { return len(u.addrs) > 0 || len(u.ports) > 0 }

func (u *upstreamState) destroySets() error {
	var errs []error
	for _, name := range u.sets {
		errs = append(errs, destroySet(name))
	}
	return errors.Join(errs...)
}

// readUpstream reads what kube-proxy left, without virtual servers. The caller must have
// exclusive use of k.
func (k *kernel) readUpstream() (*upstreamState, error) {
	u := &upstreamState{addrs: map[netip.Addr]bool{}, node: map[netip.Addr]bool{}, ports: map[nodePort]bool{}}
	if err := u.readSets(k.family); err != nil {
		return nil, err
	}
	device := -1
	l, err := k.links.LinkByName(Device)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
	case err != nil:
		return nil, err
	case l.Type() == "dummy":
		device = l.Attrs().Index
	}
	list, err := k.links.AddrList(nil, int(af(k.family)))
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, x := range list {
		a, ok := netip.AddrFromSlice(x.IP)
		switch a = a.Unmap(); {
		case !ok || a.IsLinkLocalUnicast():
		case x.LinkIndex == device:
			u.addrs[a] = true
		default:
			u.node[a] = true
		}
	}
	return u, nil
}

// deleteAddr removes an address from the interface. When the last IPv4 address is
// removed, the kernel removes all routes of the interface (kernel:
// net/ipv4/fib_frontend.c, fib_inetaddr_event). So ours use another interface meanwhile.
func (k *kernel) deleteAddr(a netip.Addr) error {
	l, err := k.links.LinkByName(Device)
	if err != nil {
		return err
	}
	bits := a.BitLen()
	drop := func() error {
		return k.links.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, bits)}})
	}
	addrs, err := k.links.AddrList(l, int(af(k.family)))
	if err != nil {
		return err
	}
	_, routes, err := k.readRoutes()
	if err != nil {
		return err
	}
	if len(addrs) > 1 || len(routes) == 0 || k.family != service.IPv4 {
		return drop()
	}
	lo, err := k.links.LinkByName("lo")
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range routes {
		errs = append(errs, k.links.RouteReplace(r.netlinkRoute(lo, detour)))
	}
	errs = append(errs, drop())
	for _, r := range routes {
		errs = append(errs, k.links.RouteReplace(r.netlinkRoute(l, metric)), k.links.RouteDel(r.netlinkRoute(lo, detour)))
	}
	return errors.Join(errs...)
}

// detour is the metric of routes that replace others temporarily.
const detour = metric + 1
