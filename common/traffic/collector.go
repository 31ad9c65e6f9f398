// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traffic adds up the traffic of Services. The counters of a dataplane go in. They
// may disappear, and start again at 0 when rules change. Totals for each Service and
// endpoint come out, which only grow. The backend of a mode decides how to count.
package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// Counts are what connections carried. "In" is from clients to endpoints.
type Counts struct {
	// Connections counts those that began. For UDP it counts flows.
	Connections uint64 `json:"connections"`
	PacketsIn   uint64 `json:"packetsIn,omitempty"`
	PacketsOut  uint64 `json:"packetsOut,omitempty"`
	BytesIn     uint64 `json:"bytesIn,omitempty"`
	BytesOut    uint64 `json:"bytesOut,omitempty"`
}

// Plus returns the sums of c and d.
func (c Counts) Plus(d Counts) Counts {
	return Counts{
		c.Connections + d.Connections, c.PacketsIn + d.PacketsIn, c.PacketsOut + d.PacketsOut,
		c.BytesIn + d.BytesIn, c.BytesOut + d.BytesOut,
	}
}

// Since returns what was counted after last. A counter with a lower value began again at 0.
func (c Counts) Since(last Counts) Counts {
	if c.Connections < last.Connections || c.PacketsIn < last.PacketsIn || c.PacketsOut < last.PacketsOut ||
		c.BytesIn < last.BytesIn || c.BytesOut < last.BytesOut {
		return c
	}
	return Counts{
		c.Connections - last.Connections, c.PacketsIn - last.PacketsIn, c.PacketsOut - last.PacketsOut,
		c.BytesIn - last.BytesIn, c.BytesOut - last.BytesOut,
	}
}

// Kinds is what a mode counts besides connections.
type Kinds struct {
	Packets bool `json:"packets"`
	Bytes   bool `json:"bytes"`
}

// Counter identifies a counter of a dataplane.
type Counter struct {
	// Name is the Service port that it belongs to. If the dataplane does not know that,
	// Name is empty, and Protocol and Frontend say which address clients dialled.
	Name     service.PortName
	Protocol service.Protocol
	Frontend netip.AddrPort
	Endpoint netip.AddrPort
}

// Sample is the value of a counter.
type Sample struct {
	Counter
	Counts
}

// Reader reads a dataplane's counters for one family, one call at a time, beside rounds.
type Reader interface {
	// Kinds returns what it counts besides connections.
	Kinds() Kinds
	// Read returns the present value of each counter once. want is the latest snapshot. A
	// counter that is not returned has been removed. If it appears again, it starts at 0.
	Read(ctx context.Context, want *service.Snapshot) ([]Sample, error)
}

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

// pair is an endpoint of a Service port. Removed ones share one without an address.
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

// Readings are minPause apart, and take one part in costFactor of the time at most.
const (
	minPause   = time.Second
	costFactor = 50
)

// Run reads the counters until ctx ends. At the start they are an earlier process's.
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

// add adds the growth of a family's counters to totals and grown, beginning with its first samples.
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

// merge sums up removed endpoints, and forgets deleted Services, to bound the totals.
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

// Reading is the traffic of Services up to a moment.
type Reading struct {
	// Time is when the counters were read, Since when counting began.
	Time  time.Time `json:"time"`
	Since time.Time `json:"since"`
	// Counted is what is counted besides connections.
	Counted  Kinds     `json:"counted"`
	Services []Service `json:"services"` // those with traffic, by name
	// Error is why the latest counters could not be read, or not of each family.
	Error string `json:"error,omitempty"`
}

// Service is what a Service has carried.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Counts
	// Endpoints are those with traffic. It is only in answers about one Service.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Endpoint is what an endpoint has carried for a Service port.
type Endpoint struct {
	Port     string `json:"port,omitempty"` // the port's name
	Protocol string `json:"protocol"`
	// Address is empty for the sum of all removed endpoints.
	Address string `json:"address,omitempty"`
	Counts
}

// Selection selects Services. An empty field selects all.
type Selection struct {
	Namespace, Name string
	Endpoints       bool // list endpoints, too
}

// Read returns the present state. If the latest counters are young, it returns these.
func (c *Collector) Read(ctx context.Context, of Selection) *Reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read(ctx)
	r := &Reading{Time: c.taken.UTC(), Since: c.since.UTC(), Services: []Service{}}
	if c.err != nil {
		r.Error = c.err.Error()
	}
	for _, x := range c.Readers {
		k := x.Kinds()
		r.Counted.Packets, r.Counted.Bytes = r.Counted.Packets || k.Packets, r.Counted.Bytes || k.Bytes
	}
	found := map[serviceName]*Service{}
	for p, n := range c.total {
		s := p.service()
		if of.Namespace != "" && of.Namespace != s.Namespace || of.Name != "" && of.Name != s.Name {
			continue
		}
		x := found[s]
		if x == nil {
			x = &Service{Namespace: s.Namespace, Name: s.Name}
			found[s] = x
		}
		x.Counts = x.Counts.Plus(n)
		if of.Endpoints {
			x.Endpoints = append(x.Endpoints, Endpoint{p.name.Port, p.name.Protocol.String(), addressText(p.endpoint), n})
		}
	}
	for _, s := range found {
		slices.SortFunc(s.Endpoints, func(a, b Endpoint) int {
			return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Address, b.Address))
		})
		r.Services = append(r.Services, *s)
	}
	slices.SortFunc(r.Services, func(a, b Service) int {
		return serviceName{a.Namespace, a.Name}.compare(serviceName{b.Namespace, b.Name})
	})
	return r
}

// Knows reports whether a Service has ports that the proxy serves.
func (c *Collector) Knows(namespace, name string) bool {
	s := c.Latest()
	if s == nil {
		return false
	}
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			if p.Name.Name == name && (namespace == "" || p.Name.Namespace == namespace) {
				return true
			}
		}
	}
	return false
}

func addressText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// Named are the counts of Services with series of their own, and of all others together.
type Named struct {
	Counted  Kinds
	Services []Service
	Rest     Counts
}

// Named returns what metrics show. Each count only grows.
func (c *Collector) Named(ctx context.Context) *Named {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read(ctx)
	all := &Named{Rest: c.named.rest}
	for _, x := range c.Readers {
		k := x.Kinds()
		all.Counted.Packets, all.Counted.Bytes = all.Counted.Packets || k.Packets, all.Counted.Bytes || k.Bytes
	}
	for s := range c.named.named {
		all.Services = append(all.Services, Service{Namespace: s.Namespace, Name: s.Name, Counts: c.named.own[s]})
	}
	return all
}

// serviceName is the name of a Service.
type serviceName struct{ Namespace, Name string }

func (s serviceName) compare(t serviceName) int {
	return cmp.Or(cmp.Compare(s.Namespace, t.Namespace), cmp.Compare(s.Name, t.Name))
}

// MostNamed bounds the Services that have time series of their own. A cluster may have
// any number of Services, and each series costs memory in whatever collects them.
const MostNamed = 50

// replaceFactor prevents frequent changes of the selection: another Service replaces one
// with series of its own only if it has that many times its connections.
const replaceFactor = 2

// ranking selects the Services with series of their own. Counts of a Service since its
// selection have its name. All other counts are in rest. So each series only grows.
type ranking struct {
	named map[serviceName]bool
	own   map[serviceName]Counts
	rest  Counts
}

// add adds what has grown. totals are those of all Services.
func (r *ranking) add(totals map[serviceName]Counts, grown map[pair]Counts) {
	if r.named == nil {
		r.named, r.own = map[serviceName]bool{}, map[serviceName]Counts{}
	}
	r.choose(totals)
	for p, n := range grown {
		if s := p.service(); r.named[s] {
			r.own[s] = r.own[s].Plus(n)
		} else {
			r.rest = r.rest.Plus(n)
		}
	}
}

// choose selects the Services with the most connections.
func (r *ranking) choose(totals map[serviceName]Counts) {
	for s := range r.own {
		if _, exists := totals[s]; !exists {
			delete(r.named, s)
			delete(r.own, s)
		}
	}
	var in, out []serviceName
	for s := range totals {
		if r.named[s] {
			in = append(in, s)
		} else {
			out = append(out, s)
		}
	}
	order := func(a, b serviceName) int {
		return cmp.Or(cmp.Compare(totals[b].Connections, totals[a].Connections), a.compare(b))
	}
	slices.SortFunc(in, order)
	slices.SortFunc(out, order)
	for _, s := range out {
		if len(in) >= MostNamed {
			last := in[len(in)-1]
			if totals[s].Connections <= replaceFactor*totals[last].Connections {
				return
			}
			delete(r.named, last)
			in = in[:len(in)-1]
		}
		r.named[s] = true
		at, _ := slices.BinarySearchFunc(in, s, order)
		in = slices.Insert(in, at, s)
	}
}

// names finds the Service port of an address.
type names struct {
	snapshot *service.Snapshot
	at       map[service.Address]service.PortName
}

// namesOf returns the names in s.
func namesOf(s *service.Snapshot) *names {
	n := &names{s, map[service.Address]service.PortName{}}
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			for _, x := range p.Frontends {
				n.at[p.Address(x)] = p.Name
			}
		}
	}
	return n
}

// find returns the Service port of an address that clients of c dialled, any for a NodePort.
func (n *names) find(c Counter) (service.PortName, bool) {
	at := service.AddressOf(c.Protocol, c.Frontend)
	name, found := n.at[at]
	if !found {
		name, found = n.at[at.OnNode()]
	}
	return name, found
}
