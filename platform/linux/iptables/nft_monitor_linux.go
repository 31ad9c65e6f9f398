// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/proc"
)

// nftMonitor detects changes in iptables-nft. The kernel sends a notification of every
// change of nftables, which includes the tables named nat and filter, and of the process
// that made it (kernel: net/netfilter/nf_tables_api.c, nf_tables_fill_gen_info).
type nftMonitor struct {
	sock        *netlink.Socket
	family      byte
	role        *Role
	dirty       bool
	relevant    bool         // the current transaction concerns our chains
	lastProcess proc.Process // the last process that changed our chains
}

// nftMonitorBuffer holds the notifications between two reads. If it overflows, tables are read.
const nftMonitorBuffer = 8 << 20

func newNFTMonitor(f service.Family, of *Role) (*nftMonitor, error) {
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Buffer: nftMonitorBuffer, Datagram: 64 << 10})
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	n := &nftMonitor{role: of, family: netlink.NFTFamily(f), sock: s}
	err = s.Join(unix.NFNLGRP_NFTABLES)
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	}
	if err != nil {
		n.close()
		return nil, fmt.Errorf("listen to changes of nftables: %w", err)
	}
	return n, nil
}

func (n *nftMonitor) close() { n.sock.Close() }

// beginRestore filters out the changes of process pid, the port of its first socket (netlink(7)).
func (n *nftMonitor) beginRestore(pid int) error {
	n.receive()
	return n.sock.IgnorePort(uint32(pid))
}

// endRestore removes the filter, because another process may reuse the process ID.
func (n *nftMonitor) endRestore() error {
	n.receive()
	return n.sock.IgnoreNoPort()
}

func (n *nftMonitor) reset() error {
	n.receive()
	n.dirty = false
	return nil
}

func (n *nftMonitor) touched() (bool, error) {
	n.receive()
	return n.dirty, nil
}

// receive reads all pending notifications.
func (n *nftMonitor) receive() {
	for {
		b, err := n.sock.Poll()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.ENOBUFS): // the kernel dropped notifications (netlink(7))
			n.dirty = true
		case err != nil:
			n.dirty = true
			return
		default:
			n.dirty = n.dirty || n.anyRelevant(b)
		}
	}
}

// anyRelevant reports whether one of the messages in b concerns our chains.
func (n *nftMonitor) anyRelevant(b []byte) bool {
	found := false
	for m, err := range netlink.Messages(b) {
		family, attrs := m.Netfilter()
		switch {
		case err != nil:
			return true
		case m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES:
		case m.Type&0xff == unix.NFT_MSG_NEWGEN:
			n.recordProcess(attrs)
		case family == n.family && isRelevant(n.role, m.Type&0xff, attrs):
			found, n.relevant = true, true
		}
	}
	return found
}

// recordProcess stores who made a transaction that concerned our chains; attrs are of its end.
func (n *nftMonitor) recordProcess(attrs []byte) {
	p := proc.Process{
		PID:     int(netlink.Uint32(netlink.Attribute(attrs, unix.NFTA_GEN_PROC_PID))),
		Command: netlink.Text(netlink.Attribute(attrs, unix.NFTA_GEN_PROC_NAME)),
	}
	if n.relevant && p.PID != 0 {
		n.lastProcess = p
	}
	n.relevant = false
}

func (n *nftMonitor) describeLastProcess() string {
	if n.lastProcess.PID == 0 {
		return ""
	}
	return n.lastProcess.WithDetails().String()
}

// isRelevant reports whether a message is about a chain of ours, or a built-in one of our tables.
func isRelevant(of *Role, kind uint16, attrs []byte) bool {
	var chain uint16
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chain = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chain = unix.NFTA_RULE_CHAIN
	default: // sets and the like, or the generation
		return false
	}
	table, found := "", false
	for typ, v := range netlink.Attributes(attrs) {
		value := netlink.Text(v)
		switch typ {
		case unix.NFTA_TABLE_NAME: // also of a chain and a rule
			table, found = value, true
			if !slices.Contains(of.tables(), table) {
				return false
			}
		case chain:
			i := id{table, value}
			return !found || of.owns(i) || i.isSystem()
		}
	}
	return true
}
