// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/explain"
)

// Message types of nfnetlink that package unix does not define.
const (
	batchBegin = 0x10
	batchEnd   = 0x11
)

// tableTimeout limits the time that the kernel has for a reply about a table.
const tableTimeout = 10 * time.Second

// SavedTables implements Driver.
func (r *runner) SavedTables() []string {
	if _, nft := r.monitor.(*nftMonitor); !nft {
		return []string{explain.LegacyTables}
	}
	var all []string
	for _, name := range []string{rawTable, mangle, nat, filter} {
		all = append(all, tableFamily(r.family)+" "+name)
	}
	return all
}

// Dormant implements Driver. Tables of iptables-legacy have no flags.
func (r *runner) Dormant() ([]string, error) {
	n, ok := r.monitor.(*nftMonitor)
	if !ok {
		return nil, nil
	}
	conn, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var dormant []string
	for _, table := range r.role.tables() {
		flags, err := tableFlags(conn, n.family, table)
		if err != nil {
			return nil, fmt.Errorf("ask for the flags of table %s: %w", table, err)
		}
		if flags&unix.NFT_TABLE_F_DORMANT != 0 {
			dormant = append(dormant, table)
		}
	}
	return dormant, nil
}

// Activate implements Driver.
func (r *runner) Activate(table string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.monitor.(*nftMonitor)
	if !ok {
		return nil
	}
	conn, err := dialNetfilter()
	if err != nil {
		return err
	}
	defer conn.Close()
	flags, err := tableFlags(conn, n.family, table)
	if err != nil || flags&unix.NFT_TABLE_F_DORMANT == 0 {
		return err
	}
	port, err := netlinkPort(conn)
	if err != nil {
		return err
	}
	if err := n.beginRestore(int(port)); err != nil {
		return err
	}
	return errors.Join(setTableFlags(conn, n.family, table, flags&^unix.NFT_TABLE_F_DORMANT), n.endRestore())
}

func dialNetfilter() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(tableTimeout))
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to netfilter: %w", err)
	}
	return conn, nil
}

// netlinkPort returns the netlink port of conn. The kernel includes it in each reply.
func netlinkPort(conn *netlink.Conn) (uint32, error) {
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil || len(replies) == 0 {
		return 0, err
	}
	return replies[0].Header.PID, nil
}

// tableFlags returns the flags of a table, 0 if the table does not exist.
func tableFlags(conn *netlink.Conn, family byte, table string) (uint32, error) {
	e := netlink.NewAttributeEncoder()
	e.String(unix.NFTA_TABLE_NAME, table)
	name, err := e.Encode()
	if err != nil {
		return 0, err
	}
	replies, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE, Flags: netlink.Request},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, name...),
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil || len(replies) == 0 || len(replies[0].Data) < 4 {
		return 0, err
	}
	d, err := netlink.NewAttributeDecoder(replies[0].Data[4:])
	if err != nil {
		return 0, err
	}
	d.ByteOrder = binary.BigEndian
	var flags uint32
	for d.Next() {
		if d.Type() == unix.NFTA_TABLE_FLAGS {
			flags = d.Uint32()
		}
	}
	return flags, d.Err()
}

// setTableFlags sets the flags of an existing table. The kernel accepts changes of
// nftables only in batches.
func setTableFlags(conn *netlink.Conn, family byte, table string, flags uint32) error {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.String(unix.NFTA_TABLE_NAME, table)
	e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	subsystem := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	_, err = conn.SendMessages([]netlink.Message{
		{Header: netlink.Header{Type: batchBegin, Flags: netlink.Request}, Data: subsystem},
		{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
		},
		{Header: netlink.Header{Type: batchEnd, Flags: netlink.Request}, Data: subsystem},
	})
	if err == nil {
		_, err = conn.Receive()
	}
	return err
}
