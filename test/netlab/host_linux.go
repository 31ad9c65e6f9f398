// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
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
