// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
	"kubeproxy/platform/linux/proc"
)

// monitor receives a notification for every change of nftables in the network namespace.
// It records whether another process changed our table. The kernel queues the
// notifications before it completes the request that made the change (kernel:
// net/netfilter/nf_tables_api.c, nf_tables_commit), so an empty queue means that there was
// none.
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

// newMonitor starts to listen to what concerns a table. Changes made through the socket with port
// own are ours.
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

// aboutOurTable reports whether x is about our table. All message types except
// NFT_MSG_NEWGEN begin with the table's name.
func (m *monitor) aboutOurTable(x netlink.Message) bool {
	family, body := x.Netfilter()
	return x.Type != nft.Type(unix.NFT_MSG_NEWGEN) && family == m.nf && netlink.Text(netlink.Attribute(body, unix.NFTA_TABLE_NAME)) == m.name
}

// recordProcess records which process made a transaction that changed our table. The kernel
// ends each transaction with a message that contains the process, by its PID in the initial
// PID namespace (kernel: net/netfilter/nf_tables_api.c, nf_tables_fill_gen_info).
func (m *monitor) recordProcess(x netlink.Message) {
	if x.Type != nft.Type(unix.NFT_MSG_NEWGEN) {
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
