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

// errNotProgrammed is why there is nothing to hand over.
var errNotProgrammed = errors.New("nothing has been programmed yet")

// handoverStrategy is how the kernel may lead connections without the relay. Each asks
// less of it than the one before.
type handoverStrategy struct {
	loss   string // what clients do without
	adjust func(*service.Port)
}

var handoverStrategies = [...]handoverStrategy{
	{"", func(*service.Port) {}},
	{"session affinity, for which the kernel lacks the match recent", func(p *service.Port) { p.Affinity = 0 }},
	{"session affinity and all endpoints but one of each Service, as the kernel cannot choose", func(p *service.Port) {
		p.Affinity, p.Cluster, p.Local = 0, pickOne(p.Cluster), pickOne(p.Local)
	}},
}

// HandOver leads new connections past the relay, straight to the endpoints of
// the latest round, so that this process may end. Listeners stay, for those who
// are on their way there. It returns what clients do without until a relay runs
// again. With an error the rules lead to the listeners as before.
//
// No round may follow.
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

// bypassOptions returns the choices for rules past the relay. Loopback addresses
// are left out unless the kernel routes them already.
func (b *Backend) bypassOptions() iptables.Options {
	o := b.options.rules()
	o.Bypass = true
	if routed, err := b.driver.RouteLocalnetEnabled(); err != nil || !routed {
		o.LocalhostNodePorts = false
	}
	return o
}

// withoutRelay returns the latest snapshot as it is without the relay. What that
// does not forward is not forwarded now, either.
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

// pickOne returns one of endpoints, if there are any.
func pickOne(endpoints []service.Endpoint) []service.Endpoint {
	if len(endpoints) == 0 {
		return nil
	}
	i := rand.IntN(len(endpoints))
	return endpoints[i : i+1]
}

// arrivalGrace is how long a connection may be under way to its listener: until its
// handshake is over, or its datagram was read.
const arrivalGrace = 200 * time.Millisecond

// Connections returns how many of TCP the relay has, in both families.
func (b *Backend) Connections() int { return b.relay.limits.Connections() }

// Drain waits until the TCP connections that are open now have ended, or ctx.
// Others are taken meanwhile. After a HandOver, UDP clients move as well.
func (b *Backend) Drain(ctx context.Context) {
	if b.handedOver {
		sleep(ctx, arrivalGrace)
		b.moveClients(ctx)
	}
	b.relay.limits.Drain(ctx)
}

// sleep returns early if ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
