// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// Collector adds up the counters of a proxy's Readers. A counter that is removed loses
// what it counted since the last reading, so Run reads them from time to time.
type Collector struct {
	// Latest returns the latest snapshot, nil before the first one.
	Latest  func() *service.Snapshot
	Readers map[service.Family]Reader

	mu    sync.Mutex
	since time.Time // when counting began
	taken time.Time // when the latest reading was taken
	next  time.Time // the earliest time of the next one
	err   error     // of the latest reading
	names *names
	seen  map[service.Family]map[Counter]lastSample // nil before the first reading
	total map[pair]Counts
	named ranking
}

// pair is an endpoint of a Service port. All removed endpoints share one without an
// address.
type pair struct {
	name     service.PortName
	endpoint netip.AddrPort
}

// lastSample is the last value of a counter.
type lastSample struct {
	Counts
	name service.PortName // of the Service port that it belongs to
}

// period is the time between two readings without a request.
const period = 30 * time.Second

// Readings are at least minPause apart, and take at most one part in costFactor of the
// time. To read one counter of iptables, all rules must be read.
const (
	minPause   = time.Second
	costFactor = 50
)

// Run reads the counters until ctx ends. Their values at the start were counted for an
// earlier process.
func (c *Collector) Run(ctx context.Context) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		c.mu.Lock()
		c.read(ctx)
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// read takes a reading, unless the latest one is too young.
func (c *Collector) read(ctx context.Context) {
	start := time.Now()
	if start.Before(c.next) {
		return
	}
	want := c.Latest()
	if want == nil {
		want = service.New(0, &service.Node{}, nil)
	}
	if c.seen == nil {
		c.since, c.seen, c.total = start, map[service.Family]map[Counter]lastSample{}, map[pair]Counts{}
	}
	if c.names == nil || c.names.snapshot != want {
		c.names = namesOf(want)
	}
	var errs []error
	grown := map[pair]Counts{}
	for _, f := range service.Families {
		r := c.Readers[f]
		if r == nil {
			continue
		}
		samples, err := r.Read(ctx, want)
		if err != nil {
			errs = append(errs, fmt.Errorf("read what %s carries: %w", f, err))
			continue
		}
		c.add(f, samples, grown)
	}
	c.merge(want)
	c.named.add(c.services(), grown)
	c.taken, c.err = time.Now(), errors.Join(errs...)
	c.next = c.taken.Add(max(minPause, costFactor*c.taken.Sub(start)))
}

// add adds the growth of the counters of a family to the totals and to grown. The first
// samples of a family set the start.
func (c *Collector) add(f service.Family, samples []Sample, grown map[pair]Counts) {
	before, counting := c.seen[f]
	now := make(map[Counter]lastSample, len(samples))
	for _, s := range samples {
		last := before[s.Counter]
		name, known := s.Name, s.Name.Name != ""
		if !known {
			name, known = c.names.find(s.Counter)
		}
		if !known { // the Service may have been deleted; a translation by others has none
			name, known = last.name, last.name.Name != ""
		}
		now[s.Counter] = lastSample{s.Counts, name}
		if !known {
			continue
		}
		if more := s.Counts.Since(last.Counts); counting && more != (Counts{}) {
			p := pair{name, s.Endpoint}
			grown[p] = grown[p].Plus(more)
			c.total[p] = c.total[p].Plus(more)
		}
	}
	c.seen[f] = now
}

// merge sums up removed endpoints, and forgets deleted Services. So the number of totals
// is limited by the endpoints and Service ports that exist.
func (c *Collector) merge(want *service.Snapshot) {
	for p, n := range c.total {
		found, present := false, false
		for _, f := range service.Families {
			if port := want.Port(f, p.name); port != nil {
				found = true
				present = present || has(port, p.endpoint)
			}
		}
		switch {
		case !found:
			delete(c.total, p)
		case !present && p.endpoint.IsValid():
			delete(c.total, p)
			gone := pair{name: p.name}
			c.total[gone] = c.total[gone].Plus(n)
		}
	}
}

// has reports whether connections to p may be at an endpoint.
func has(p *service.Port, endpoint netip.AddrPort) bool {
	for _, list := range [][]service.Endpoint{p.Cluster, p.Local, p.Draining} {
		_, found := slices.BinarySearchFunc(list, endpoint, func(e service.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
		if found {
			return true
		}
	}
	return false
}

// services returns the totals of each Service.
func (c *Collector) services() map[serviceName]Counts {
	all := map[serviceName]Counts{}
	for p, n := range c.total {
		all[p.service()] = all[p.service()].Plus(n)
	}
	return all
}

func (p pair) service() serviceName { return serviceName{p.name.Namespace, p.name.Name} }
