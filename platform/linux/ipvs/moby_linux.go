// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// client sends queries to IPVS.
type client interface {
	// listServers returns the family's virtual servers, without destinations.
	listServers() (map[key]*observedServer, error)
	// getServer returns a virtual server, without destinations. If it does not exist,
	// the error is unix.ESRCH.
	getServer(at key) (server, error)
	listDests(at key) ([]dest, error)
	getTimeouts() (timeouts, error)
	// setTimeouts sets the timeouts that are not zero.
	setTimeouts(t timeouts) error
}

// timeouts are the connection timeouts of IPVS.
type timeouts struct{ tcp, tcpFin, udp time.Duration }

// clientCloser is a client that holds a socket.
type clientCloser interface {
	client
	Close()
}

// mobyClient is the client that uses moby/ipvs.
type mobyClient struct {
	*ipvs.Handle
	family service.Family
}

func openMobyClient(f service.Family) (*mobyClient, error) {
	// The library logs what the returned errors already contain.
	logrus.SetOutput(io.Discard)
	h, err := ipvs.New("")
	return &mobyClient{h, f}, err
}

// callClient queries through the library, and through the requester once the module was
// reloaded, see there.
func callClient[T any](k *kernel, of func(client) (T, error)) (T, error) {
	if !k.reloaded {
		answer, err := of(k.moby)
		if !errors.Is(err, unix.ENOENT) {
			return answer, err
		}
		k.reloaded = true
	}
	return of(k.requests)
}

func (l *mobyClient) listServers() (map[key]*observedServer, error) {
	all, err := l.GetServices()
	if err != nil {
		return nil, err
	}
	servers := make(map[key]*observedServer, len(all))
	for _, s := range all {
		a, ok := l.addr(s.Address)
		if s.AddressFamily != af(l.family) || s.FWMark != 0 || !ok {
			continue
		}
		servers[key{a, s.Port, service.Protocol(s.Protocol)}] = &observedServer{server: server{s.SchedName, s.Flags, s.Timeout}}
	}
	return servers, nil
}

func (l *mobyClient) getServer(at key) (server, error) {
	s, err := l.GetService(l.service(at))
	if err != nil {
		return server{}, err
	}
	return server{s.SchedName, s.Flags, s.Timeout}, nil
}

func (l *mobyClient) listDests(at key) ([]dest, error) {
	list, err := l.GetDestinations(l.service(at))
	if err != nil {
		return nil, err
	}
	var dests []dest
	for _, x := range list {
		if a, ok := l.addr(x.Address); ok {
			conns, how := uint32(x.ActiveConnections+x.InactiveConnections), x.ConnectionFlags&ipvs.ConnectionFlagFwdMask
			dests = append(dests, dest{netip.AddrPortFrom(a, x.Port), uint16(x.Weight), conns, how != ipvs.ConnectionFlagMasq})
		}
	}
	slices.SortFunc(dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
	return dests, nil
}

func (l *mobyClient) getTimeouts() (timeouts, error) {
	c, err := l.GetConfig()
	if err != nil {
		return timeouts{}, err
	}
	return timeouts{c.TimeoutTCP, c.TimeoutTCPFin, c.TimeoutUDP}, nil
}

func (l *mobyClient) setTimeouts(t timeouts) error {
	return l.SetConfig(&ipvs.Config{TimeoutTCP: t.tcp, TimeoutTCPFin: t.tcpFin, TimeoutUDP: t.udp})
}

func (l *mobyClient) service(at key) *ipvs.Service {
	return &ipvs.Service{
		Address: net.IP(at.addr.AsSlice()), Protocol: uint16(at.proto), Port: at.port,
		AddressFamily: af(l.family), Netmask: netmask(l.family),
	}
}

func (l *mobyClient) addr(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	if l.family == service.IPv4 {
		a = a.Unmap()
	}
	return a, ok
}
