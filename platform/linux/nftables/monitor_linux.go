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

// monitor hears of every change to the rules of the network namespace and
// remembers whether one was to our table and by somebody else. The kernel
// queues its messages before the change takes effect for whoever made it, so
// an empty queue means that nothing happened.
type monitor struct {
	nf   uint8
	name string // of our table
	sock *socket

	mu          sync.Mutex
	dirty       bool
	sawOurTable bool // something was said of our table since the last generation
	changedBy   process.Process
	onChange    func() // told when dirty comes to be true, nil if nobody watches
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

// ignorePort keeps messages about changes made through a port from a socket. The
// kernel groups messages by transaction, so the first one's port, at offset
// 12 of its header, tells for all.
func ignorePort(fd int, port uint32) error {
	// The filter machine loads in network order what is in the machine's.
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

// isDirty reports whether our table was touched since reset.
func (m *monitor) isDirty() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readPending()
	return m.dirty
}

// notifyIfDirty tells whoever watches if our table was touched. It is for callers
// that do not look at the table next.
func (m *monitor) notifyIfDirty() {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.dirty
	m.readPending()
	if m.dirty && !was && m.onChange != nil {
		m.onChange()
	}
}

// reset forgets what was heard so far.
func (m *monitor) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readPending()
	m.dirty = false
}

// readPending reads what there is to hear. The caller holds mu.
func (m *monitor) readPending() {
	for {
		b, err := m.sock.receive(unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil: // messages were lost: it may have been touched
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

// aboutOurTable reports that r is about our table. Messages of every type begin with
// the name of the table, but the one that counts generations.
func (m *monitor) aboutOurTable(r reply) bool {
	const tableName = 1
	return r.typ != nft(unix.NFT_MSG_NEWGEN) && r.family == m.nf && stringOf(attribute(r.body, tableName)) == m.name
}

// recordProcess notes who made a transaction that our table was part of. The kernel ends
// each with a message that says so, since Linux 4.14, by the number that the process
// has outside of all containers (torvalds/linux, nf_tables_fill_gen_info).
func (m *monitor) recordProcess(r reply) {
	if r.typ != nft(unix.NFT_MSG_NEWGEN) {
		return
	}
	if pid := attribute(r.body, unix.NFTA_GEN_PROC_PID); m.sawOurTable && pid != nil {
		m.changedBy = process.Process{PID: int(u32Of(pid)), Command: stringOf(attribute(r.body, unix.NFTA_GEN_PROC_NAME))}
	}
	m.sawOurTable = false
}

// suspect names the process that touched our table last, nothing if that is not known.
func (m *monitor) suspect() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changedBy.PID == 0 {
		return ""
	}
	return m.changedBy.WithDetails().String()
}

// watch calls touched whenever our table was touched, until ctx ends.
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
			<-woke // or it would write to whatever has the number next
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

// setOnChange makes touched the one to be told, also of what was heard before.
func (m *monitor) setOnChange(touched func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onChange = touched
	if m.dirty && touched != nil {
		touched()
	}
}
