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
	// moveInterval is the interval in which waiting UDP clients are checked.
	moveInterval = 100 * time.Millisecond
	// quietBeforeMove is how long a client that got its reply must be silent. Then none
	// of its datagrams is in transit.
	quietBeforeMove = 20 * time.Millisecond
	// moveBatch is the number of clients that move together.
	moveBatch = 32
)

// moveClients deletes the conntrack entries of UDP clients of the listeners, each as
// soon as none of its datagrams is in transit, and the rest when ctx is done. The next
// datagram of a client then follows the present rules.
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
	// After the end of the process, the kernel rejects clients that still use a
	// listener.
	_, _ = b.deleteFlows(ctx, func(*udpListener, netip.AddrPort) bool { return false })
	sleep(ctx, quietBeforeMove) // time to forward what is in transit
}

// deleteFlows deletes the conntrack entries to listeners, except those of clients for
// which keep returns true. It returns the number of exceptions.
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
		if f.Protocol == service.UDP && f.ReplySrc.Addr() == b.addr() && at[f.ReplySrc.Port()] != nil {
			all = append(all, f)
		}
	})
	// A client may become active at any moment, so keep is called as late as possible.
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

// busy reports whether a datagram of client, or a reply to one, may be in transit.
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

// hasUnforwarded reports whether there are datagrams of any client that have not been
// forwarded. On a busy node that may take longer than arrivalGrace.
func (l *udpListener) hasUnforwarded() bool {
	raw, err := l.socket.SyscallConn()
	return err == nil && hasPacket(raw) || l.forwarding.Load()
}
