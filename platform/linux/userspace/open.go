// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"net"

	"kubeproxy/common/listen"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// open opens a listener of p: on the port of an earlier process, otherwise on a port of
// the range, otherwise on a free one.
func (b *Backend) open(k key, p *service.Port) error {
	if err := unsupported(p); err != nil {
		return err
	}
	claim := b.targets[k.name].listenerClaim()
	if !b.relay.limits.acquire(claim) {
		return fmt.Errorf("listen: no more open files for listeners of the Service: the process may have %d: raise its limit of open files", b.relay.limits.files)
	}
	l, err := b.listen(k, p)
	if err != nil {
		b.relay.limits.release(claim)
		return fmt.Errorf("listen: %w", err)
	}
	b.listeners[k] = l
	b.directory.add(location{k.name.Protocol, l.port()}, user{k, b.targets[k.name]})
	return nil
}

// unsupported returns what keeps the mode from serving p, nil if nothing does.
func unsupported(p *service.Port) error {
	if p.Name.Protocol != service.SCTP {
		return nil
	}
	return &reconcile.UnsupportedError{Text: onlyTCPAndUDP, Affected: p.Frontends}
}

const onlyTCPAndUDP = "mode userspace forwards TCP and UDP only"

// removeListener removes a listener that is closed, or about to be.
func (b *Backend) removeListener(k key, l listener) {
	delete(b.listeners, k)
	b.directory.remove(location{k.name.Protocol, l.port()}, k)
}

func (b *Backend) listen(k key, p *service.Port) (listener, error) {
	s, err := b.socket(k, p)
	switch {
	case err != nil:
		return nil, err
	case s.udp != nil:
		return b.relay.serveUDP(s.udp, b.targets[k.name], k.policy), nil
	}
	return b.relay.serveTCP(s.tcp, b.targets[k.name], k.policy), nil
}

// socket is either a TCP listener or a UDP socket.
type socket struct {
	tcp *net.TCPListener
	udp *net.UDPConn
}

func (b *Backend) socketAt(proto service.Protocol, port uint16) (s socket, err error) {
	if proto == service.UDP {
		s.udp, err = b.relay.network.ListenUDP(port)
	} else {
		s.tcp, err = b.relay.network.ListenTCP(port)
	}
	return s, err
}

func (s socket) port() uint16 {
	if s.udp != nil {
		return s.udp.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	}
	return s.tcp.Addr().(*net.TCPAddr).AddrPort().Port()
}

func (s socket) close() {
	if s.udp != nil {
		_ = s.udp.Close()
		return
	}
	_ = s.tcp.Close()
}

func (b *Backend) socket(k key, p *service.Port) (socket, error) {
	r := b.options.Ports
	had := b.previousPorts[iptables.ChainOf(p, k.policy)]
	if had != 0 && (r.unset() || r.contains(had)) {
		if s, err := b.socketAt(k.name.Protocol, had); !listen.InUse(err) {
			return s, err
		}
	}
	if r.unset() {
		return b.anyFreeSocket(k.name.Protocol)
	}
	for range int(r.Last-r.First) + 1 {
		if b.lastPort++; !r.contains(b.lastPort) {
			b.lastPort = r.First
		}
		if b.avoidPorts[b.lastPort] {
			continue
		}
		if s, err := b.socketAt(k.name.Protocol, b.lastPort); !listen.InUse(err) {
			return s, err
		}
	}
	return socket{}, fmt.Errorf("every port of the range %d-%d is taken: give --proxy-port-range more", r.First, r.Last)
}

// anyFreeSocket repeats until the system returns a port that no old rule redirects to.
func (b *Backend) anyFreeSocket(proto service.Protocol) (socket, error) {
	const most = 100
	var unsafe []socket
	defer func() {
		for _, s := range unsafe {
			s.close()
		}
	}()
	for range most {
		s, err := b.socketAt(proto, 0)
		if err != nil || !b.avoidPorts[s.port()] {
			return s, err
		}
		unsafe = append(unsafe, s)
	}
	return socket{}, fmt.Errorf("the system offered %d ports that rules still lead to", most)
}
