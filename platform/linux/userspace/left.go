// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"math"
	"net"
	"net/netip"
	"sync"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
)

// established are the open connections of a relay to endpoints, with what ends them.
type established struct {
	mu  sync.Mutex
	all map[*openConn]func()
}

// openConn is one of them.
type openConn struct {
	route  connection
	server *net.TCPConn
}

// connection is a connection of a client.
type connection struct{ client, frontend, endpoint netip.AddrPort }

// add adds a connection of a client of t. The caller removes it at its end.
func (e *established) add(t *target, client, server *net.TCPConn, abort func()) (remove func()) {
	at := func(a net.Addr) netip.AddrPort {
		p := a.(*net.TCPAddr).AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	x := &openConn{connection{at(client.RemoteAddr()), t.frontend(), at(server.RemoteAddr())}, server}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = map[*openConn]func(){}
	}
	e.all[x] = abort
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.all, x)
	}
}

// each calls yield for each connection, as the kernel gives those that it translates.
func (e *established) each(yield func(conntrack.Flow)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for x := range e.all {
		f := conntrack.Flow{
			Protocol: service.TCP, Src: x.route.client, Dst: x.route.frontend, ReplySrc: x.route.endpoint, ReplyDst: x.route.client,
			Answered: true, State: conntrack.TCPEstablished, Expires: math.MaxUint32,
		}
		if waits(x.server) {
			f.Owed, f.Expires = true, 0
		}
		yield(f)
	}
}

// end ends the connections in wanted, and returns those that are not the relay's.
func (e *established) end(wanted []conntrack.Flow) (others []conntrack.Flow) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ours := make(map[connection]func(), len(e.all))
	for x, abort := range e.all {
		ours[x.route] = abort
	}
	for _, f := range wanted {
		if abort := ours[connection{f.Src, f.Dst, f.ReplySrc}]; abort != nil {
			abort()
		} else {
			others = append(others, f)
		}
	}
	return others
}

// Orphans has the connections of a relay for package orphans, beside those that the kernel
// translates: they were made while no process relayed.
type Orphans struct {
	Relay  *Backend
	Kernel func(context.Context, conntrack.Filter, func(conntrack.Flow)) error
	Table  interface {
		Set([]conntrack.Flow) error
		Forget()
	}
}

// Dump calls each for every connection. Those from clients to the relay are left out.
func (o Orphans) Dump(ctx context.Context, f conntrack.Filter, each func(conntrack.Flow)) error {
	o.Relay.relay.open.each(each)
	return o.Kernel(ctx, f, func(x conntrack.Flow) {
		if x.ReplySrc.Addr() != o.Relay.addr() {
			each(x)
		}
	})
}

// Set ends connections. The relay ends its own at once, on both sides.
func (o Orphans) Set(flows []conntrack.Flow) error { return o.Table.Set(o.Relay.relay.open.end(flows)) }

// Forget implements orphans.Table.
func (o Orphans) Forget() { o.Table.Forget() }
