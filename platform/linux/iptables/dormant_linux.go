// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/explain"
	"kubeproxy/platform/linux/netlink"
)

// tableTimeout limits the time that the kernel has for a reply about a table.
const tableTimeout = 10 * time.Second

func (r *runner) SavedTables() []string {
	if _, nft := r.monitor.(*nftMonitor); !nft {
		return []string{explain.LegacyTables}
	}
	var all []string
	for _, name := range []string{rawTable, mangle, nat, filter} {
		all = append(all, netlink.FamilyName(r.family)+" "+name)
	}
	return all
}

// Dormant implements Driver. Tables of iptables-legacy have no flags.
func (r *runner) Dormant() ([]string, error) {
	n, ok := r.monitor.(*nftMonitor)
	if !ok {
		return nil, nil
	}
	s, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var dormant []string
	for _, table := range r.role.tables() {
		flags, err := tableFlags(context.Background(), s, n.family, table)
		if err != nil {
			return nil, fmt.Errorf("ask for the flags of table %s: %w", table, err)
		}
		if flags&unix.NFT_TABLE_F_DORMANT != 0 {
			dormant = append(dormant, table)
		}
	}
	return dormant, nil
}

func (r *runner) Activate(table string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.monitor.(*nftMonitor)
	if !ok {
		return nil
	}
	s, err := dialNetfilter()
	if err != nil {
		return err
	}
	defer s.Close()
	flags, err := tableFlags(context.Background(), s, n.family, table)
	if err != nil || flags&unix.NFT_TABLE_F_DORMANT == 0 {
		return err
	}
	if err := n.beginRestore(int(s.PortID())); err != nil {
		return err
	}
	return errors.Join(setTableFlags(s, n.family, table, flags&^unix.NFT_TABLE_F_DORMANT), n.endRestore())
}

func dialNetfilter() (*netlink.Socket, error) {
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Timeout: tableTimeout})
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	return s, nil
}

// tableFlags returns the flags of a table, 0 if the table does not exist.
func tableFlags(ctx context.Context, s *netlink.Socket, family byte, table string) (uint32, error) {
	e := &netlink.Encoder{}
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_GETTABLE), 0, family, 0)
	e.Text(unix.NFTA_TABLE_NAME, table)
	e.EndMessage()
	var flags uint32
	err := s.Query(ctx, e.Buf, func(m netlink.Message) error {
		_, body := m.Netfilter()
		flags = netlink.Uint32(netlink.Attribute(body, unix.NFTA_TABLE_FLAGS))
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return flags, err
}

// setTableFlags sets the flags of an existing table, in a batch: nftables changes nothing else.
func setTableFlags(s *netlink.Socket, family byte, table string, flags uint32) error {
	e := &netlink.Encoder{}
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_NEWTABLE), unix.NLM_F_ACK, family, 0)
	e.Text(unix.NFTA_TABLE_NAME, table)
	e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	e.EndMessage()
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	return s.Transact(e.Buf)
}
