// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/process"
)

// nftMonitor detects changes in iptables-nft. The kernel sends a notification of every
// change of nftables, which includes the tables named nat and filter, and of the process
// that made it (kernel: net/netfilter/nf_tables_api.c).
type nftMonitor struct {
	fd          int
	family      byte
	role        Role
	dirty       bool
	relevant    bool // the current transaction concerns our chains
	buf         []byte
	lastProcess process.Process // the last process that changed our chains
}

// nftMonitorBuffer holds the notifications between two reads of the socket. If it
// overflows, the tables are read.
const nftMonitorBuffer = 8 << 20

func newNFTMonitor(f service.Family, of Role) (*nftMonitor, error) {
	n := &nftMonitor{role: of, family: unix.NFPROTO_IPV4, buf: make([]byte, 1<<16)}
	if f == service.IPv6 {
		n.family = unix.NFPROTO_IPV6
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to netfilter: %w", err)
	}
	n.fd = fd
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		n.close()
		return nil, fmt.Errorf("bind netlink socket to netfilter: %w", err)
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, nftMonitorBuffer) != nil {
		// Best effort: the default limit may be sufficient.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, nftMonitorBuffer)
	}
	err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	}
	if err != nil {
		n.close()
		return nil, fmt.Errorf("listen to changes of nftables: %w", err)
	}
	return n, nil
}

func (n *nftMonitor) close() { _ = unix.Close(n.fd) }

// beginRestore filters out the changes of process pid. The port of the first netlink
// socket of a process is its process ID (netlink(7)). A notification contains the port
// of the process that made the change, at offset 12 of the header of its first message.
func (n *nftMonitor) beginRestore(pid int) error {
	n.receive()
	// The BPF program loads in network byte order, but the field is in host byte order.
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(pid))
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(b[:])},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	err := unix.SetsockoptSockFprog(n.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		return fmt.Errorf("filter netlink notifications: %w", err)
	}
	return nil
}

// endRestore removes the filter, because another process may reuse the process ID.
func (n *nftMonitor) endRestore() error {
	n.receive()
	if err := unix.SetsockoptInt(n.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop to filter netlink notifications: %w", err)
	}
	return nil
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
		size, _, err := unix.Recvfrom(n.fd, n.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return
		case errors.Is(err, unix.ENOBUFS): // the kernel dropped notifications (netlink(7))
			n.dirty = true
		case err != nil:
			n.dirty = true
			return
		default:
			n.dirty = n.dirty || n.anyRelevant(n.buf[:size])
		}
	}
}

// anyRelevant reports whether one of the messages in b concerns our chains.
func (n *nftMonitor) anyRelevant(b []byte) bool {
	const header, body = unix.SizeofNlMsghdr, unix.SizeofNlMsghdr + 4
	found := false
	for len(b) >= body+4 {
		size := int(binary.NativeEndian.Uint32(b))
		if size < body || size > len(b) {
			return true // cannot be parsed
		}
		kind := binary.NativeEndian.Uint16(b[4:])
		switch {
		case kind>>8 != unix.NFNL_SUBSYS_NFTABLES:
		case kind&0xff == unix.NFT_MSG_NEWGEN:
			n.recordProcess(b[body:size])
		case b[header] == n.family && isRelevant(n.role, kind&0xff, b[body:size]):
			found, n.relevant = true, true
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return found
}

// recordProcess stores the process of a transaction that concerned our chains. attrs are
// those of the message that ends the transaction.
func (n *nftMonitor) recordProcess(attrs []byte) {
	var p process.Process
	for len(attrs) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofNlAttr || size > len(attrs) {
			return
		}
		value := attrs[unix.SizeofNlAttr:size]
		switch kind := binary.NativeEndian.Uint16(attrs[2:]); {
		case kind == unix.NFTA_GEN_PROC_PID && len(value) == 4:
			p.PID = int(binary.BigEndian.Uint32(value))
		case kind == unix.NFTA_GEN_PROC_NAME:
			p.Command = text(value)
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
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

// Attribute types: the table, then the chain. In messages about a chain itself, the
// handle comes before the chain.
const (
	attrTable     = 1
	attrRuleChain = 2
	attrChainName = 3
)

// isRelevant reports whether a message with these attributes concerns a table of ours,
// or in it a chain of ours or a built-in chain.
func isRelevant(of Role, kind uint16, attrs []byte) bool {
	var chain uint16
	switch kind {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chain = attrChainName
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chain = attrRuleChain
	default: // sets and the like, or the generation
		return false
	}
	table, found := "", false
	for len(attrs) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofNlAttr || size > len(attrs) {
			return true // cannot be parsed
		}
		value := text(attrs[unix.SizeofNlAttr:size])
		switch binary.NativeEndian.Uint16(attrs[2:]) &^ unix.NLA_F_NESTED {
		case attrTable:
			table, found = value, true
			if !slices.Contains(of.tables(), table) {
				return false
			}
		case chain:
			i := id{table, value}
			return !found || of.owns(i) || i.isSystem()
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	return true
}
