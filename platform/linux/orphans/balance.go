// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/conntrack"
)

// The bounds of a run.
const (
	// In a second, 1/usual of the connections end, and 1/most if looks are not even.
	usual, most = 25, 20
	// A run ends when no endpoint has more than its share for settled, so that clients are
	// back, and maxRun after its connections are old enough.
	settled, maxRun = 10 * time.Second, 10 * time.Minute
	// All connections end once if only new endpoints are added, as clients come back to any.
	// Some come back to where too many are, and end once more. So again bounds them all.
	again = 2
	// The age of connections is known to 1/precision of that from which they end.
	precision = 8
)

// balance ends old connections to endpoints with more than their share, for Services that
// ask for it, after an endpoint was added. Clients that come back draw among all endpoints.
// It knows the connections of this node. The shares of all nodes sum up.
type balance struct {
	family service.Family
	log    klog.Logger
	before *service.Snapshot // that was followed
	ports  map[service.Address]asking
	runs   map[pool]*run
	// open are the connections of ports as of the last look, seen those of this one.
	open, seen map[flow]conntrack.Flow
	ending     map[flow]time.Time // since when
}

// asking is a frontend of a Service that asks.
type asking struct {
	port   *service.Port
	policy service.Policy
}

// pool is the endpoints of a port for traffic of a policy.
type pool struct {
	port   service.PortName
	policy service.Policy
}

// run is the work after an endpoint was added to a pool.
type run struct {
	begun  time.Time
	total  int // connections at first
	open   []flow
	paid   time.Time   // until when all that may end has ended
	picked []time.Time // when connections were, of the last second
	last   time.Time   // picked, or the first look
	ended  int
	next   time.Time // look
}

// quota returns how many connections may end now.
func (r *run) quota(now time.Time) int {
	for len(r.picked) > 0 && now.Sub(r.picked[0]) >= time.Second {
		r.picked = r.picked[1:]
	}
	if oldest := now.Add(-max(time.Second, r.interval())); r.paid.Before(oldest) {
		r.paid = oldest
	}
	return min(int(now.Sub(r.paid)/r.interval()), max(1, r.total/most)-len(r.picked))
}

// interval is the usual time between the ends of two connections.
func (r *run) interval() time.Duration { return usual * time.Second / time.Duration(r.total) }

func newBalance(o Options) *balance {
	return &balance{
		family: o.Family, log: o.Log, ports: map[service.Address]asking{}, runs: map[pool]*run{},
		seen: map[flow]conntrack.Flow{}, ending: map[flow]time.Time{},
	}
}

// follow begins a run where an endpoint was added, and reports whether a port that asks
// has changed.
func (b *balance) follow(now *service.Snapshot) (due bool) {
	if now == nil || now == b.before {
		return false
	}
	for c := range service.Diff(b.before, now, b.family) {
		b.replace(c.Old, c.New)
		if c.New == nil || c.New.Rebalance == 0 {
			continue
		}
		if due = true; c.Old == nil {
			continue
		}
		for _, policy := range []service.Policy{service.PolicyCluster, service.PolicyLocal} {
			old := c.Old.EndpointsFor(policy)
			if slices.ContainsFunc(c.New.EndpointsFor(policy), func(e service.Endpoint) bool { return !service.Lists(old, e.Addr) }) {
				b.runs[pool{c.New.Name, policy}] = &run{begun: time.Now()}
			}
		}
	}
	b.before = now
	return due
}

// replace records the frontends of ports that ask.
func (b *balance) replace(old, now *service.Port) {
	if old != nil && old.Rebalance > 0 {
		for _, f := range old.Frontends {
			if a := old.Address(f); b.ports[a].port == old {
				delete(b.ports, a)
			}
		}
	}
	if now != nil && now.Rebalance > 0 && now.Name.Protocol == service.TCP {
		for _, f := range now.Frontends {
			b.ports[now.Address(f)] = asking{now, now.Policy(f.Kind)}
		}
	}
}

// find returns the port of a frontend, and the pool of an endpoint of it.
func (b *balance) find(w way) (*service.Port, pool) {
	if len(b.ports) == 0 {
		return nil, pool{}
	}
	at := service.AddressOf(service.TCP, w.frontend)
	a, found := b.ports[at]
	if !found {
		a = b.ports[at.OnNode()]
	}
	switch p := a.port; {
	case p == nil:
	case service.Lists(p.EndpointsFor(a.policy), w.endpoint):
		return p, pool{p.Name, a.policy}
	case service.Lists(p.Cluster, w.endpoint): // a pod has a way around policy Local
		return p, pool{p.Name, service.PolicyCluster}
	}
	return nil, pool{}
}

// see records an established connection. It may come more than once in a look.
func (b *balance) see(f conntrack.Flow) {
	k := flowOf(f)
	_, ending := b.ending[k]
	if p, _ := b.find(k.way); p == nil && !ending {
		return
	}
	if f.Since.IsZero() {
		f.Since = time.Now()
	}
	if known, again := b.open[k]; again && known.Since.Before(f.Since) {
		f.Since = known.Since
	}
	b.seen[k] = f
}

// decide picks connections of this look that are to end, and counts them in fresh. It returns
// those that end, and how many have ended.
func (b *balance) decide(fresh map[track.Ending]int) (flows []conntrack.Flow, gone int) {
	b.open, b.seen = b.seen, map[flow]conntrack.Flow{}
	for k := range b.ending {
		if _, open := b.open[k]; !open {
			delete(b.ending, k)
			gone++
		}
	}
	for _, r := range b.runs {
		r.open = nil
	}
	for k := range b.open {
		if _, at := b.find(k.way); b.runs[at] != nil {
			b.runs[at].open = append(b.runs[at].open, k)
		}
	}
	for at, r := range b.runs {
		if p := b.before.Port(b.family, at.port); p == nil || p.Rebalance == 0 || !b.step(p, at, r, fresh) {
			delete(b.runs, at)
		}
	}
	for k, since := range b.ending {
		if time.Since(since) < patience {
			flows = append(flows, b.open[k])
		}
	}
	return flows, gone
}

// step picks connections of a run, and reports whether it goes on.
func (b *balance) step(p *service.Port, at pool, r *run, fresh map[track.Ending]int) (more bool) {
	now, endpoints := time.Now(), p.EndpointsFor(at.policy)
	if r.total == 0 {
		r.total, r.paid, r.last = len(r.open), now, now
	}
	if r.total == 0 || len(endpoints) == 0 {
		return false
	}
	// Those that ended and are not back yet count.
	share := (max(r.total, len(r.open)) + len(endpoints) - 1) / len(endpoints)
	counts := map[netip.AddrPort]int{}
	for _, k := range r.open {
		if _, ending := b.ending[k]; !ending {
			counts[k.endpoint]++
		}
	}
	quota := min(r.quota(now), again*r.total-r.ended, maxEnding-len(b.ending))
	slices.SortFunc(r.open, func(x, y flow) int { return b.open[x].Since.Compare(b.open[y].Since) })
	more, r.next = now.Sub(r.last) < settled, now.Add(restless)
	for _, k := range r.open {
		if _, ending := b.ending[k]; ending || counts[k.endpoint] <= share {
			continue
		}
		more, r.next = true, now.Add(pace)
		if old := b.open[k].Since.Add(p.Rebalance); now.Before(old) {
			r.next = old
			break
		}
		if quota <= 0 {
			break
		}
		if r.ended == 0 {
			b.log.Info("Rebalancing the connections of a Service", "family", b.family.String(), "port", p.Name.String(), "connections", r.total, "endpoints", len(endpoints))
		}
		b.ending[k], r.last = now, now
		fresh[track.Ending{Connection: track.Connection{Port: p.Name, Endpoint: service.AddressOf(service.TCP, k.endpoint)}, Why: "it has more than its share"}]++
		r.picked, r.paid = append(r.picked, now), r.paid.Add(r.interval())
		counts[k.endpoint]--
		quota--
		r.ended++
	}
	more = more && r.ended < again*r.total && now.Sub(r.begun) < p.Rebalance+maxRun
	if !more && r.ended > 0 {
		b.log.Info("Rebalanced the connections of a Service", "family", b.family.String(), "port", p.Name.String(), "ended", r.ended)
	}
	return more
}

// pause returns how long after a look the next one should be, 0 for no need.
func (b *balance) pause() time.Duration {
	if len(b.ports) == 0 && len(b.ending) == 0 {
		return 0
	}
	wait := maxPause
	for _, a := range b.ports { // to know the age of connections
		wait = min(wait, a.port.Rebalance/precision)
	}
	if len(b.ending) > 0 {
		wait = min(wait, restless)
	}
	for _, r := range b.runs {
		wait = min(wait, time.Until(r.next))
	}
	return max(pace, wait)
}

// forget gives up all runs.
func (b *balance) forget() {
	clear(b.runs)
	clear(b.ending)
}
