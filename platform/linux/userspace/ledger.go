// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// ledger counts what the clients of a relay exchange with endpoints. A nil ledger counts
// nothing. It implements traffic.Reader.
type ledger struct {
	family service.Family

	mu       sync.Mutex
	accounts map[traffic.Counter]*account
}

// account counts what one endpoint exchanges with the clients of a Service port. A nil
// account counts nothing.
type account struct {
	connections, bytesIn, bytesOut atomic.Uint64
	read                           traffic.Counts // at the last call of Read
}

// CountTraffic makes the relay count, and returns the reader of the counts. Call it
// before the first sync.
func (b *Backend) CountTraffic() traffic.Reader {
	b.relay.ledger = &ledger{family: b.family, accounts: map[traffic.Counter]*account{}}
	return b.relay.ledger
}

// connect counts a connection or a UDP client of t, and returns the account for the rest.
func (l *ledger) connect(t *target, endpoint netip.AddrPort) *account {
	if l == nil {
		return nil
	}
	k := traffic.Counter{Name: t.name, Endpoint: netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[k]
	if a == nil {
		a = &account{}
		l.accounts[k] = a
	}
	a.connections.Add(1)
	return a
}

// in and out return where bytes to and from the endpoint are counted, nil for nowhere.
func (a *account) in() *atomic.Uint64 {
	if a == nil {
		return nil
	}
	return &a.bytesIn
}

func (a *account) out() *atomic.Uint64 {
	if a == nil {
		return nil
	}
	return &a.bytesOut
}

// add adds n to a counter that in or out returned.
func add(to *atomic.Uint64, n int) {
	if to != nil {
		to.Add(uint64(n))
	}
}

// Kinds implements traffic.Reader. A relay of TCP sees bytes, not packets.
func (l *ledger) Kinds() traffic.Kinds { return traffic.Kinds{Bytes: true} }

// Read implements traffic.Reader. It forgets endpoints that want does not have, once
// they are quiet.
func (l *ledger) Read(_ context.Context, want *service.Snapshot) ([]traffic.Sample, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]traffic.Sample, 0, len(l.accounts))
	for k, a := range l.accounts {
		n := traffic.Counts{Connections: a.connections.Load(), BytesIn: a.bytesIn.Load(), BytesOut: a.bytesOut.Load()}
		if n == a.read && !serves(want.Port(l.family, k.Name), k.Endpoint) {
			delete(l.accounts, k)
			continue
		}
		a.read = n
		all = append(all, traffic.Sample{Counter: k, Counts: n})
	}
	return all, nil
}

// serves reports whether p, which may be nil, has an endpoint.
func serves(p *service.Port, endpoint netip.AddrPort) bool {
	is := func(e service.Endpoint) bool { return e.Addr == endpoint }
	return p != nil && (slices.ContainsFunc(p.Cluster, is) || slices.ContainsFunc(p.Local, is))
}
