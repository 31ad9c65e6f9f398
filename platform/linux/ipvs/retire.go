// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// IPVS forwards a connection for as long as its virtual server and the route to
// the node exist, and drops its packets, or forgets it, when they are gone. So
// what an earlier process left is retired: it takes no new connections and goes
// when it has none.

// estate is what somebody has in IPVS.
type estate struct {
	servers []key
	// leads removes what leads an address to the node, by address.
	leads map[netip.Addr]op
}

// estate returns what in s is ours and may be removed.
func (o Options) estate(s *state) estate {
	e := estate{servers: o.ours(s), leads: map[netip.Addr]op{}}
	for _, r := range s.routes {
		e.leads[r.addr] = op{verb: delRoute, route: r}
	}
	return e
}

// retired is what stays of an estate for its connections.
type retired struct {
	servers int
	conns   uint64
	// cut are the virtual servers that went in spite of their connections.
	cut []key
}

func (r retired) String() string {
	if r.servers == 0 {
		return ""
	}
	return fmt.Sprintf("virtual servers: %d, open connections: %d", r.servers, r.conns)
}

// retire has the virtual servers of an estate take no new connections, and
// removes those that have none, or all of them once that has gone on for
// DrainBound, and the addresses that nothing needs any more.
func retire(ctx context.Context, d Driver, of func(*state) estate, lasted time.Duration) (retired, error) {
	s, err := d.Read(ctx)
	if err != nil {
		return retired{}, err
	}
	var stop []op
	for _, k := range of(s).servers {
		for _, x := range s.servers[k].dests {
			if x.weight > 0 {
				stop = append(stop, op{verb: setDest, key: k, dest: dest{addr: x.addr}})
			}
		}
	}
	if len(stop) > 0 {
		if err := failures(stop, d.Commit(ctx, stop)); err != nil {
			return retired{}, err
		}
		if s, err = d.Read(ctx); err != nil { // with the connections that had begun by then
			return retired{}, err
		}
	}
	r, gone := of(s).sort(s, lasted >= DrainBound)
	return r, failures(gone, d.Commit(ctx, gone))
}

// sort tells what stays of e from what goes. All goes if it is over.
func (e estate) sort(s *state, over bool) (retired, []op) {
	var r retired
	var servers, ops []op
	needed := map[netip.Addr]bool{}
	for _, k := range e.servers {
		n := s.servers[k].conns()
		if n > 0 && !over {
			r.servers++
			r.conns += n
			needed[k.addr] = true
			continue
		}
		if n > 0 {
			r.cut = append(r.cut, k)
		}
		servers = append(servers, op{verb: delServer, key: k})
	}
	for _, a := range sortedAddrs(e.leads) {
		if !needed[a] {
			ops = append(ops, e.leads[a])
		}
	}
	return r, append(ops, servers...)
}

// conns counts the connections that l has.
func (l *listed) conns() uint64 {
	var n uint64
	for _, x := range l.dests {
		n += uint64(x.conns)
	}
	return n
}
