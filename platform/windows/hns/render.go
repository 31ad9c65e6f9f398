// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// AssumedListing returns what a node's HNS might hold: a network of kind k, endpoints of local pods
// and, on an overlay, routes to all others through unspecified nodes.
func AssumedListing(k Kind, want *service.Snapshot, o Options) Listing {
	n := Network{ID: assumedName, Name: assumedName, Kind: k, Provider: netip.IPv4Unspecified(), Subnets: []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}}
	l := Listing{Version: Version{13, 3}}
	l.Endpoints = append(l.Endpoints, Endpoint{ID: "root", Name: o.RootEndpoint, Network: n.ID, Addrs: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}})
	if o.SourceVIP.IsValid() {
		l.Endpoints = append(l.Endpoints, Endpoint{ID: "source-vip", Name: sourceVIPName, Network: n.ID, Addrs: []netip.Addr{o.SourceVIP}})
	}
	for _, e := range endpointsIn(want) {
		a := e.Addr.Addr()
		switch {
		case slices.Contains(want.Node.Addrs, a):
		case e.Local:
			l.Endpoints = append(l.Endpoints, Endpoint{ID: "pod-" + a.String(), Name: "pod", Network: n.ID, Addrs: []netip.Addr{a}})
		case a.Is4():
			n.Routes = append(n.Routes, Route{netip.PrefixFrom(a, 32), netip.IPv4Unspecified()})
		}
	}
	l.Networks = []Network{n}
	return l
}

// endpointsIn returns the endpoints of a snapshot, one for each address.
func endpointsIn(want *service.Snapshot) []service.Endpoint {
	all := map[netip.Addr]service.Endpoint{}
	for _, f := range service.Families {
		for p := range want.Ports(f) {
			for _, e := range slices.Concat(p.Cluster, p.Local) {
				all[e.Addr.Addr()] = e
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
}

// Render returns what HNS that holds l would hold for want. If l was not assumed, text and document
// say what would change. Equal input gives equal bytes.
func Render(want *service.Snapshot, l Listing, o Options) (reconcile.Objects, any, error) {
	d := rendering{Changes: []string{}, Endpoints: []renderedEndpoint{}, LoadBalancers: []renderedBalancer{}, Unsupported: []string{}, Notes: []string{}}
	for i, f := range service.Families {
		p, err := planOffline(want, f, l, o)
		if err != nil {
			return nil, nil, fmt.Errorf("render: %w", err)
		}
		if i == 0 {
			d.Network, d.Kind, d.HNS = p.next.site.Network.Name, p.next.site.Network.Kind, l.Version.String()
		}
		d.add(f, p)
	}
	return d.complete(), d, nil
}

// planOffline returns the plan for want of a node whose HNS holds l.
func planOffline(want *service.Snapshot, f service.Family, l Listing, o Options) (*plan, error) {
	b := New(NewHost(dryRun(l), discardStore{}, want.Node.Name, nil), f, o, time.Hour)
	b.hostMAC = func(netip.Addr) (string, error) { return hostMACFrom(l), nil }
	return b.planAll(context.Background(), want)
}

// rendering is the state of a node in printable form.
type rendering struct {
	Network       string             `json:"network"`
	Kind          Kind               `json:"type"`
	HNS           string             `json:"hns"`
	Endpoints     []renderedEndpoint `json:"endpoints"`
	LoadBalancers []renderedBalancer `json:"loadBalancers"`
	// Changes are the steps there, Unsupported what HNS cannot do, Notes what works differently.
	Changes     []string `json:"changes"`
	Unsupported []string `json:"unsupported"`
	Notes       []string `json:"notes"`
}

type renderedEndpoint struct {
	Address  string `json:"address"`
	Remote   bool   `json:"remote"`
	MAC      string `json:"mac,omitempty"`
	Provider string `json:"providerAddress,omitempty"`
	Name     string `json:"name,omitempty"`
	text     string
	addr     netip.Addr
}

type renderedBalancer struct {
	Service    string   `json:"service"`
	Key        string   `json:"key"`
	TargetPort uint16   `json:"targetPort"`
	Properties string   `json:"properties"`
	Endpoints  []string `json:"endpoints"`
	port       service.PortName
}

// add adds the state of one family after p.
func (r *rendering) add(f service.Family, p *plan) {
	r.addObjects(f, p, p.dry)
	for _, c := range p.Changes() {
		r.Changes = append(r.Changes, c.String())
	}
	out := p.Outcome()
	unsupported, notes := out.Limits(p.next.snapshot, f)
	r.Unsupported, r.Notes = append(r.Unsupported, unsupported...), append(r.Notes, notes...)
}

// addObjects adds the objects that the Service ports of p have in the model of at.
func (r *rendering) addObjects(f service.Family, p *plan, at *pass) {
	used := map[string]bool{}
	for _, u := range p.work.units {
		for _, w := range u.desired {
			lb := at.model.balancer(w.Address)
			if lb == nil {
				continue
			}
			for _, id := range lb.Endpoints {
				used[id] = true
			}
			r.LoadBalancers = append(r.LoadBalancers, at.rendered(lb, w.PortName))
		}
		for _, t := range u.vips {
			if e := at.model.endpointAt(t.Addr, Remote); e != nil {
				used[e.ID] = true
			}
		}
	}
	for id := range used {
		if e := at.model.endpoint(id); e != nil && len(e.Addrs) > 0 {
			r.Endpoints = append(r.Endpoints, newRenderedEndpoint(e, f))
		}
	}
	r.sortEndpoints()
}

func (r *rendering) sortEndpoints() {
	slices.SortFunc(r.Endpoints, func(a, b renderedEndpoint) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.text, b.text)) })
	r.Endpoints = slices.CompactFunc(r.Endpoints, func(a, b renderedEndpoint) bool { return a == b })
}

// rendered returns lb, which belongs to the Service port of this name, or to no Service.
func (p *pass) rendered(lb *LoadBalancer, n service.PortName) renderedBalancer {
	of := "of no Service"
	if n != (service.PortName{}) {
		of = n.String()
	}
	return renderedBalancer{
		port: n, Service: of, Key: lb.Address.String(), TargetPort: lb.TargetPort, Properties: lb.describe(),
		Endpoints: p.endpointTexts(lb.Endpoints),
	}
}

func newRenderedEndpoint(e *Endpoint, f service.Family) renderedEndpoint {
	x := renderedEndpoint{Address: e.addrIn(f).String(), Remote: e.Remote, MAC: e.MAC, text: e.describe(), addr: e.addrIn(f)}
	if e.Provider.IsValid() {
		x.Provider = e.Provider.String()
	}
	if e.Remote {
		x.Name = e.Name
	}
	return x
}

func (r *rendering) complete() reconcile.Objects {
	var head, tail reconcile.Objects
	head.Add("network %s %s, HNS %s\n", r.Network, r.Kind, r.HNS)
	for _, s := range r.Unsupported {
		tail.Add("unsupported: %s\n", s)
	}
	for _, s := range r.Notes {
		tail.Add("note: %s\n", s)
	}
	if r.Network != assumedName && len(r.Changes) > 0 {
		tail.Add("\nto change:\n%s\n", strings.Join(r.Changes, "\n"))
	}
	return slices.Concat(head, r.objects(), tail)
}

// objects returns the endpoints and load balancers as text.
func (r *rendering) objects() reconcile.Objects {
	var all reconcile.Objects
	for _, e := range r.Endpoints {
		all.Add("endpoint %s\n", e.text)
	}
	for _, lb := range r.LoadBalancers {
		all.AddFor(lb.port, "loadbalancer %s %s # %s\n", lb.Key, lb.Properties, lb.Service)
		for _, e := range lb.Endpoints {
			all.AddFor(lb.port, "\t%s\n", e)
		}
	}
	return all
}

// assumedName is the name of the network in an AssumedListing.
const assumedName = "assumed"

// discardStore is a Store that stores nothing.
type discardStore struct{}

func (discardStore) Load() ([]byte, error) { return nil, nil }

func (discardStore) Save([]byte) error { return nil }

// hostMACFrom returns the node's hardware address. In a dump, only our endpoints for
// Services contain it. Without any, it is not known.
func hostMACFrom(l Listing) string {
	for _, e := range l.Endpoints {
		if e.Remote && strings.HasPrefix(e.Name, remotePrefix) && e.MAC != "" && len(e.Addrs) > 0 && !equalMAC(e.MAC, remoteMAC(e.Addrs[0])) {
			return e.MAC
		}
	}
	return ""
}

// ReadBack returns the objects that HNS holds for this proxy, and those that it would hold
// for want, in the text and order of Render. It changes nothing.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	p, err := b.planAll(ctx, want)
	if err != nil {
		return nil, nil, err
	}
	return p.objects(newDryPass(ctx, b.host, &p.next.site, b.family, p.next.model)), p.objects(p.dry), nil
}

// objects returns the model's objects at: those of Service ports, then others of this proxy.
func (p *plan) objects(at *pass) reconcile.Objects {
	b, d := p.backend, &rendering{}
	d.addObjects(b.family, p, at)
	desired := map[service.Address]bool{}
	for _, u := range p.work.units {
		for _, w := range u.desired {
			desired[w.Address] = true
		}
	}
	for _, lb := range p.next.model.balancersOf(b.family) {
		if !desired[lb.Address] && at.model.balancer(lb.Address) != nil && b.isLeftover(p.next, lb) {
			d.LoadBalancers = append(d.LoadBalancers, at.rendered(lb, service.PortName{}))
		}
	}
	for _, e := range p.next.model.sortedRemotes(b.family) {
		if ownsEndpoint(e) && at.model.endpoint(e.ID) != nil {
			d.Endpoints = append(d.Endpoints, newRenderedEndpoint(e, b.family))
		}
	}
	d.sortEndpoints()
	return d.objects()
}
