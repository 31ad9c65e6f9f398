// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/linux/sysctl"
)

// New returns the Backend for one family, in the network namespace of the calling thread.
// It changes nothing. The error names what the kernel lacks. The caller must call Close.
func New(f service.Family, o Options) (*Backend, error) {
	d := &kernel{family: f, table: o.table()}
	if err := d.open(); err != nil {
		d.close()
		return nil, fmt.Errorf("nftables for %s: %w", f, netlink.NFTHint(err))
	}
	return &Backend{family: f, options: o, driver: d}, nil
}

// kernel implements Driver with the running kernel.
type kernel struct {
	family                  service.Family
	table                   string // its name
	readSocket, writeSocket *netlink.Socket
	encoder                 *encoder
	monitor                 *monitor
}

func (k *kernel) open() (err error) {
	if k.readSocket, err = dial(); err != nil {
		return err
	}
	if k.writeSocket, err = dial(); err != nil {
		return err
	}
	if k.monitor, err = newMonitor(netlink.NFTFamily(k.family), k.table, k.writeSocket.PortID()); err != nil {
		return err
	}
	k.encoder = newEncoder(k.family)
	k.encoder.name = k.table
	_, err = k.reader().generation()
	return err
}

func (k *kernel) reader() *reader {
	return &reader{Socket: k.readSocket, nf: netlink.NFTFamily(k.family), name: k.table}
}

// dialReader returns a reader of what a Backend with options o has. The caller must close it.
func dialReader(f service.Family, o Options) (*reader, error) {
	s, err := dial()
	if err != nil {
		return nil, fmt.Errorf("nftables for %s: %w", f, netlink.NFTHint(err))
	}
	return (&kernel{family: f, table: o.table(), readSocket: s}).reader(), nil
}

func (k *kernel) Commit(_ context.Context, ops []op) error {
	batch, err := k.encoder.batch(ops)
	if err != nil {
		return err
	}
	err = k.writeSocket.Transact(batch)
	k.encoder.release()
	// Notifications of others' large transactions would fill the buffer between two syncs.
	k.monitor.notifyIfDirty()
	return err
}

func (k *kernel) Suspect() string { return k.monitor.suspect() }

// maxReadTries bounds how often a read restarts because others keep changing the ruleset.
const maxReadTries = 10

func (k *kernel) Read(context.Context) (*table, error)       { return k.read((*reader).read) }
func (k *kernel) ReadChains(context.Context) (*table, error) { return k.read((*reader).readChains) }

func (k *kernel) Element(s *set, key []byte) (*element, error) {
	return k.reader().element(s.name, key)
}

func (k *kernel) Rules(chain string) (all []packet.Rule, err error) {
	r := k.reader()
	fill := func() { r.Text(unix.NFTA_RULE_CHAIN, chain) }
	err = retryRead(func() error {
		all = nil
		return r.request(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, fill, func(body []byte) error {
			x := packet.DecodeRule(r.nf, body)
			x.Text = string(userdata.Get(netlink.Attribute(body, unix.NFTA_RULE_USERDATA), ruleTag))
			all = append(all, x)
			return nil
		})
	})
	return all, err
}

func (k *kernel) read(list func(*reader) error) (*table, error) {
	var t *table
	err := retryRead(func() (err error) {
		t, err = k.readOnce(list)
		return err
	})
	return t, err
}

// retryRead repeats a read that was interrupted, or that missed a set which others deleted
// after it was listed. The pauses let the kernel finish resizing a set.
func retryRead(list func() error) error {
	err := list()
	for try := 1; try < maxReadTries && (errors.Is(err, netlink.ErrInterrupted) || errors.Is(err, unix.ENOENT)); try++ {
		time.Sleep(time.Duration(try) * time.Millisecond)
		err = list()
	}
	return err
}

func (k *kernel) readOnce(list func(*reader) error) (*table, error) {
	r := k.reader()
	before, err := r.generation()
	if err != nil {
		return nil, err
	}
	k.monitor.reset()
	if err := r.find(); err != nil {
		return nil, err
	}
	if r.table != nil {
		err = list(r)
	}
	if err != nil {
		return nil, err
	}
	after, err := r.generation()
	if err == nil && before != after {
		err = netlink.ErrInterrupted
	}
	if err != nil {
		return nil, err
	}
	return r.table, nil
}

func (k *kernel) Touched(context.Context) (bool, error) { return k.monitor.isDirty(), nil }
func (k *kernel) Liberal() bool                         { return sysctl.TCPBeLiberal(sysctl.Host()) }

func (k *kernel) Watch(ctx context.Context, touched func()) error {
	return k.monitor.watch(ctx, touched)
}

// PruneClients implements Driver. It ignores a client that expired meanwhile.
func (k *kernel) PruneClients(ctx context.Context, clients *set, keep map[string]bool) error {
	var observed *observedSet
	err := retryRead(func() error {
		observed = newObservedSet(setSpec{})
		return k.reader().elements(clients.name, observed)
	})
	if err != nil {
		return err
	}
	for key := range observed.elements {
		e, _ := observed.get(key)
		if keep[string(e.value)] {
			continue
		}
		e.in = clients
		err := k.Commit(ctx, []op{{verb: delElement, element: e}})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// letGo deletes the endpoint that is recorded for a client.
func (l Leftovers) letGo(p *service.Port, client netip.Addr, e service.Address) error {
	for _, w := range service.Policies {
		for _, g := range (layout{port: p}).groups(w) {
			if g.port != e.Port {
				continue
			}
			forget := []op{{verb: delElement, element: element{in: g.clients, key: client.AsSlice()}}}
			err := l.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, forget) })
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

func (k *kernel) close() {
	sockets := []*netlink.Socket{k.readSocket, k.writeSocket}
	if k.monitor != nil {
		sockets = append(sockets, k.monitor.sock)
	}
	for _, s := range sockets {
		if s != nil {
			s.Close()
		}
	}
}

// socketOptions allow for transactions of 100,000 elements. Smaller datagrams read slower.
var socketOptions = netlink.Options{Buffer: 64 << 20, Datagram: 64 << 10}

func dial() (*netlink.Socket, error) {
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, socketOptions)
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	return s, nil
}

// Probe checks whether the kernel, in this thread's network namespace, supports a table for f. It
// changes nothing, and says in one sentence what is missing.
func Probe(f service.Family) error {
	if err := probe(f); err != nil {
		return fmt.Errorf("nftables for %s: %w", f, netlink.NFTHint(err))
	}
	return nil
}

func probe(f service.Family) error {
	if err := checkFamily(f); err != nil {
		return err
	}
	s, err := dial()
	if err != nil {
		return err
	}
	defer s.Close()
	e := newEncoder(f)
	e.name = probeTable
	try := func(ops []op) error {
		batch, err := e.dryRun(ops)
		if err != nil {
			return err
		}
		return s.Transact(batch)
	}
	// Without CAP_NET_ADMIN or nf_tables every check would return this error.
	err = try([]op{{verb: addTable}})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return probeFeatures(f, try)
}

// checkFamily reports an error if the kernel does not support the family.
func checkFamily(f service.Family) error {
	fd, err := unix.Socket(int(netlink.NFTFamily(f)), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("the kernel has no %s: it is built without or was started with ipv6.disable=1", f)
	}
	if err != nil {
		return fmt.Errorf("open a socket for %s: %w", f, err)
	}
	return unix.Close(fd)
}

// monitor receives a notification for every change of nftables in the network namespace, and
// records whether others changed our table. The kernel queues them before it completes the request
// (kernel: net/netfilter/nf_tables_api.c, nf_tables_commit): an empty queue means no change.
type monitor struct {
	nf   uint8
	name string // of our table
	sock *netlink.Socket

	mu          sync.Mutex
	dirty       bool
	sawOurTable bool // a change of our table was reported since the last generation message
	changedBy   proc.Process
	onChange    func() // called when dirty becomes true, nil if there is no watcher
}

// newMonitor listens to what concerns a table. Changes through the socket with port own are ours.
func newMonitor(nf uint8, table string, own uint32) (*monitor, error) {
	s, err := dial()
	if err != nil {
		return nil, err
	}
	if err := s.IgnorePort(own); err != nil {
		s.Close()
		return nil, err
	}
	if err := s.Join(unix.NFNLGRP_NFTABLES); err != nil {
		s.Close()
		return nil, fmt.Errorf("listen to changes of nftables: %w", err)
	}
	return &monitor{nf: nf, name: table, sock: s}, nil
}

// isDirty reports whether another process changed our table since reset.
func (m *monitor) isDirty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readPending()
	return m.dirty
}

// notifyIfDirty calls onChange if our table became dirty, for callers that do not check it next.
func (m *monitor) notifyIfDirty() {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.dirty
	m.readPending()
	if m.dirty && !was && m.onChange != nil {
		m.onChange()
	}
}

// reset clears the state, including notifications that are still queued.
func (m *monitor) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readPending()
	m.dirty = false
}

// readPending reads all queued notifications. The caller holds mu.
func (m *monitor) readPending() {
	for {
		b, err := m.sock.Poll()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil: // notifications were lost, see netlink(7): assume a change
			m.dirty = true
			if !errors.Is(err, unix.ENOBUFS) {
				return
			}
			continue
		}
		for x, err := range netlink.Messages(b) {
			if err != nil || m.aboutOurTable(x) {
				m.dirty, m.sawOurTable = true, true
			}
			m.recordProcess(x)
		}
	}
}

// aboutOurTable reports whether x is about our table, apart from clients that are forgotten. All
// message types except NFT_MSG_NEWGEN begin with the table's name.
func (m *monitor) aboutOurTable(x netlink.Message) bool {
	family, body := x.Netfilter()
	if x.Type == netlink.NFTType(unix.NFT_MSG_DELSETELEM) && strings.HasPrefix(netlink.Text(netlink.Attribute(body, unix.NFTA_SET_ELEM_LIST_SET)), clientsPrefix) {
		return false
	}
	return x.Type != netlink.NFTType(unix.NFT_MSG_NEWGEN) && family == m.nf && netlink.Text(netlink.Attribute(body, unix.NFTA_TABLE_NAME)) == m.name
}

// recordProcess records which process made a transaction that changed our table. The kernel
// ends each transaction with a message that contains the process, by its PID in the initial
// PID namespace (kernel: net/netfilter/nf_tables_api.c, nf_tables_fill_gen_info).
func (m *monitor) recordProcess(x netlink.Message) {
	if x.Type != netlink.NFTType(unix.NFT_MSG_NEWGEN) {
		return
	}
	_, body := x.Netfilter()
	if pid := netlink.Attribute(body, unix.NFTA_GEN_PROC_PID); m.sawOurTable && pid != nil {
		m.changedBy = proc.Process{PID: int(netlink.Uint32(pid)), Command: netlink.Text(netlink.Attribute(body, unix.NFTA_GEN_PROC_NAME))}
	}
	m.sawOurTable = false
}

// suspect returns the process that changed our table last, or "" if it is unknown.
func (m *monitor) suspect() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changedBy.PID == 0 {
		return ""
	}
	return m.changedBy.WithDetails().String()
}

// watch calls touched whenever our table was changed, until ctx ends.
func (m *monitor) watch(ctx context.Context, touched func()) error {
	m.setOnChange(touched)
	defer m.setOnChange(nil)
	for {
		err := m.sock.Wait(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("watch nftables: %w", err)
		}
		m.notifyIfDirty()
	}
}

// setOnChange sets the callback. It calls it at once if the table is already dirty.
func (m *monitor) setOnChange(touched func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onChange = touched
	if m.dirty && touched != nil {
		touched()
	}
}
