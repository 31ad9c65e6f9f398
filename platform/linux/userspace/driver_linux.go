// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
)

// New returns one family's Backend in the network namespace of the calling thread, which all later
// calls need, too. It changes nothing. The error says what the node lacks.
func New(f service.Family, o Options, l *Limits) (*Backend, error) {
	d, err := iptables.NewDriver(f, o.Rules)
	if err != nil {
		return nil, err
	}
	return NewWith(f, o, Parts{Driver: d, Network: newHost(f, o), Address: addressOf(f, o), Limits: l, Flows: conntrack.Netlink{}}), nil
}

// Probe checks whether the node has an iptables that accepts our rules for f. It changes
// nothing. The error is one sentence that describes what is missing.
func Probe(f service.Family, o Options) error {
	if err := ipv6Disabled(f); err != nil && !o.bound(f) {
		return fmt.Errorf("listeners for %s: %w", f, err)
	}
	return iptables.Probe(f, o.rules())
}

// disableIPv6Path is the sysctl that disables IPv6 on lo, absent without IPv6.
const disableIPv6Path = "/proc/sys/net/ipv6/conf/lo/disable_ipv6"

// ipv6Disabled returns why interface lo cannot have an address of f, nil if it can.
func ipv6Disabled(f service.Family) error {
	if f != service.IPv6 {
		return nil
	}
	text, err := os.ReadFile(disableIPv6Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errors.New("the kernel has no IPv6, or it is disabled")
	case err == nil && strings.TrimSpace(string(text)) != "0":
		return errors.New("IPv6 is disabled on interface lo, where they have their address: net.ipv6.conf.lo.disable_ipv6 is 1")
	}
	return nil
}

// host is the Network of a real node.
type host struct {
	mark int
	at   netip.Addr
	// ports, if set, is the range of listeners: rules take marked datagrams from there as theirs.
	ports Range
	// onListen, if set, is done to the sockets of listeners.
	onListen func(network, address string, c syscall.RawConn) error
}

func newHost(f service.Family, o Options) host {
	h := host{mark: 1 << o.Rules.MasqueradeBit, at: o.addr(f)}
	if o.bound(f) {
		h.ports = o.Ports
	}
	return h
}

// keepAlive detects within four minutes that a peer has disappeared.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 2 * time.Minute, Interval: 15 * time.Second, Count: 8}

func (h host) ListenTCP(port uint16) (*net.TCPListener, error) {
	c := net.ListenConfig{KeepAliveConfig: keepAlive, Control: h.onListen}
	c.SetMultipathTCP(false)
	l, err := c.Listen(context.Background(), "tcp", netip.AddrPortFrom(h.at, port).String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func (h host) ListenUDP(port uint16) (*net.UDPConn, error) {
	c := net.ListenConfig{Control: h.onListen}
	if !h.ports.unset() {
		c.Control = h.setMark
	}
	l, err := c.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(h.at, port).String())
	if err != nil {
		return nil, err
	}
	return l.(*net.UDPConn), nil
}

func (h host) DialTCP(ctx context.Context, to netip.AddrPort, hops int) (*net.TCPConn, error) {
	var p congestionControl
	d := net.Dialer{KeepAliveConfig: keepAlive, Control: func(network, address string, c syscall.RawConn) error {
		if err := h.setMark(network, address, c); err != nil {
			return err
		}
		return c.Control(func(fd uintptr) {
			p.avoidPacing(fd)
			_ = sendHops(fd, to.Addr(), hops)
		})
	}}
	conn, err := d.DialTCP(ctx, "tcp", netip.AddrPort{}, to)
	if op, is := errors.AsType[*net.OpError](err); is {
		op.Source = nil // carries no information
	}
	if err == nil {
		onSocket(conn, func(fd uintptr) { _ = sendHops(fd, to.Addr(), kernelDefaultHops) })
		p.restoreIfFar(conn, nearRTT)
	}
	return conn, err
}

func (h host) DialUDP(to netip.AddrPort, hops int) (*net.UDPConn, error) {
	d := net.Dialer{Control: func(network, address string, c syscall.RawConn) error {
		if err := h.setMark(network, address, c); err != nil {
			return err
		}
		return c.Control(func(fd uintptr) { _ = sendHops(fd, to.Addr(), hops) })
	}}
	return h.ports.passOver(func() (*net.UDPConn, error) {
		return d.DialUDP(context.Background(), "udp", netip.AddrPort{}, to)
	})
}

// passOver dials until the system chooses a port that is not in r.
func (r Range) passOver(dial func() (*net.UDPConn, error)) (*net.UDPConn, error) {
	var taken []*net.UDPConn
	defer func() {
		for _, c := range taken {
			_ = c.Close()
		}
	}()
	for {
		c, err := dial()
		if err != nil || len(taken) == mostTaken || !r.contains(c.LocalAddr().(*net.UDPAddr).AddrPort().Port()) {
			return c, err
		}
		taken = append(taken, c)
	}
}

// mostTaken bounds how many ports of listeners are passed over. The range of listeners
// should be a small part of the ports that the system chooses from.
const mostTaken = 16

// setMark marks the packets of a socket, so that rules do not redirect them.
func (h host) setMark(_, _ string, c syscall.RawConn) error {
	return withFD(c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, h.mark) })
}

// withFD does something to a socket before it is bound or connected.
func withFD(c syscall.RawConn, do func(fd int) error) error {
	var err error
	ctlErr := c.Control(func(fd uintptr) { err = do(int(fd)) })
	return cmp.Or(ctlErr, err)
}

func addressOf(f service.Family, o Options) Address {
	if o.bound(f) {
		return nodeAddress{o.addr(f)}
	}
	return loopback{f}
}

// nodeAddress is an Address that the node has anyway.
type nodeAddress struct{ netip.Addr }

func (a nodeAddress) Has() (bool, error) {
	all, err := net.InterfaceAddrs()
	return hasAddr(all, a.Addr), err
}

func hasAddr(all []net.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr() == a
	})
}

func (a nodeAddress) Add() error {
	return errors.New("no interface has it: want an address of this node for listeners, see --bind-address")
}

func (a nodeAddress) Remove() error { return nil }

// loopback is the Address of a real node that has none for listeners.
type loopback struct{ family service.Family }

const loopbackName = "lo"

func (l loopback) Has() (bool, error) {
	lo, err := net.InterfaceByName(loopbackName)
	if err != nil {
		return false, err
	}
	all, err := lo.Addrs()
	return hasAddr(all, Addrs[l.family]), err
}

func (l loopback) Add() error {
	lo, err := netlink.LinkByName(loopbackName)
	if err != nil {
		return err
	}
	err = netlink.AddrAdd(lo, l.addr())
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	}
	if why := ipv6Disabled(l.family); err != nil && why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	if err != nil {
		return err
	}
	return l.awaitRoute()
}

// routeTimeout limits the wait for the route of a new address. For IPv6 the kernel adds
// it asynchronously, after sockets can already listen on the address (kernel:
// net/ipv6/addrconf.c, addrconf_dad_start and addrconf_dad_work).
const routeTimeout = 5 * time.Second

// awaitRoute waits until the address is local. Without its route, redirected packets
// would leave the node, and datagrams would be lost.
func (l loopback) awaitRoute() error {
	for deadline := time.Now().Add(routeTimeout); ; time.Sleep(time.Millisecond) {
		local, err := conntrack.Netlink{}.Local(context.Background(), Addrs[l.family])
		switch {
		case err != nil:
			return fmt.Errorf("ask whether it is local: %w", err)
		case local:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("it has no route after %s", routeTimeout)
		}
	}
}

func (l loopback) Remove() error {
	lo, err := netlink.LinkByName(loopbackName)
	if err != nil {
		return err
	}
	if err := netlink.AddrDel(lo, l.addr()); !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	return nil
}

// addr returns the address with attributes that keep it from being a source elsewhere.
func (l loopback) addr() *netlink.Addr {
	a := Addrs[l.family]
	n := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is4() {
		n.Scope = unix.RT_SCOPE_HOST
		return n
	}
	n.Flags = unix.IFA_F_NODAD
	n.ValidLft, n.PreferedLft = math.MaxUint32, 0
	return n
}

// RaiseFileLimit raises this process's limit of open files as far as possible, and returns it.
func RaiseFileLimit() (int, error) {
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		return 0, fmt.Errorf("ask for the limit of open files: %w", err)
	}
	text, err := os.ReadFile("/proc/sys/fs/nr_open")
	most, parseErr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31)
	for _, want := range []unix.Rlimit{{Cur: most, Max: most}, {Cur: now.Max, Max: now.Max}} {
		if want.Max < now.Max || err != nil || parseErr != nil {
			continue
		}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &want) == nil {
			return int(min(want.Cur, math.MaxInt32)), nil
		}
	}
	return int(min(now.Cur, math.MaxInt32)), nil
}

// Audit checks a family's rules, which redirect to another process's listeners, by tables alone.
type Audit struct {
	reconcile.Base
	family  service.Family
	options Options
	driver  iptables.Driver
}

// NewAudit returns an Audit of the calling thread's network namespace, for the caller to close.
func NewAudit(f service.Family, o Options) (*Audit, error) {
	d, err := iptables.NewDriver(f, o.Rules)
	if err != nil {
		return nil, err
	}
	return &Audit{family: f, options: o, driver: d}, nil
}

// Tracer is an Audit that also follows connections through the listeners of this process.
type Tracer struct {
	*Audit
	relay  *Backend
	tables *iptables.Backend // that has what ReadOnce keeps
}

// NewTracer returns a Tracer for b in the calling thread's namespace, for the caller to close.
func NewTracer(b *Backend) (*Tracer, error) {
	a, err := NewAudit(b.family, b.options)
	if err != nil {
		return nil, err
	}
	return &Tracer{a, b, a.rules()}, nil
}

// Trace returns what rules and listeners do with the first packet of c, see Backend.TraceWith.
func (t *Tracer) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	return t.relay.traceWith(ctx, t.tables, want, c, local)
}

// ReadOnce makes Trace read the tables once for a snapshot, for many connections.
func (t *Tracer) ReadOnce() { t.tables.ReadOnce() }

// Plan implements reconcile.Backend. It is empty if each Port is redirected to some listener.
func (a *Audit) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	redirected, err := a.redirected(ctx, want)
	if err != nil {
		return nil, err
	}
	return a.rules().Plan(ctx, redirected)
}

// ReadBack returns the rules of the kernel and those for want, see iptables.Backend.
func (a *Audit) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	redirected, err := a.redirected(ctx, want)
	if err != nil {
		return nil, nil, err
	}
	return a.rules().ReadBack(ctx, redirected)
}

// Tracked returns what Backend.Tracked returns once want is in force.
func (a *Audit) Tracked(ctx context.Context, want *service.Snapshot) (*service.Snapshot, error) {
	redirected, err := a.redirected(ctx, want)
	if err != nil {
		return nil, err
	}
	var ports []*service.Port
	for p := range want.Ports(a.family) {
		ports = append(ports, merged(redirected.Port(a.family, p.Name), p))
	}
	return service.New(want.Generation, want.Node, ports), nil
}

// redirected returns want with the listeners of the rules as endpoints.
func (a *Audit) redirected(ctx context.Context, want *service.Snapshot) (*service.Snapshot, error) {
	at, err := a.rules().Destinations(ctx)
	if err != nil {
		return nil, err
	}
	var ports []*service.Port
	for p := range want.Ports(a.family) {
		ports = append(ports, a.options.withListeners(p, func(policy service.Policy) (uint16, bool) {
			return at[iptables.ChainOf(p, policy)].Port(), true
		}))
	}
	return service.New(want.Generation, want.Node, ports), nil
}

// rules returns a Backend without state, which reads the tables.
func (a *Audit) rules() *iptables.Backend {
	return iptables.NewWith(a.family, a.options.rules(), a.driver)
}

// Cleanup implements reconcile.Backend. An Audit changes nothing.
func (a *Audit) Cleanup(context.Context) error { return nil }

// Close implements reconcile.Backend.
func (a *Audit) Close() error { return a.rules().Close() }

// Leftovers is what a process in mode userspace leaves besides rules: the address of its
// listeners, in the network namespace of the calling thread.
type Leftovers struct{ Family service.Family }

// String returns a name for the leftovers.
func (l Leftovers) String() string { return "address " + Addrs[l.Family].String() }

// Find describes the leftovers, "" if there are none.
func (l Leftovers) Find(context.Context) (string, error) {
	found, err := loopback{l.Family}.Has()
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", l, err)
	}
	if !found {
		return "", nil
	}
	return "the address of listeners on interface " + loopbackName, nil
}

// Remove removes the address.
func (l Leftovers) Remove(context.Context) error {
	if err := (loopback{l.Family}).Remove(); err != nil {
		return fmt.Errorf("remove %s: %w", l, err)
	}
	return nil
}

// NewLocalhost returns the Localhost of one family for a real node. It sets p.Network.
// Its packets to endpoints have mark, 0 for none.
func NewLocalhost(f service.Family, mark int, p LocalhostParts) *Localhost {
	p.Network = host{mark: mark, at: service.Localhost(f), onListen: onLoopback}
	return NewLocalhostWith(f, p)
}

// onLoopback makes a socket accept only packets that arrive on interface lo, which those
// of local processes to a loopback address do. With route_localnet the kernel would also
// accept packets from the local network (CVE-2020-8558, kubernetes/kubernetes#92315).
func onLoopback(_, _ string, c syscall.RawConn) error {
	return withFD(c, func(fd int) error { return unix.BindToDevice(fd, loopbackName) })
}
