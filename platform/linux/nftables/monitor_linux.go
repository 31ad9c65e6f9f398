// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/process"
)

// monitor receives a notification for every change of nftables in the network namespace.
// It records whether another process changed our table. The kernel queues the
// notifications before it completes the request that made the change, so an empty queue
// means that there was none.
type monitor struct {
	nf   uint8
	name string // of our table
	sock *socket

	mu          sync.Mutex
	dirty       bool
	sawOurTable bool // a change of our table was reported since the last generation message
	changedBy   process.Process
	onChange    func() // called when dirty becomes true, nil if there is no watcher
}

// newMonitor starts to listen to what concerns a table. Changes made through the socket with port
// own are ours.
func newMonitor(nf uint8, table string, own uint32) (*monitor, error) {
	s, err := dial()
	if err != nil {
		return nil, err
	}
	if err := ignorePort(s.fd, own); err != nil {
		s.close()
		return nil, fmt.Errorf("filter netlink notifications: %w", err)
	}
	if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES); err != nil {
		s.close()
		return nil, fmt.Errorf("listen to changes of nftables: %w", err)
	}
	return &monitor{nf: nf, name: table, sock: s}, nil
}

// ignorePort filters notifications about changes made through a netlink port. The kernel
// groups messages by transaction, so the port of the first one, at offset 12 of its
// header, applies to all.
func ignorePort(fd int, port uint32) error {
	// BPF loads words in network byte order. The header is in host byte order.
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], port)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(b[:])},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// isDirty reports whether another process changed our table since reset.
func (m *monitor) isDirty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readPending()
	return m.dirty
}

// notifyIfDirty calls onChange if our table became dirty. It serves callers that do not
// check the table next.
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
		b, err := m.sock.receive(unix.MSG_DONTWAIT)
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
		for r, err := range replies(b) {
			if err != nil || m.aboutOurTable(r) {
				m.dirty, m.sawOurTable = true, true
			}
			m.recordProcess(r)
		}
	}
}

// aboutOurTable reports whether r is about our table. All message types except
// NFT_MSG_NEWGEN begin with the table's name.
func (m *monitor) aboutOurTable(r reply) bool {
	const tableName = 1
	return r.typ != nft(unix.NFT_MSG_NEWGEN) && r.family == m.nf && stringOf(attribute(r.body, tableName)) == m.name
}

// recordProcess records which process made a transaction that changed our table. Since
// Linux 4.14 the kernel ends each transaction with a message that contains the process,
// by its PID in the initial PID namespace (kernel: net/netfilter/nf_tables_api.c,
// nf_tables_fill_gen_info).
func (m *monitor) recordProcess(r reply) {
	if r.typ != nft(unix.NFT_MSG_NEWGEN) {
		return
	}
	if pid := attribute(r.body, unix.NFTA_GEN_PROC_PID); m.sawOurTable && pid != nil {
		m.changedBy = process.Process{PID: int(u32Of(pid)), Command: stringOf(attribute(r.body, unix.NFTA_GEN_PROC_NAME))}
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
	var wake [2]int
	if err := unix.Pipe2(wake[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	defer unix.Close(wake[0])
	defer unix.Close(wake[1])
	woke := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woke)
		_, _ = unix.Write(wake[1], []byte{0})
	})
	defer func() {
		if !stop() {
			<-woke // otherwise it could write to a reused file descriptor
		}
	}()
	m.setOnChange(touched)
	defer m.setOnChange(nil)
	for {
		fds := []unix.PollFd{{Fd: int32(m.sock.fd), Events: unix.POLLIN}, {Fd: int32(wake[0]), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch nftables: %w", err)
		}
		if ctx.Err() != nil {
			return nil
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
