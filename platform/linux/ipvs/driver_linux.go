// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/ipvs/companion"
)

// New returns the Backend for one family in the network namespace of the calling thread.
// It changes nothing yet. The error describes what the kernel lacks.
func New(f service.Family, o Options) (*Backend, error) {
	k := &kernel{family: f, options: o}
	if err := k.open(); err != nil {
		return nil, fmt.Errorf("IPVS for %s: %w", f, err)
	}
	rules, err := companion.New(f, o.rulesOptions())
	if err != nil {
		return nil, fmt.Errorf("the rules of mode ipvs: %w", err)
	}
	rules.SetResync(o.SyncPeriod)
	return &Backend{family: f, options: o, driver: k, rules: rules, now: time.Now}, nil
}

// kernel is the Driver of the real kernel.
type kernel struct {
	family  service.Family
	options Options
	links   links // safe for concurrent use
	// refused are the settings that could not be set. They are not tried again.
	refused map[string]bool

	// mu guards the following fields: two concurrent requests on one handle of the
	// library hang.
	mu       sync.Mutex
	moby     clientCloser
	reloaded bool          // the module was reloaded, see callClient
	sets     *ipset.Kernel // nil until first used
	requests *requester    // nil if the kernel has no IPVS, only routes and sets
	device   netlink.Link  // valid during one Commit
}

func (k *kernel) open() error {
	id, err := ensureLoaded()
	if err != nil {
		return err
	}
	if k.requests, err = openRequester(k.family, id); err != nil {
		return fmt.Errorf("open a socket for IPVS: %w", err)
	}
	if k.moby, err = openMobyClient(k.family); err != nil {
		return fmt.Errorf("open a socket to ask for IPVS: %w", err)
	}
	return k.openLinks()
}

func (k *kernel) openLinks() (err error) {
	if k.links.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open a socket for routes: %w", err)
	}
	return nil
}

func (k *kernel) close() {
	if k.requests != nil {
		k.requests.socket.Close()
		k.moby.Close()
	}
	k.links.Close()
	if k.sets != nil {
		_ = k.sets.Close()
	}
}

// Commit implements Driver.
func (k *kernel) Commit(_ context.Context, ops []op) map[int]error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.device = nil // the interface may have been replaced
	closed := k.removeFromSet(ops)
	failed := applyInOrder(ops, func(o *op) error {
		if o.removesFromSet() && closed != nil {
			return closed
		}
		if err := k.do(o); err != nil {
			return driverError(err)
		}
		return nil
	})
	if err := k.addToSet(ops, failed); err != nil {
		markNotInSet(ops, failed, err)
	}
	return failed
}

// driverError maps error numbers to the errors of Driver.
func driverError(err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %w", errExists, err)
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	return err
}

func (k *kernel) do(o *op) error {
	switch o.verb {
	case addDevice:
		return k.addDevice()
	case addRoute, delRoute:
		return k.applyRoute(o)
	case delAddr:
		return k.deleteAddr(o.route.addr)
	case addSets, addAddrToSet, delAddrFromSet:
		return k.applySetOp(o)
	case addServerToSet, delServerFromSet: // done for all ops at once
		return nil
	case addServer, setServer:
		if err := loadScheduler(o.server.scheduler); err != nil {
			return fmt.Errorf("scheduler %s: %w", o.server.scheduler, err)
		}
	}
	err := k.requests.do(o)
	switch { // the kernel returns the same number for both
	case errors.Is(err, unix.ENOENT) && (o.verb == addServer || o.verb == setServer):
		return fmt.Errorf("%w: the kernel has no scheduler %s", err, o.server.scheduler)
	case errors.Is(err, unix.ENOENT) && o.verb == delDest:
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	return err
}

// Read implements Driver.
func (k *kernel) Read(context.Context) (*state, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &state{}
	var err error
	if s.device, s.routes, err = k.readRoutes(); err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", Device, err)
	}
	if s.servers, err = k.readServers(); err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	if err := k.readSets(s); err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	if k.requests != nil {
		s.oneTimeCost, k.requests.lookupTime = k.requests.lookupTime, 0
	}
	var u *upstreamState // not needed while all servers are ours
	for at, l := range s.servers {
		if l.owned() {
			continue
		}
		if u == nil {
			if u, err = k.readUpstream(); err != nil {
				return nil, fmt.Errorf("find kube-proxy's virtual servers: %w", err)
			}
		}
		l.upstream = u.owns(at)
	}
	return s, nil
}

// readServers lists virtual servers with their flags, which only netlink returns, and
// then all destinations at once.
func (k *kernel) readServers() (map[key]*observedServer, error) {
	if k.requests == nil {
		return nil, nil
	}
	servers, err := callClient(k, client.listServers)
	if err != nil {
		return nil, err
	}
	if len(servers) == 0 {
		return servers, nil
	}
	if err := readDests(servers); err != nil {
		return nil, err
	}
	for at, s := range servers {
		if !s.destsKnown {
			if s.dests, err = k.listDests(at); err != nil {
				return nil, err
			}
		}
	}
	return servers, nil
}

// Server implements Driver.
func (k *kernel) Server(_ context.Context, at key) (*observedServer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, err := k.getServer(at)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dests, err := k.listDests(at)
	return &observedServer{server: s, dests: dests, destsKnown: true}, err
}

// Dests implements Driver.
func (k *kernel) Dests(_ context.Context, at key) ([]dest, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.listDests(at)
}

func (k *kernel) getServer(at key) (server, error) {
	return callClient(k, func(a client) (server, error) { return a.getServer(at) })
}

func (k *kernel) listDests(at key) ([]dest, error) {
	return callClient(k, func(a client) ([]dest, error) { return a.listDests(at) })
}

// NodeAddrs implements Driver.
func (k *kernel) NodeAddrs(context.Context) ([]netip.Addr, error) {
	list, err := k.links.AddrList(nil, int(af(k.family)))
	if err != nil {
		return nil, err
	}
	device := -1
	if l, err := k.links.LinkByName(Device); err == nil {
		device = l.Attrs().Index
	}
	var addrs []netip.Addr
	for _, x := range list {
		a, ok := netip.AddrFromSlice(x.IP)
		if a = a.Unmap(); !ok || x.LinkIndex == device || a.IsLoopback() || a.IsLinkLocalUnicast() || isTentative(x) {
			continue
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	usual := k.defaultSource()
	if i := slices.Index(addrs, usual); i > 0 {
		addrs = slices.Insert(slices.Delete(addrs, i, i+1), 0, usual)
	}
	return addrs, nil
}

// defaultRouteTargets are addresses that only a default route leads to. RFC 2544 and RFC
// 5180 reserve them for benchmarks.
var defaultRouteTargets = [...]string{"198.18.0.1", "2001:2::1"}

// defaultSource returns the source address of the default route, an invalid address if
// there is none.
func (k *kernel) defaultSource() netip.Addr {
	routes, err := k.links.RouteGet(net.ParseIP(defaultRouteTargets[k.family]))
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(routes[0].Src)
	return a.Unmap()
}

// isTentative reports whether duplicate address detection for x is under way or has
// failed. The kernel does not use such an address as source
// (https://www.rfc-editor.org/rfc/rfc4862, section 5.4). It sends a notification when
// the state changes.
func isTentative(x netlink.Addr) bool {
	return x.Flags&unix.IFA_F_TENTATIVE != 0 && x.Flags&unix.IFA_F_OPTIMISTIC == 0
}
