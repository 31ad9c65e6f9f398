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

// errNothing is why there is nothing to hand over.
var errNothing = errors.New("nothing has been programmed yet")

// way is how the kernel may lead connections without the relay. Each asks
// less of it than the one before.
type way struct {
	loss string // what clients do without
	port func(*service.Port)
}

var ways = [...]way{
	{"", func(*service.Port) {}},
	{"session affinity, for which the kernel lacks the match recent", func(p *service.Port) { p.Affinity = 0 }},
	{"session affinity and all endpoints but one of each Service, as the kernel cannot choose", func(p *service.Port) {
		p.Affinity, p.Cluster, p.Local = 0, anyOf(p.Cluster), anyOf(p.Local)
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
		return "", errNothing
	}
	rules := iptables.NewWith(b.family, b.bypassing(), b.driver)
	b.have = nil
	for _, w := range ways {
		if err = rules.Replace(ctx, b.straight(w)); err == nil {
			b.handed = true
			return w.loss, nil
		}
		if iptables.Busy(err) || ctx.Err() != nil {
			break
		}
	}
	return "", fmt.Errorf("lead connections past the relay: %w", err)
}

// bypassing returns the choices for rules past the relay. Loopback addresses
// are left out unless the kernel routes them already.
func (b *Backend) bypassing() iptables.Options {
	o := b.options.rules()
	o.Bypass = true
	if routed, err := b.driver.Localnet(); err != nil || !routed {
		o.LocalhostNodePorts = false
	}
	return o
}

// straight returns the latest snapshot as it is without the relay. What that
// does not forward is not forwarded now, either.
func (b *Backend) straight(w way) *service.Snapshot {
	var all []*service.Port
	for p := range b.wanted.Ports(b.family) {
		q := *p
		if q.Name.Protocol == service.SCTP {
			q.Cluster, q.Local, q.Lingering = nil, nil, nil
		}
		w.port(&q)
		all = append(all, &q)
	}
	s := service.New(b.wanted.Generation, b.wanted.Node, all)
	s.Partial = b.wanted.Partial
	return s
}

// anyOf returns one of endpoints, if there are any.
func anyOf(endpoints []service.Endpoint) []service.Endpoint {
	if len(endpoints) == 0 {
		return nil
	}
	i := rand.IntN(len(endpoints))
	return endpoints[i : i+1]
}

// arrival is how long a connection may be under way to its listener: until its
// handshake is over, or its datagram was read.
const arrival = 200 * time.Millisecond

// Connections returns how many of TCP the relay has, in both families.
func (b *Backend) Connections() int { return b.relay.limits.Connections() }

// Drain waits until the TCP connections that are open now have ended, or ctx.
// Others are taken meanwhile. After a HandOver, UDP clients move as well.
func (b *Backend) Drain(ctx context.Context) {
	if b.handed {
		pause(ctx, arrival)
		b.moveClients(ctx)
	}
	b.relay.limits.Drain(ctx)
}

// pause returns early if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
