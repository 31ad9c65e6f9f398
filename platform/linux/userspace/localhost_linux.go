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

// NewLocalhost returns the Localhost of one family for a real node. It sets p.Network.
// Its packets to endpoints have mark, 0 for none.
func NewLocalhost(f service.Family, mark int, p LocalhostParts) *Localhost {
	p.Network = loopbackHost{host{family: f, mark: mark}}
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

// onLoopback makes a socket accept only packets that arrive on interface lo, which those
// of local processes to a loopback address do. With route_localnet the kernel would also
// accept packets from the local network (CVE-2020-8558, kubernetes/kubernetes#92315).
func onLoopback(_, _ string, c syscall.RawConn) error {
	var err error
	if ctlErr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), loopbackName) }); ctlErr != nil {
		return ctlErr
	}
	return err
}
