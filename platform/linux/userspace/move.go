// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
)

const (
	// moveInterval is how often UDP clients are looked at that are to move.
	moveInterval = 100 * time.Millisecond
	// quietBeforeMove is for how long a client with an answer asks no more: then
	// nothing of it is under way.
	quietBeforeMove = 20 * time.Millisecond
	// moveBatch is how many are moved together.
	moveBatch = 32
)

// moveClients has the kernel forget which listeners UDP clients are led to,
// each as soon as nothing of it is under way, and the rest when ctx ends. With
// their next datagram they go where the rules lead.
func (b *Backend) moveClients(ctx context.Context) {
	if b.flows == nil {
		return
	}
	for ctx.Err() == nil {
		if left, err := b.deleteFlows(ctx, (*udpListener).busy); left == 0 && err == nil {
			return
		}
		sleep(ctx, moveInterval)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), arrivalGrace)
	defer cancel()
	// Those that are left are refused by the kernel, once the process is gone.
	_, _ = b.deleteFlows(ctx, func(*udpListener, netip.AddrPort) bool { return false })
	sleep(ctx, quietBeforeMove) // for what was under way to be passed on
}

// deleteFlows forgets the flows to listeners, but for those of clients that are to
// stay, and returns how many these are.
func (b *Backend) deleteFlows(ctx context.Context, keep func(*udpListener, netip.AddrPort) bool) (left int, err error) {
	at := map[uint16]*udpListener{}
	for _, l := range b.listeners {
		if u, ok := l.(*udpListener); ok {
			at[u.port()] = u
		}
	}
	if len(at) == 0 {
		return 0, nil
	}
	var all []conntrack.Flow
	err = b.flows.Dump(ctx, conntrack.Filter{Family: b.family, Protocol: service.UDP}, func(f conntrack.Flow) {
		if f.Protocol == service.UDP && f.ReplySrc.Addr() == Addrs[b.family] && at[f.ReplySrc.Port()] != nil {
			all = append(all, f)
		}
	})
	// A client may come back at any moment, so who has to stay is asked last.
	for some := range slices.Chunk(all, moveBatch) {
		n := len(some)
		some = slices.DeleteFunc(some, func(f conntrack.Flow) bool { return keep(at[f.ReplySrc.Port()], f.ReplyDst) })
		left += n - len(some)
		if err == nil && len(some) > 0 {
			_, err = b.flows.Delete(ctx, some)
		}
	}
	return left, err
}

// busy reports that a datagram of client, or the answer to one, may be under
// way.
func (l *udpListener) busy(client netip.AddrPort) bool {
	if l.hasUnforwarded() {
		return true
	}
	l.mu.Lock()
	s := l.sessions[client]
	l.mu.Unlock()
	if s == nil {
		return false
	}
	return s.awaitsReply() || time.Since(time.Unix(0, s.lastActive.Load())) < quietBeforeMove
}

// hasUnforwarded reports that there are datagrams which were not passed on yet, from
// whomever: on a busy node that may take longer than an arrival.
func (l *udpListener) hasUnforwarded() bool {
	raw, err := l.socket.SyscallConn()
	return err == nil && hasPacket(raw) || l.forwarding.Load()
}
