// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// IPVS forwards a connection while its virtual server and the route to the node exist.
// Without them it drops the packets or forgets the connection (expire_nodest_conn in
// docs.kernel.org/networking/ipvs-sysctl.html). So leftovers of an earlier process drain:
// they accept no new connections and are removed when they have none.

// ownedServers are the virtual servers of one owner.
type ownedServers struct {
	servers []key
	// addrOps are the ops that remove the route or interface address of an address.
	addrOps map[netip.Addr]op
}

// ownedServers returns what in s is ours and may be removed.
func (o Options) ownedServers(s *state) ownedServers {
	e := ownedServers{servers: o.ownedKeys(s), addrOps: map[netip.Addr]op{}}
	for _, r := range s.routes {
		e.addrOps[r.addr] = op{verb: delRoute, route: r}
	}
	return e
}

// drainResult is what remains because of open connections.
type drainResult struct {
	servers int
	conns   uint64
	// cut are the virtual servers that were deleted in spite of their connections.
	cut []key
}

func (r drainResult) String() string {
	if r.servers == 0 {
		return ""
	}
	return fmt.Sprintf("virtual servers: %d, open connections: %d", r.servers, r.conns)
}

// drainOwned sets the weight of all destinations of the owned servers to 0. It deletes
// servers without connections, or all of them once elapsed reaches DrainTimeout, and the
// addresses that nothing needs any more.
func drainOwned(ctx context.Context, d Driver, of func(*state) ownedServers, elapsed time.Duration) (drainResult, error) {
	s, err := d.Read(ctx)
	if err != nil {
		return drainResult{}, err
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
		if err := joinFailures(stop, d.Commit(ctx, stop)); err != nil {
			return drainResult{}, err
		}
		if s, err = d.Read(ctx); err != nil { // with all connections that began before
			return drainResult{}, err
		}
	}
	r, gone := of(s).split(s, elapsed >= DrainTimeout)
	return r, joinFailures(gone, d.Commit(ctx, gone))
}

// split separates what remains of e from what is removed. over removes everything.
func (e ownedServers) split(s *state, over bool) (drainResult, []op) {
	var r drainResult
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
	for _, a := range sortedAddrs(e.addrOps) {
		if !needed[a] {
			ops = append(ops, e.addrOps[a])
		}
	}
	return r, append(ops, servers...)
}

// conns returns the number of connections of l.
func (l *observedServer) conns() uint64 {
	var n uint64
	for _, x := range l.dests {
		n += uint64(x.conns)
	}
	return n
}
