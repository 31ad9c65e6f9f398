// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Config describes a Lab. Names become interface names with the prefix "veth-", so they
// have at most ten characters, and no name occurs twice.
type Config struct {
	Pods    []string // on node-a: 10.244.1.11, .12 and so on
	Remote  []string // pods on node-b: 10.244.2.11 and so on
	Clients []string // on the LAN: 192.0.2.100 and so on
	Nodes   []string // more nodes, without pods: 192.0.2.12 and so on
	// Bridge, if not empty, is the name of a bridge on node-a to which its pods are
	// attached. Without it node-a has an interface "veth-NAME" for each pod, as node-b
	// always does.
	Bridge string
	// Cgroups puts node-a and its pods in cgroups like those of a kubelet, below Lab.Cgroup.
	// What is started on node-a sees that cgroup as the hierarchy of version 2, and has a BPF
	// file system of its own.
	Cgroups bool
	// Unbound are destinations to which TCP clients in these cgroups connect without a port
	// of their own, see Query.Unbound.
	Unbound []netip.Prefix
}

// ClusterCIDR contains the pod addresses of all nodes, in the form of the flag
// --cluster-cidr. The pods of node-a are in 10.244.1.0/24 and fd00:10:244:1::/64.
const ClusterCIDR = "10.244.0.0/16,fd00:10:244::/48"

// The names of the two nodes.
const (
	NodeName  = "node-a"
	OtherName = "node-b"
)

// Lab is a network. Its methods may be called from several goroutines.
type Lab struct {
	Node  *Host // node-a, where the proxy is to run
	Other *Host // node-b, a plain router for its pods
	// Cgroup is the folder of the cgroups, empty unless there are some.
	Cgroup string
	// Root is where this process finds the file systems that what is started on node-a sees,
	// empty unless they differ from its own.
	Root string

	lan, gateway *Host // lan is the bridge that connects all; gateway refuses unknown destinations
	hosts        map[string]*Host
}

// New builds a network. The caller closes it.
func New(cfg Config) (*Lab, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l := &Lab{hosts: map[string]*Host{}}
	if err := l.build(cfg); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (c Config) check() error {
	seen := map[string]bool{NodeName: true, OtherName: true, lanName: true, gatewayName: true}
	for _, names := range [][]string{c.Pods, c.Remote, c.Clients, c.Nodes} {
		if len(names) > maxHosts {
			return fmt.Errorf("lab with %d hosts of one sort: at most %d fit", len(names), maxHosts)
		}
		for _, name := range names {
			switch {
			case name == "" || len(name) > 10:
				return fmt.Errorf("host name %q: must have 1 to 10 characters", name)
			case seen[name]:
				return fmt.Errorf("host name %q: taken", name)
			}
			seen[name] = true
		}
	}
	return nil
}

// build creates the namespaces, those in the middle of the picture first.
func (l *Lab) build(cfg Config) error {
	var err error
	if l.lan, err = l.addHost(lanName); err != nil {
		return err
	}
	if err := l.lan.addBridge(lanBridge, nil); err != nil {
		return err
	}
	if l.gateway, err = l.addNode(gatewayName, 1); err != nil {
		return err
	}
	if l.Node, err = l.addNode(NodeName, 10); err != nil {
		return err
	}
	if l.Other, err = l.addNode(OtherName, 11); err != nil {
		return err
	}
	if err := l.connectNodes(); err != nil {
		return err
	}
	if cfg.Bridge != "" {
		if err := l.Node.addBridge(cfg.Bridge, singles(podGateway(1))); err != nil {
			return err
		}
	}
	for i, name := range cfg.Pods {
		if err := l.addPod(pod{name: name, node: l.Node, net: 1, bridge: cfg.Bridge}, i+11); err != nil {
			return err
		}
	}
	for i, name := range cfg.Remote {
		if err := l.addPod(pod{name: name, node: l.Other, net: 2}, i+11); err != nil {
			return err
		}
	}
	for i, name := range cfg.Nodes {
		if err := l.addRouter(name, i+12); err != nil {
			return err
		}
	}
	for i, name := range cfg.Clients {
		if err := l.addClient(name, i+100); err != nil {
			return err
		}
	}
	if cfg.Cgroups {
		if err := l.addCgroups(cfg.Pods); err != nil {
			return err
		}
		for _, h := range l.hosts {
			h.unbound = cfg.Unbound
		}
	}
	return l.awaitLinks()
}

// Host returns the node, pod or client of that name, nil if there is none.
func (l *Lab) Host(name string) *Host { return l.hosts[name] }

// Close ends the processes that were started in the lab, closes its echo servers and its
// namespaces. The kernel then removes the namespaces with everything in them.
func (l *Lab) Close() error {
	var errs []error
	for _, h := range l.hosts {
		errs = append(errs, h.close())
	}
	return errors.Join(append(errs, l.removeCgroups())...)
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Start builds a network for one test and closes it with the test. If namespaces or cgroups
// are not allowed, the test is skipped.
func Start(t TB, cfg Config) *Lab {
	t.Helper()
	l, err := New(cfg)
	if errors.Is(err, ErrNotAllowed) || errors.Is(err, ErrNoCgroups) {
		t.Skipf("%v", err)
	}
	if err != nil {
		t.Fatalf("build network: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Fatalf("close network: %v", err)
		}
	})
	return l
}

// Host is one machine of a Lab: a network namespace.
type Host struct {
	Name string
	// IPv4 and IPv6 are its addresses: on the LAN for a node or a client, in the pod
	// network for a pod.
	IPv4, IPv6 netip.Addr

	ns   netns.NsHandle
	link *netlink.Handle
	// worker runs in the thread that created the namespace, and lives as long as the
	// Host. So it is a safe parent: PR_SET_PDEATHSIG refers to the parent's thread, see
	// prctl(2).
	worker  chan func()
	ports   atomic.Uint32 // that clients were given so far
	cgroup  *cgroup       // nil for that of this process
	unbound []netip.Prefix

	mu      sync.Mutex
	closers []func() error // echo servers and the like, oldest first
}

// Addr returns the address of h in the family of like.
func (h *Host) Addr(like netip.Addr) netip.Addr {
	if like.Is4() {
		return h.IPv4
	}
	return h.IPv6
}

func newHost(name string) (*Host, error) {
	jobs := make(chan func())
	h := &Host{Name: name, worker: jobs}
	started := make(chan error)
	go onThread(func() bool {
		if err := h.open(); err != nil {
			started <- err
			return false
		}
		close(started)
		for job := range jobs {
			job()
		}
		return false
	})
	return h, <-started
}

// open moves the calling thread into a new namespace.
func (h *Host) open() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = ErrNotAllowed
		}
		return err
	}
	var err error
	if h.ns, err = netns.Get(); err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	if h.link, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return errors.Join(fmt.Errorf("open netlink: %w", err), h.ns.Close())
	}
	return nil
}

// onThread runs fn on a thread of its own. If fn returns true, the thread may be used
// again, else it ends. It never uses the first thread of the process. That thread cannot
// end, and /proc/PID/ns shows its namespaces as those of the process.
func onThread(fn func() bool) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		if fn() {
			runtime.UnlockOSThread()
		}
		return
	}
	done := make(chan struct{})
	go func() { // cannot get this thread: it is locked
		defer close(done)
		onThread(fn)
	}()
	<-done
	runtime.UnlockOSThread()
}

// Do runs fn in h's namespace and returns its error. Sockets and processes that fn itself
// creates stay in h; goroutines that fn starts do not run in h.
func (h *Host) Do(fn func() error) error {
	result := make(chan error, 1)
	go onThread(func() bool {
		home, err := netns.Get()
		if err != nil {
			result <- fmt.Errorf("open own namespace: %w", err)
			return true
		}
		defer home.Close()
		if err := h.enter(); err != nil {
			result <- fmt.Errorf("enter namespace of %s: %w", h.Name, err)
			return true
		}
		err = h.cgroup.enter()
		if err == nil {
			err = fn()
		}
		back := errors.Join(h.cgroup.leave(), netns.Set(home))
		result <- err
		return back == nil
	})
	return <-result
}

// enter moves the calling thread into h's namespace. A dial may still run while the Lab
// is closed, so enter guards the namespace handle.
func (h *Host) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return netns.Set(h.ns)
}

// Dial connects to addr from h.
func (h *Host) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	return h.dial(ctx, &d, network, addr)
}

func (h *Host) dial(ctx context.Context, d *net.Dialer, network, addr string) (net.Conn, error) {
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Listen listens on h for TCP.
func (h *Host) Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = lc.Listen(ctx, network, addr)
		return err
	})
	return l, err
}

// ListenPacket listens on h for UDP.
func (h *Host) ListenPacket(ctx context.Context, network, addr string) (net.PacketConn, error) {
	var lc net.ListenConfig
	var c net.PacketConn
	err := h.Do(func() (err error) {
		c, err = lc.ListenPacket(ctx, network, addr)
		return err
	})
	return c, err
}

// Start starts cmd on h. The process is killed, or gets the Pdeathsig of cmd, when the
// Lab is closed or this program ends. The caller waits for it as usual.
func (h *Host) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started := make(chan error)
	h.worker <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("start %s on %s: %w", cmd.Path, h.Name, err)
	}
	return nil
}

// AddAddr gives h, a node or a client, one more address on the LAN.
func (h *Host) AddAddr(a netip.Addr) error {
	const dev = "eth0"
	single := netip.PrefixFrom(a, a.BitLen())
	if err := h.addAddrs(dev, []netip.Prefix{single}); err != nil {
		return err
	}
	return h.awaitLinks(time.Now().Add(linkTimeout), func() (string, error) {
		if ok, err := h.routed([]netlink.Addr{{IPNet: ipNet(single)}}); err != nil || !ok {
			return dev, err
		}
		return "", nil
	})
}

// DelAddr removes an address that AddAddr added.
func (h *Host) DelAddr(a netip.Addr) error {
	link, err := h.link.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("%s: find interface eth0: %w", h.Name, err)
	}
	addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}
	if err := h.link.AddrDel(link, addr); err != nil {
		return fmt.Errorf("%s: remove address %s: %w", h.Name, a, err)
	}
	return nil
}

// atClose registers fn for the close of the Lab.
func (h *Host) atClose(fn func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closers = append(h.closers, fn)
}

// close ends everything that was started on h and closes its namespace.
func (h *Host) close() error {
	h.mu.Lock()
	closers := h.closers
	h.closers = nil
	h.mu.Unlock()
	var errs []error
	for _, fn := range slices.Backward(closers) {
		errs = append(errs, fn())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.worker != nil {
		close(h.worker)
		h.worker = nil
		h.link.Close()
		errs = append(errs, h.ns.Close(), h.cgroup.close())
	}
	return errors.Join(errs...)
}

// InNamespace runs fn on a thread in a network namespace of its own, which ends with the
// thread, and waits for it. fn may end its goroutine, as a failing test does. Without
// root privileges the test is skipped.
func InNamespace(t TB, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("a network namespace needs root")
	}
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		fn()
	}()
	if err := <-done; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
}

// Isolate configures cmd to run as root in a network namespace of its own, which ends
// with cmd. It needs no privileges if users may create user namespaces.
func Isolate(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	a := cmd.SysProcAttr
	a.Cloneflags |= syscall.CLONE_NEWNET
	if id := os.Getuid(); id != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
}

// addPair creates a veth pair, name on h and peerName on peer, sets both up and returns
// the first. See veth(4).
func (h *Host) addPair(name string, peer *Host, peerName string) (netlink.Link, error) {
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: name})
	veth.PeerName, veth.PeerNamespace = peerName, netlink.NsFd(peer.ns)
	if err := h.link.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("%s: add interface %s: %w", h.Name, name, err)
	}
	for _, end := range []struct {
		host *Host
		name string
	}{{h, name}, {peer, peerName}} {
		if err := end.host.linkUp(end.name); err != nil {
			return nil, err
		}
	}
	link, err := h.link.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: find interface %s: %w", h.Name, name, err)
	}
	return link, nil
}

func (h *Host) linkUp(name string) error {
	link, err := h.link.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: find interface %s: %w", h.Name, name, err)
	}
	if err := h.link.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s: start interface %s: %w", h.Name, name, err)
	}
	return nil
}

// addBridge creates a bridge that forwards from the first moment.
func (h *Host) addBridge(name string, addrs []netip.Prefix) error {
	off := false
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}, MulticastSnooping: &off}
	if err := h.link.LinkAdd(bridge); err != nil {
		return fmt.Errorf("%s: add bridge %s: %w", h.Name, name, err)
	}
	if err := h.linkUp(name); err != nil {
		return err
	}
	return h.addAddrs(name, addrs)
}

func (h *Host) plug(port netlink.Link, bridge string) error {
	master, err := h.link.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("%s: find bridge %s: %w", h.Name, bridge, err)
	}
	if err := h.link.LinkSetMaster(port, master); err != nil {
		return fmt.Errorf("%s: plug %s into bridge %s: %w", h.Name, port.Attrs().Name, bridge, err)
	}
	return nil
}

// plugPod lets a pod reach itself through the bridge. With br_netfilter, packets
// translated back to the same port are forwarded without routing, and a bridge drops such
// packets unless its port is in hairpin mode, see bridge(8). CNI plugins set the same
// mode.
func (h *Host) plugPod(port netlink.Link, bridge string) error {
	if err := h.plug(port, bridge); err != nil {
		return err
	}
	if err := h.link.LinkSetHairpin(port, true); err != nil {
		return fmt.Errorf("%s: let %s send back to itself: %w", h.Name, port.Attrs().Name, err)
	}
	return nil
}

// addAddrs adds addresses that may be used at once, without duplicate address detection.
func (h *Host) addAddrs(dev string, addrs []netip.Prefix) error {
	link, err := h.link.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("%s: find interface %s: %w", h.Name, dev, err)
	}
	for _, p := range addrs {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.link.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("%s: add address %s to %s: %w", h.Name, p, dev, err)
		}
	}
	return nil
}

// addLinkRoutes makes prefixes reachable on dev without a gateway.
func (h *Host) addLinkRoutes(dev string, prefixes []netip.Prefix) error {
	link, err := h.link.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("%s: find interface %s: %w", h.Name, dev, err)
	}
	for _, p := range prefixes {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(p), Scope: netlink.SCOPE_LINK}
		if err := h.link.RouteAdd(route); err != nil {
			return fmt.Errorf("%s: add route to %s: %w", h.Name, p, err)
		}
	}
	return nil
}

func (h *Host) addDefault(via *Host) error { return h.addRoutes(defaultRoutes, via) }

func (h *Host) addRoutes(prefixes []netip.Prefix, via *Host) error {
	for _, p := range prefixes {
		gateway := via.IPv4
		if p.Addr().Is6() {
			gateway = via.IPv6
		}
		if err := h.link.RouteAdd(&netlink.Route{Dst: ipNet(p), Gw: gateway.AsSlice()}); err != nil {
			return fmt.Errorf("%s: add route to %s via %s: %w", h.Name, p, gateway, err)
		}
	}
	return nil
}

// Lead has h send packets for addrs through via from now on, as a router does.
func (h *Host) Lead(via *Host, addrs ...netip.Addr) error {
	for _, a := range addrs {
		r := netlink.Route{Dst: ipNet(netip.PrefixFrom(a, a.BitLen())), Gw: via.Addr(a).AsSlice()}
		if err := h.link.RouteReplace(&r); err != nil {
			return fmt.Errorf("lead %s through %s: %w", a, via.Name, err)
		}
	}
	return nil
}

// Unplug takes h off the LAN.
func (h *Host) Unplug() error {
	l, err := h.link.LinkByName("eth0")
	if err != nil {
		return err
	}
	return h.link.LinkSetDown(l)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// linkTimeout is how long interfaces may take to start. The kernel has one work queue for
// that and much else.
const linkTimeout = time.Minute

// awaitLinks waits until every interface can transmit. A link starts asynchronously and
// drops packets until then, so that the first request of a test might be answered a
// second late.
func (l *Lab) awaitLinks() error {
	deadline := time.Now().Add(linkTimeout)
	for _, h := range l.hosts {
		if err := h.awaitLinks(deadline, h.notReady); err != nil {
			return err
		}
	}
	return nil
}

// awaitLinks waits until waiting names no interface any more.
func (h *Host) awaitLinks(deadline time.Time, waiting func() (string, error)) error {
	for ; ; time.Sleep(time.Millisecond) {
		name, err := waiting()
		switch {
		case errors.Is(err, netlink.ErrDumpInterrupted):
			name = "whose addresses change" // interrupted; the next call reads again
		case err != nil:
			return err
		case name == "":
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: interface %s did not come up within %s", h.Name, name, linkTimeout)
		}
	}
}

// notReady names an interface of h that is not up, has no IPv6 link-local address, or has
// a tentative one. It returns "" if there is none.
func (h *Host) notReady() (string, error) {
	links, err := h.link.LinkList()
	if err != nil {
		return "", fmt.Errorf("%s: list interfaces: %w", h.Name, err)
	}
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.Flags&net.FlagLoopback != 0 || empty(link, links) {
			continue
		}
		if attrs.OperState != netlink.OperUp {
			return attrs.Name, nil
		}
		addrs, err := h.link.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			return "", fmt.Errorf("%s: list addresses of %s: %w", h.Name, attrs.Name, err)
		}
		if ok, err := h.routed(addrs); err != nil || !ok || !usable(addrs) {
			return attrs.Name, err
		}
	}
	return "", nil
}

// empty returns whether link is a bridge without ports, which never comes up.
func empty(link netlink.Link, all []netlink.Link) bool {
	if link.Type() != "bridge" {
		return false
	}
	for _, port := range all {
		if port.Attrs().MasterIndex == link.Attrs().Index {
			return false
		}
	}
	return true
}

// usable returns whether addrs include a link-local address and none of them is
// tentative.
func usable(addrs []netlink.Addr) bool {
	own := false
	for _, a := range addrs {
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			return false
		}
		own = own || a.IP.IsLinkLocalUnicast()
	}
	return own
}

// routed returns whether packets to any of addrs are accepted. The kernel adds the local
// route asynchronously after the address. Until then an answer to the address, such as a
// refusal, is lost.
func (h *Host) routed(addrs []netlink.Addr) (bool, error) {
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		routes, err := h.link.RouteGet(a.IP)
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("%s: look for the route to %s: %w", h.Name, a.IP, err)
		}
		if len(routes) == 0 || routes[0].Type != unix.RTN_LOCAL {
			return false, nil
		}
	}
	return true, nil
}
