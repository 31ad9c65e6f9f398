// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
)

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

// Named are the counts of the Services with series of their own, and those of all others
// together. See MostNamed.
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
