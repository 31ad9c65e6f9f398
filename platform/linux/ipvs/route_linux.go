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
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/sysctl"
)

// The address of a Service is not assigned to an interface. A route of type local
// delivers packets to the node as an address would (ip-route(8)). In addition the route
// sets the source of the node's own connections, and its protocol identifies the owner.
const (
	// routeProtocol identifies our routes. No routing daemon is known to use it.
	routeProtocol = 107
	// metric gives precedence to an address that others assign to an interface.
	metric = 1024
	// deviceAlias shows that we made the interface.
	deviceAlias = "addresses of Services, by kube-proxy"
)

// addDevice creates the interface and brings it up.
func (k *kernel) addDevice() error {
	l, err := k.links.LinkByName(Device)
	if _, is := errors.AsType[netlink.LinkNotFoundError](err); is {
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

// disableIPv6 is 1 on a new interface if that is the node's default. It takes no IPv6 routes then.
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

// readRoutes reports whether the interface is there and usable, and returns our routes in any case.
func (k *kernel) readRoutes() (bool, []localRoute, error) {
	l, err := k.links.LinkByName(Device)
	if _, is := errors.AsType[netlink.LinkNotFoundError](err); is {
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

// RemoveDevice implements Driver, if we made the interface and no family uses it any more.
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

// listPath lists the servers of this thread's network namespace, maybe not that of the process.
const listPath = "/proc/thread-self/net/ip_vs"

func readDests(servers map[service.Address]*observedServer) error {
	f, err := os.Open(listPath)
	if err != nil {
		return err
	}
	defer f.Close()
	return fillDests(servers, f)
}

// links is a socket for interfaces, addresses and routes. The kernel marks a dump that
// was interrupted by a change (NLM_F_DUMP_INTR, see
// docs.kernel.org/userspace-api/netlink/intro.html). That happens whenever the interface
// of a pod or of the other family is added. Then links repeats the request.
type links struct{ *netlink.Handle }

// LinkByName calls the function of netlink.Handle, see retryInterrupted.
func (l links) LinkByName(name string) (netlink.Link, error) {
	return retryInterrupted(func() (netlink.Link, error) { return l.Handle.LinkByName(name) })
}

// AddrList calls the function of netlink.Handle, see retryInterrupted.
func (l links) AddrList(of netlink.Link, family int) ([]netlink.Addr, error) {
	return retryInterrupted(func() ([]netlink.Addr, error) { return l.Handle.AddrList(of, family) })
}

// RouteListFiltered calls the function of netlink.Handle, see retryInterrupted.
func (l links) RouteListFiltered(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	return retryInterrupted(func() ([]netlink.Route, error) { return l.Handle.RouteListFiltered(family, filter, mask) })
}

// markRules returns the rules that ask for marks. A kernel without policy routing has none.
func (l links) markRules(f service.Family) ([]markRule, error) {
	all, err := retryInterrupted(func() ([]netlink.Rule, error) { return l.Handle.RuleList(int(af(f))) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	var rules []markRule
	for _, r := range all {
		if r.Mask != nil {
			rules = append(rules, markRule{r.Priority, r.Invert, r.Mark, *r.Mask, r.Table})
		}
	}
	return rules, err
}

func (k *kernel) MarkRules(context.Context) ([]markRule, error) { return k.links.markRules(k.family) }

// SharedMark says by which rule of the node another program uses the masquerade bit of f, empty if none does.
func SharedMark(f service.Family, bit int) (string, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return "", err
	}
	defer h.Close()
	rules, err := links{h}.markRules(f)
	if err != nil {
		return "", fmt.Errorf("list the rules of policy routing: %w", err)
	}
	return Options{MasqueradeBit: bit}.sharedMark(f, rules), nil
}

// maxListAttempts limits interrupted attempts, of less than a millisecond each.
const maxListAttempts = 20

// retryInterrupted calls list until it is not interrupted.
func retryInterrupted[T any](list func() (T, error)) (T, error) {
	for n := 1; ; n++ {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		if n == maxListAttempts {
			return all, fmt.Errorf("%w, %d times in a row", err, n)
		}
	}
}

// schedulers are those that a kernel may have (kernel: net/netfilter/ipvs/Kconfig).
var schedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "fo", "ovf", "twos"}

// probeKey is where schedulers are tried, at this port or a following one. The addresses
// are reserved for documentation, but a foreign server may exist there nonetheless.
var probeKey = [...]service.Address{
	service.IPv4: {Addr: netip.MustParseAddr("198.51.100.0"), Port: 20000, Protocol: service.TCP, Family: service.IPv4},
	service.IPv6: {Addr: netip.MustParseAddr("2001:db8::"), Port: 20000, Protocol: service.TCP, Family: service.IPv6},
}

const (
	maxScheduler = 15 // bytes of its name
	probePorts   = 16 // number of ports to try
)

// perNamespace has the schedulers whose modules keep something in each network namespace,
// and the setting that exists once the module is loaded. Such a module must not be loaded
// by the kernel itself, when a virtual server wants it: the kernel does so with the lock
// of IPVS held, and the module waits for network namespaces that are being removed, which
// wait for that lock. Then no namespace of the node can be made or removed any more. See
// ip_vs_service_nets_cleanup in https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_ctl.c
// and ip_vs_lblc_init in https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_lblc.c
// A kernel with https://git.kernel.org/torvalds/c/74455a5b4326 has a lock for each namespace.
var perNamespace = map[string]string{"lblc": "lblc_expiration", "lblcr": "lblcr_expiration"}

// errNotLoaded is the answer for a scheduler that the kernel must not load itself.
var errNotLoaded = errors.New("the module is not loaded, and the node may hang if the kernel loads it on demand")

// loadScheduler loads the module of a scheduler without the lock of IPVS, if it has to.
func loadScheduler(scheduler string) error {
	setting, ok := perNamespace[scheduler]
	if !ok || schedulerLoaded(scheduler, setting) {
		return nil
	}
	module := "ip_vs_" + scheduler
	if err := exec.Command("modprobe", module).Run(); err != nil {
		return fmt.Errorf("%w: run modprobe %s on the node, at each boot", errNotLoaded, module)
	}
	return nil
}

// schedulerLoaded is true for modules that are built into the kernel, too: these have the
// setting. A network namespace that belongs to another user namespace lacks it.
func schedulerLoaded(scheduler, setting string) bool {
	for _, path := range []string{"/proc/sys/net/ipv4/vs/" + setting, "/sys/module/ip_vs_" + scheduler} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// probeScheduler makes a virtual server with a scheduler, and deletes it.
func (k *kernel) probeScheduler(scheduler string) error {
	err := k.tryScheduler(scheduler)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed, in a user namespace that may change IPVS, as the host's may", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: the kernel's IPVS is built without %s", err, k.family)
	case errors.Is(err, errNotLoaded):
		return fmt.Errorf("scheduler %q: %w", scheduler, err)
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	var has []string
	for _, s := range schedulers {
		if s != scheduler && k.tryScheduler(s) == nil {
			has = append(has, s)
		}
	}
	err = fmt.Errorf("the kernel has no scheduler %q (module ip_vs_%s): it has %s", scheduler, scheduler, strings.Join(slices.Sorted(slices.Values(has)), ", "))
	return sysctl.Missing(err, "ip_vs_"+scheduler)
}

func (k *kernel) tryScheduler(scheduler string) error {
	// With "none" the kernel makes a virtual server without scheduler (kernel:
	// net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_add_service). For a name that is too long its
	// error is misleading.
	if scheduler == "none" || len(scheduler) > maxScheduler {
		return unix.ENOENT
	}
	if err := loadScheduler(scheduler); err != nil {
		return err
	}
	o := &op{verb: addServer, key: probeKey[k.family], server: server{scheduler: scheduler, flags: flagOwned}}
	for range probePorts {
		err := k.requests.do(o)
		if errors.Is(err, unix.EEXIST) {
			var there server
			if there, err = k.getServer(o.key); err == nil && !there.owned() {
				o.key.Port++
				continue
			} else if err == nil { // left by a process that was killed
				err = k.requests.do(&op{verb: setServer, key: o.key, server: o.server})
			}
		}
		if err != nil {
			return err
		}
		return k.requests.do(&op{verb: delServer, key: o.key})
	}
	return fmt.Errorf("virtual servers of others are at %s and the %d ports after it", nameOf(probeKey[k.family]), probePorts-1)
}
