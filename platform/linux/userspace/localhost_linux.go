// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// NewLocalhost returns the Localhost of one family for a real node. Unlike that of
// LocalhostParts, its Network is filled in. What it sends has mark, 0 for none.
func NewLocalhost(f service.Family, mark int, p LocalhostParts) *Localhost {
	p.Network = loopbackHost{host{f, mark}}
	return NewLocalhostWith(f, p)
}

// loopbackHost is the Network of a real node whose listeners are on its loopback
// address.
type loopbackHost struct{ host }

// ListenTCP implements Network.
func (h loopbackHost) ListenTCP(port uint16) (*net.TCPListener, error) {
	c := net.ListenConfig{KeepAliveConfig: keepAlive, Control: onLoopback}
	c.SetMultipathTCP(false)
	l, err := c.Listen(context.Background(), "tcp", h.addrPort(port))
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// ListenUDP implements Network.
func (h loopbackHost) ListenUDP(port uint16) (*net.UDPConn, error) {
	c := net.ListenConfig{Control: onLoopback}
	l, err := c.ListenPacket(context.Background(), "udp", h.addrPort(port))
	if err != nil {
		return nil, err
	}
	return l.(*net.UDPConn), nil
}

func (h loopbackHost) addrPort(port uint16) string {
	return netip.AddrPortFrom(service.Localhost(h.family), port).String()
}

// onLoopback has a socket take what comes in through interface lo only. What the
// node's own programs send to a loopback address does. What a neighbour sends there
// does not, and the kernel lets it in where somebody has set route_localnet
// (CVE-2020-8558, kubernetes/kubernetes#92315).
func onLoopback(_, _ string, c syscall.RawConn) error {
	var err error
	if ctlErr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), loopbackName) }); ctlErr != nil {
		return ctlErr
	}
	return err
}
