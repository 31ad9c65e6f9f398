// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/netlink"
)

// LeftTable is the table with connections to endpoints that left, in the network namespace
// of the calling thread. It implements orphans.Table.
type LeftTable struct {
	place Leftovers
	known bool // have is what the table holds
	have  []element
}

// NewLeftTable returns the table at a LeftPlace.
func NewLeftTable(place Leftovers) *LeftTable { return &LeftTable{place: place} }

// LeftPlace is where the table of the proxy of a name is, also if an earlier process left it.
func LeftPlace(f service.Family, proxyName string) Leftovers {
	return Leftovers{Family: f, Table: LeftTableOf(proxyName)}
}

// Forget implements orphans.Table.
func (t *LeftTable) Forget() { t.known, t.have = false, nil }

// Set implements orphans.Table. If the table is not as expected, for example since others
// deleted it, it is made again.
func (t *LeftTable) Set(flows []conntrack.Flow) error {
	want := leftElements(flows)
	ops := leftOps(t.have, want)
	if len(ops) == 0 && len(want) > 0 { // which fails if the table is gone
		ops = []op{{verb: addElement, element: want[0]}}
	}
	if t.known && t.commit(ops) == nil {
		t.have = want
		t.nudge(flows)
		return nil
	}
	t.Forget()
	if err := t.place.Remove(context.Background()); err != nil {
		return err
	}
	if err := t.commit(leftOps(nil, want)); err != nil {
		return fmt.Errorf("%s: %w", t.place, netlink.NFTHint(err))
	}
	t.known, t.have = true, want
	t.nudge(flows)
	return nil
}

// nudge nudges clients. It needs CAP_NET_RAW, and clients that send do not need it.
func (t *LeftTable) nudge(flows []conntrack.Flow) {
	if len(flows) == 0 {
		return
	}
	fd, err := unix.Socket(int(netlink.NFTFamily(t.place.Family)), unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for _, f := range flows {
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: f.Src.Addr().As16()}
		if f.Src.Addr().Is4() {
			to = &unix.SockaddrInet4{Addr: f.Src.Addr().As4()}
		}
		_ = unix.Sendto(fd, nudge(f), unix.MSG_DONTWAIT, to) // the next look nudges again
	}
}

func (t *LeftTable) commit(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return t.place.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, ops) })
}
