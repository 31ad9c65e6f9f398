// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"net/netip"

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
	flows []conntrack.Flow
}

// NewLeftTable returns the table at a LeftPlace.
func NewLeftTable(place Leftovers) *LeftTable { return &LeftTable{place: place} }

// LeftPlace is where the table of the proxy of a name is, also if an earlier process left it.
func LeftPlace(f service.Family, proxyName string) Leftovers {
	return Leftovers{Family: f, Table: LeftTableOf(proxyName)}
}

// Forget implements orphans.Table.
func (t *LeftTable) Forget() { t.known, t.have, t.flows = false, nil, nil }

// Set implements orphans.Table. A table that is not as expected is made again.
func (t *LeftTable) Set(flows []conntrack.Flow) error {
	want := leftElements(flows)
	ops := leftOps(t.have, want)
	if len(ops) == 0 && len(want) > 0 { // which fails if the table is gone
		ops = []op{{verb: addElement, element: want[0]}}
	}
	t.nudge(ended(t.flows, flows), endpointEnd)
	if t.known && t.commit(ops) == nil {
		t.have, t.flows = want, flows
		t.nudge(flows, clientEnd)
		return nil
	}
	t.Forget()
	if err := t.place.Remove(context.Background()); err != nil {
		return err
	}
	if err := t.commit(leftOps(nil, want)); err != nil {
		return fmt.Errorf("%s: %w", t.place, netlink.NFTHint(err))
	}
	t.known, t.have, t.flows = true, want, flows
	t.nudge(flows, clientEnd)
	return nil
}

// nudge nudges one end of flows. It needs CAP_NET_RAW, and ends that send do not need it.
func (t *LeftTable) nudge(flows []conntrack.Flow, end func(conntrack.Flow) (from, to netip.AddrPort)) {
	if len(flows) == 0 {
		return
	}
	fd, err := unix.Socket(int(netlink.NFTFamily(t.place.Family)), unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for _, f := range flows {
		from, at := end(f)
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: at.Addr().As16()}
		if at.Addr().Is4() {
			to = &unix.SockaddrInet4{Addr: at.Addr().As4()}
		}
		_ = unix.Sendto(fd, nudge(from, at), unix.MSG_DONTWAIT, to) // the next look nudges clients again
	}
}

func (t *LeftTable) commit(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return t.place.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, ops) })
}
