// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/test/netlab"
)

// network is a row of a client, a node and a server in namespaces of their own. The
// server answers at every endpoint's address.
type network struct {
	lab            *netlab.Lab
	node           *netlab.Host
	client, server *netlab.Host
}

func newNetwork() (*network, error) {
	lab, err := netlab.New(netlab.Config{Pods: []string{"client", "server"}})
	if err != nil {
		return nil, fmt.Errorf("build network: %w", err)
	}
	n := &network{lab: lab, node: lab.Node, client: lab.Host("client"), server: lab.Host("server")}
	if err := n.routeEndpoints(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *network) close() error { return n.lab.Close() }

// routeEndpoints makes all endpoints' addresses local on the server.
func (n *network) routeEndpoints() error {
	all := &net.IPNet{IP: endpointPrefix.Addr().AsSlice(), Mask: net.CIDRMask(endpointPrefix.Bits(), 32)}
	err := n.node.Do(func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: n.server.IPv4.AsSlice()})
	})
	if err != nil {
		return fmt.Errorf("route endpoints to the server: %w", err)
	}
	err = n.server.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: all, Table: unix.RT_TABLE_LOCAL,
			Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		})
	})
	if err != nil {
		return fmt.Errorf("give the server the endpoints' addresses: %w", err)
	}
	return nil
}

// sink makes the server read everything it receives, until the process ends.
func (n *network) sink(ctx context.Context) error {
	l, err := n.server.Listen(ctx, "tcp", fmt.Sprintf(":%d", sinkPort))
	if err != nil {
		return fmt.Errorf("start sink: %w", err)
	}
	go netlab.Serve(l, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	return nil
}

// shortenConntrackTimeouts keeps closed connections from filling the node's conntrack
// table, which has room for some hundred thousand: the bench makes more in the ten
// seconds of the default timeout of closed connections. See
// nf_conntrack_tcp_timeout_close in
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
func (n *network) shortenConntrackTimeouts() error {
	const file = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close"
	return n.node.Do(func() error {
		err := os.WriteFile(file, []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

// firstMiddleLast are the Services, of n, that connections use.
func firstMiddleLast(n int) [3]int { return [3]int{0, n / 2, n - 1} }

// target is the destination of the client's connections.
type target struct {
	name string
	from *network
	to   netip.AddrPort
	// among, if set, returns the address for the i-th connection.
	among func(i int) netip.Addr
	// cgroup, if not empty, is the folder of the cgroup that the client is in.
	cgroup string
}
