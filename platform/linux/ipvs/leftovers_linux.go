// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Leftovers are our virtual servers in the network namespace of the calling thread, with
// their routes, sets and chains. Foreign virtual servers are not among them.
type Leftovers struct {
	Family service.Family
	// Exclude are prefixes in which virtual servers stay.
	Exclude []netip.Prefix
	list    string // of virtual servers, listPath if it is empty
}

// String returns a name for the leftovers.
func (l Leftovers) String() string { return "virtual servers of IPVS for " + l.Family.String() }

// Find describes the leftovers, "" if there are none.
func (l Leftovers) Find(ctx context.Context) (string, error) {
	var found []string
	err := l.with(func(k *kernel) error {
		s, err := k.Read(ctx)
		if err != nil {
			return err
		}
		for _, x := range []struct {
			n    int
			what string
		}{{len(l.ownedKeys(s)), "virtual servers"}, {len(s.routes), "addresses of Services"}} {
			if x.n > 0 {
				found = append(found, fmt.Sprintf("%d %s", x.n, x.what))
			}
		}
		return nil
	})
	table, tableErr := l.findRules(ctx)
	if table != "" {
		found = append(found, table)
	}
	if err := errors.Join(err, tableErr); err != nil {
		return "", fmt.Errorf("look for %s: %w", l, err)
	}
	return strings.Join(found, ", "), nil
}

// Remove removes the leftovers. It succeeds if there are none.
func (l Leftovers) Remove(ctx context.Context) error {
	err := l.with(func(k *kernel) error { return l.remove(ctx, k) })
	if err := errors.Join(err, l.removeRules(ctx)); err != nil {
		return fmt.Errorf("remove %s: %w", l, err)
	}
	return nil
}

// Drain stops new connections and removes what no connection needs any more. Call it
// after another backend serves in their place. It describes what remains and for how
// long at most, "" if nothing does. since is when draining began, zero if it begins now.
// After DrainTimeout Drain removes everything.
func (l Leftovers) Drain(ctx context.Context, since time.Time) (string, error) {
	remaining, err := l.drain(ctx, since)
	if err != nil {
		return "", fmt.Errorf("drain %s: %w", l, err)
	}
	if remaining.servers > 0 {
		return fmt.Sprintf("%s, for %s at most", remaining, DrainTimeout), nil
	}
	return "", l.Remove(ctx)
}

func (l Leftovers) drain(ctx context.Context, since time.Time) (remaining drainResult, err error) {
	var elapsed time.Duration
	if !since.IsZero() {
		elapsed = time.Since(since)
	} else if err := l.disarm(ctx); err != nil {
		return drainResult{}, err
	}
	err = l.with(func(k *kernel) error {
		remaining, err = drainOwned(ctx, k, Options{Exclude: l.Exclude}.ownedServers, elapsed)
		return err
	})
	return remaining, errors.Join(err, deleteCutFlows(ctx, l.Family, remaining.cut))
}

// deleteCutFlows deletes the conntrack entries of cut flows of connectionless protocols.
// Otherwise these flows would continue to a server that no longer exists.
func deleteCutFlows(ctx context.Context, f service.Family, cut []service.Address) error {
	var errs []error
	for _, k := range cut {
		if !connectionless(k) {
			continue
		}
		var flows []conntrack.Flow
		err := conntrack.Netlink{}.Dump(ctx, conntrack.Filter{Family: f, Protocol: k.Protocol, Port: k.Port}, func(x conntrack.Flow) {
			if x.Dst == netip.AddrPortFrom(k.Addr, k.Port) {
				flows = append(flows, x)
			}
		})
		if err == nil && len(flows) > 0 {
			_, err = conntrack.Netlink{}.Delete(ctx, flows)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// remove deletes routes first, so that no route leads to a deleted server.
func (l Leftovers) remove(ctx context.Context, k *kernel) error {
	s, err := k.Read(ctx)
	if err != nil {
		return err
	}
	return errors.Join(removeAll(ctx, k, s, l.ownedKeys(s)), k.RemoveDevice(ctx))
}

func (l Leftovers) ownedKeys(s *state) []service.Address {
	return Options{Exclude: l.Exclude}.ownedKeys(s)
}

// with calls do with a kernel. Without IPVS, routes and addresses may remain.
func (l Leftovers) with(do func(*kernel) error) error {
	k := &kernel{family: l.Family}
	open := k.open
	// A request for IPVS would load the module.
	if _, err := os.Stat(cmp.Or(l.list, listPath)); errors.Is(err, fs.ErrNotExist) {
		open = k.openLinks
	}
	if err := open(); err != nil {
		return err
	}
	defer k.close()
	return do(k)
}

// chains are our chains in both variants of iptables.
func (l Leftovers) chains() []iptables.Leftovers {
	var all []iptables.Leftovers
	for _, v := range iptables.Variants {
		all = append(all, iptables.Leftovers{Variant: v, Family: l.Family, Role: Options{}.chains(l.Family).Role})
	}
	return all
}

// findRules describes the sets and chains, "" if there are none.
func (l Leftovers) findRules(ctx context.Context) (string, error) {
	var found []string
	for _, c := range l.chains() {
		what, err := c.Find(ctx)
		if err != nil {
			return "", err
		}
		if what != "" {
			found = append(found, c.String()+": "+what)
		}
	}
	n := 0
	err := withSets(func(k *ipset.Kernel) error {
		heads, err := k.Headers()
		for _, h := range heads {
			if isOwned(l.Family, h) {
				n++
			}
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look for ipsets: %w", err)
	}
	if n > 0 {
		found = append(found, fmt.Sprintf("%d ipsets", n))
	}
	return strings.Join(found, ", "), nil
}

// disarm makes the chains stop marking, dropping and redirecting, and stop rejecting
// connections to Services that had no endpoints. Other packets to addresses of Services
// are treated as before. It succeeds if there are no leftovers.
func (l Leftovers) disarm(ctx context.Context) error {
	if err := l.eachVariant(ctx, iptables.Leftovers.Disarm); err != nil {
		return err
	}
	return withSets(func(k *ipset.Kernel) error {
		s := setOf(l.Family, refusedSet)
		entries, err := k.List(s)
		if err == nil {
			err = k.Del(s, entries)
		}
		if errors.Is(err, ipset.ErrMissing) {
			return nil
		}
		return err
	})
}

// removeRules removes the chains and then the sets. It succeeds if there are none.
func (l Leftovers) removeRules(ctx context.Context) error {
	if err := l.eachVariant(ctx, iptables.Leftovers.Remove); err != nil {
		return err
	}
	return withSets(func(k *ipset.Kernel) error { return destroy(l.Family, k) })
}

// eachVariant calls do with the chains of each variant that has any.
func (l Leftovers) eachVariant(ctx context.Context, do func(iptables.Leftovers, context.Context) error) error {
	var errs []error
	for _, c := range l.chains() {
		what, err := c.Find(ctx)
		if err == nil && what != "" {
			err = do(c, ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withSets calls do if the kernel has ipsets. A request for them would load the module.
func withSets(do func(*ipset.Kernel) error) error {
	if !ipset.Present() {
		return nil
	}
	k, err := ipset.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	return do(k)
}

// Upstream are the leftovers of kube-proxy's mode ipvs in the network namespace of the calling
// thread: the interface kube-ipvs0, its addresses, virtual servers on them and, for the ports in
// its ipsets, on the node's, and these ipsets. Package iptables handles its rules.
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

// Drain stops new connections and removes what none needs any more, see Leftovers.Drain.
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

func (u Upstream) with(do func(*kernel) error) error { return Leftovers{Family: u.Family}.with(do) }

func (u *upstreamState) any() bool { return len(u.addrs) > 0 || len(u.ports) > 0 }

func (u *upstreamState) destroySets() error {
	var errs []error
	for _, name := range u.sets {
		errs = append(errs, destroySet(name))
	}
	return errors.Join(errs...)
}

// readUpstream reads what kube-proxy left but servers. The caller must have k for itself.
func (k *kernel) readUpstream() (*upstreamState, error) {
	u := &upstreamState{addrs: map[netip.Addr]bool{}, node: map[netip.Addr]bool{}, ports: map[service.Address]bool{}}
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

// This file requests ipsets itself: the library panics when a list is interrupted.

// setsModule exists if the kernel has loaded ipsets, which a request for them would do.
const setsModule = "/sys/module/ip_set"

// headersOnly requests a list of sets without elements.
const headersOnly = 1 << 2

// requestIPSet sends a request and returns the replies without headers.
func requestIPSet(command int, attrs ...*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	for _, a := range attrs {
		req.AddData(a)
	}
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, err
	}
	for i, m := range messages {
		messages[i] = m[min(len(m), nl.SizeofNfgenmsg):]
	}
	return messages, nil
}

func nameAttr(name string) *nl.RtAttr {
	return nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name))
}

// readSets reads the ipsets of kube-proxy and the NodePorts in them.
func (u *upstreamState) readSets(f service.Family) error {
	if _, err := os.Stat(setsModule); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	heads, err := requestIPSet(nl.IPSET_CMD_LIST, nl.NewRtAttr(nl.IPSET_ATTR_FLAGS|int(nl.NLA_F_NET_BYTEORDER), binary.BigEndian.AppendUint32(nil, headersOnly)))
	if err != nil {
		return fmt.Errorf("list ipsets: %w", err)
	}
	for _, head := range heads {
		name, kind := "", ""
		for _, text := range attributes(head, nl.IPSET_ATTR_SETNAME) {
			name = nl.BytesToString(text)
		}
		for _, text := range attributes(head, nl.IPSET_ATTR_TYPENAME) {
			kind = nl.BytesToString(text)
		}
		proto, is := upstreamSet(f, name, kind)
		if !is {
			continue
		}
		u.sets = append(u.sets, name)
		if proto == 0 {
			continue
		}
		if err := u.readPorts(proto, name); err != nil {
			return err
		}
	}
	slices.Sort(u.sets)
	return nil
}

// readPorts reads the elements of a set.
func (u *upstreamState) readPorts(proto service.Protocol, name string) error {
	parts, err := requestIPSet(nl.IPSET_CMD_LIST, nameAttr(name))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list ipset %s: %w", name, err)
	}
	for _, part := range parts {
		for _, list := range attributes(part, nl.IPSET_ATTR_ADT) {
			for _, element := range attributes(list, nl.IPSET_ATTR_DATA) {
				u.addPorts(proto, element)
			}
		}
	}
	return nil
}

func (u *upstreamState) addPorts(proto service.Protocol, element []byte) {
	for _, port := range attributes(element, nl.IPSET_ATTR_PORT) {
		if len(port) >= 2 {
			u.ports[service.Address{Port: binary.BigEndian.Uint16(port), Protocol: proto}] = true
		}
	}
}

// attributes returns the values of one type, none if text cannot be parsed.
func attributes(text []byte, typ uint16) [][]byte {
	all, err := nl.ParseRouteAttr(text)
	if err != nil {
		return nil
	}
	var values [][]byte
	for _, a := range all {
		if a.Attr.Type&nl.NLA_TYPE_MASK == typ {
			values = append(values, a.Value)
		}
	}
	return values
}

// destroySet destroys a set that no rule refers to, if it exists.
func destroySet(name string) error {
	_, err := requestIPSet(nl.IPSET_CMD_DESTROY, nameAttr(name))
	var number unix.Errno
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.As(err, &number) && number == nl.IPSET_ERR_BUSY:
		return fmt.Errorf("destroy ipset %s: a rule refers to it", name)
	case err != nil:
		return fmt.Errorf("destroy ipset %s: %w", name, err)
	}
	return nil
}
