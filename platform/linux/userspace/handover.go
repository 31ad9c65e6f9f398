// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// errNotProgrammed means that there is nothing to hand over.
var errNotProgrammed = errors.New("nothing has been programmed yet")

// handoverStrategy is a way to let the kernel forward connections without the relay. Each
// strategy needs fewer kernel features than the one before.
type handoverStrategy struct {
	loss   string // what clients lose
	adjust func(*service.Port)
}

var handoverStrategies = [...]handoverStrategy{
	{"", func(*service.Port) {}},
	{"session affinity, for which the kernel lacks the match recent", func(p *service.Port) { p.Affinity = 0 }},
	{"session affinity and all endpoints but one of each Service, as the kernel cannot choose", func(p *service.Port) {
		p.Affinity, p.Cluster, p.Local = 0, pickOne(p.Cluster), pickOne(p.Local)
	}},
}

// HandOver changes the rules so that new connections bypass the relay and go directly to
// the endpoints of the latest sync. After that this process may end. Listeners stay open
// for connections that are still arriving. HandOver returns what clients lose until a
// relay runs again. After an error the rules redirect to the listeners as before.
//
// No sync may follow.
func (b *Backend) HandOver(ctx context.Context) (loss string, err error) {
	if b.wanted == nil {
		return "", errNotProgrammed
	}
	rules := iptables.NewWith(b.family, b.bypassOptions(), b.driver)
	b.installed = nil
	for _, w := range handoverStrategies {
		if err = rules.Replace(ctx, b.withoutRelay(w)); err == nil {
			b.handedOver = true
			return w.loss, nil
		}
		if iptables.IsBusy(err) || ctx.Err() != nil {
			break
		}
	}
	return "", fmt.Errorf("lead connections past the relay: %w", err)
}

// bypassOptions returns the options for rules that bypass the relay. NodePorts on
// loopback addresses are excluded unless the kernel already routes these addresses.
func (b *Backend) bypassOptions() iptables.Options {
	o := b.options.rules()
	o.Bypass = true
	if routed, err := b.driver.RouteLocalnetEnabled(); err != nil || !routed {
		o.LocalhostNodePorts = false
	}
	return o
}

// withoutRelay returns the latest snapshot for rules without the relay. It leaves out
// what this mode does not forward.
func (b *Backend) withoutRelay(w handoverStrategy) *service.Snapshot {
	var all []*service.Port
	for p := range b.wanted.Ports(b.family) {
		q := *p
		if q.Name.Protocol == service.SCTP {
			q.Cluster, q.Local, q.Draining = nil, nil, nil
		}
		w.adjust(&q)
		all = append(all, &q)
	}
	s := service.New(b.wanted.Generation, b.wanted.Node, all)
	s.Incomplete = b.wanted.Incomplete
	return s
}

// pickOne returns one of endpoints, none if there are none.
func pickOne(endpoints []service.Endpoint) []service.Endpoint {
	if len(endpoints) == 0 {
		return nil
	}
	i := rand.IntN(len(endpoints))
	return endpoints[i : i+1]
}

// arrivalGrace is how long a connection may need to reach its listener: until the end of
// its handshake, or until its datagram is read.
const arrivalGrace = 200 * time.Millisecond

// Connections returns the number of TCP connections of the relay, in both families.
func (b *Backend) Connections() int { return b.relay.limits.Connections() }

// Drain waits until the present TCP connections have ended, or ctx is done. The relay
// still accepts others meanwhile. After HandOver it also moves UDP clients.
func (b *Backend) Drain(ctx context.Context) {
	if b.handedOver {
		sleep(ctx, arrivalGrace)
		b.moveClients(ctx)
	}
	b.relay.limits.Drain(ctx)
}

// sleep returns early if ctx is done.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
