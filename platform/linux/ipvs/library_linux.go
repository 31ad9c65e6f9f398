// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// asker is whom IPVS of the kernel is asked by.
type asker interface {
	// list returns the family's virtual servers, without destinations.
	list() (map[key]*listed, error)
	// one returns a virtual server, without destinations. If there is none, the
	// error is unix.ESRCH.
	one(at key) (server, error)
	dests(at key) ([]dest, error)
	times() (timeouts, error)
	// setTimes sets timeouts but for those that are zero.
	setTimes(t timeouts) error
}

// handle is an asker that is given back.
type handle interface {
	asker
	Close()
}

// byLibrary is the asker by moby/ipvs.
type byLibrary struct {
	*ipvs.Handle
	family service.Family
}

func openLibrary(f service.Family) (*byLibrary, error) {
	// It tells in a log of its own what present tells better.
	logrus.SetOutput(io.Discard)
	h, err := ipvs.New("")
	return &byLibrary{h, f}, err
}

// ask asks the library, and by requests of our own once it no longer can: it
// learns once in a process which number IPVS has in generic netlink, and that
// changes when the module is loaded anew.
func ask[T any](k *kernel, of func(asker) (T, error)) (T, error) {
	if !k.reloaded {
		answer, err := of(k.library)
		if !errors.Is(err, unix.ENOENT) {
			return answer, err
		}
		k.reloaded = true
	}
	return of(k.ipvs)
}

func (l *byLibrary) list() (map[key]*listed, error) {
	all, err := l.GetServices()
	if err != nil {
		return nil, err
	}
	servers := make(map[key]*listed, len(all))
	for _, s := range all {
		a, ok := l.addr(s.Address)
		if s.AddressFamily != af(l.family) || s.FWMark != 0 || !ok {
			continue
		}
		servers[key{a, s.Port, service.Protocol(s.Protocol)}] = &listed{server: server{s.SchedName, s.Flags, s.Timeout}}
	}
	return servers, nil
}

func (l *byLibrary) one(at key) (server, error) {
	s, err := l.GetService(l.service(at))
	if err != nil {
		return server{}, err
	}
	return server{s.SchedName, s.Flags, s.Timeout}, nil
}

func (l *byLibrary) dests(at key) ([]dest, error) {
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

func (l *byLibrary) times() (timeouts, error) {
	c, err := l.GetConfig()
	if err != nil {
		return timeouts{}, err
	}
	return timeouts{c.TimeoutTCP, c.TimeoutTCPFin, c.TimeoutUDP}, nil
}

func (l *byLibrary) setTimes(t timeouts) error {
	return l.SetConfig(&ipvs.Config{TimeoutTCP: t.tcp, TimeoutTCPFin: t.tcpFin, TimeoutUDP: t.udp})
}

func (l *byLibrary) service(at key) *ipvs.Service {
	return &ipvs.Service{
		Address: net.IP(at.addr.AsSlice()), Protocol: uint16(at.proto), Port: at.port,
		AddressFamily: af(l.family), Netmask: netmask(l.family),
	}
}

func (l *byLibrary) addr(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	if l.family == service.IPv4 {
		a = a.Unmap()
	}
	return a, ok
}
