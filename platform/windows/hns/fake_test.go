// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// fake is an HNS that checks existence, use and consistency as strictly as the real one.
// It counts calls.
type fake struct {
	version      Version
	networks     []Network
	endpoints    map[string]Endpoint
	balancers    map[string]LoadBalancer
	next         int
	down         bool
	unattached   map[string]bool          // endpoints without a switch port
	heldPorts    map[service.Address]bool // ports that a program of the node listens on
	portBlocks   int                      // available blocks of dynamic ports, 0 for any number
	portsUnknown bool                     // the system does not report whether ports are left
	// refuse, if not nil, may fail a call before it has an effect. after may fail one
	// that had its effect.
	refuse func(op string) error
	after  func(op string) error

	calls    map[string]int
	silent   bool     // done stays empty
	done     []string // what was changed, as a plan prints it
	warnings []string // requests that real HNS accepts and that break Services
}

func newFake(v Version, networks ...Network) *fake {
	return &fake{version: v, networks: networks, endpoints: map[string]Endpoint{}, balancers: map[string]LoadBalancer{}, heldPorts: map[service.Address]bool{}, calls: map[string]int{}}
}

func codeError(op string, code uint32) error { return &Error{Op: op, Code: code} }

func (fa *fake) id(kind string) string {
	fa.next++
	return fmt.Sprintf("%s-%06d", kind, fa.next)
}

// begin counts a call and may fail it.
func (fa *fake) begin(op string) error {
	fa.calls[op]++
	if fa.down {
		return codeError(op, 0x6ba)
	}
	if fa.refuse != nil {
		return fa.refuse(op)
	}
	return nil
}

func (fa *fake) end(op string) error {
	if fa.after != nil {
		return fa.after(op)
	}
	return nil
}

// log records what was changed.
func (fa *fake) log(text func() string) {
	if !fa.silent {
		fa.done = append(fa.done, text())
	}
}

// writes counts the calls that change something.
func (fa *fake) writes() int {
	n := 0
	for op, times := range fa.calls {
		if op[:4] != "list" {
			n += times
		}
	}
	return n
}

func (fa *fake) List(_ context.Context, what ObjectKinds) (Listing, error) {
	for w, name := range map[ObjectKinds]string{Networks: "list networks", Endpoints: "list endpoints", LoadBalancers: "list load balancers"} {
		if what&w == 0 {
			continue
		}
		if err := fa.begin(name); err != nil {
			return Listing{}, err
		}
	}
	l := Listing{Version: fa.version, Networks: slices.Clone(fa.networks)}
	if what&Endpoints != 0 {
		for _, id := range slices.Sorted(maps.Keys(fa.endpoints)) {
			l.Endpoints = append(l.Endpoints, fa.endpoints[id])
		}
	}
	if what&LoadBalancers != 0 {
		for _, id := range slices.Sorted(maps.Keys(fa.balancers)) {
			l.LoadBalancers = append(l.LoadBalancers, fa.balancers[id])
		}
	}
	return l, nil
}

func (fa *fake) network(id string) *Network {
	for i := range fa.networks {
		if fa.networks[i].ID == id {
			return &fa.networks[i]
		}
	}
	return nil
}

func (fa *fake) CreateEndpoint(_ context.Context, e Endpoint) (Endpoint, error) {
	const op = "create endpoint"
	if err := fa.begin(op); err != nil {
		return Endpoint{}, err
	}
	n := fa.network(e.Network)
	switch {
	case n == nil:
		return Endpoint{}, codeError(op, 0x803b0001)
	case e.Remote && len(e.Addrs) == 0:
		return Endpoint{}, codeError(op, 0x80070057)
	case e.Remote && n.Kind == Overlay && (e.MAC == "" || !e.Provider.IsValid()):
		return Endpoint{}, codeError(op, 0x803b000d)
	}
	if len(e.Addrs) == 0 {
		e.Addrs = []netip.Addr{fa.freeAddr(n)}
	}
	for _, a := range e.Addrs {
		switch {
		case fa.hasAddr(n.ID, a, e.Remote) && e.Remote:
			return Endpoint{}, codeError(op, 0x80071392)
		case fa.hasAddr(n.ID, a, e.Remote), !e.Remote && slices.Contains(n.Gateways, a):
			return Endpoint{}, codeError(op, 0x803b002f)
		case !e.Remote && !n.contains(a):
			return Endpoint{}, codeError(op, 0x803b001e)
		}
	}
	e.ID = fa.id("endpoint")
	line := "+ endpoint " + e.describe()
	if e.Name == sourceVIPName {
		line = "+ endpoint " + e.Name
	}
	fa.done = append(fa.done, line)
	if e.MAC == "" {
		e.MAC = fmt.Sprintf("00-15-5d-00-%02x-%02x", fa.next>>8&0xff, fa.next&0xff)
	}
	fa.endpoints[e.ID] = e
	return e, fa.end(op)
}

func (fa *fake) freeAddr(n *Network) netip.Addr {
	a := n.Subnets[0].Masked().Addr().Next().Next()
	for fa.hasAddr(n.ID, a, false) {
		a = a.Next()
	}
	return a
}

func (fa *fake) hasAddr(network string, a netip.Addr, remote bool) bool {
	for _, e := range fa.endpoints {
		if e.Network == network && e.Remote == remote && e.HasAddr(a) {
			return true
		}
	}
	return false
}

func (fa *fake) HasEndpoint(_ context.Context, id string) (bool, error) {
	const op = "find endpoint"
	if err := fa.begin(op); err != nil {
		return false, err
	}
	_, ok := fa.endpoints[id]
	return ok, fa.end(op)
}

func (fa *fake) DeleteEndpoint(_ context.Context, id string) error {
	const op = "delete endpoint"
	if err := fa.begin(op); err != nil {
		return err
	}
	e, ok := fa.endpoints[id]
	if !ok {
		return codeError(op, 0x803b0002)
	}
	for _, lb := range fa.balancers {
		if slices.Contains(lb.Endpoints, id) {
			fa.warnings = append(fa.warnings, fmt.Sprintf("endpoint %s deleted while load balancer %s has it", id, lb.ID))
		}
	}
	fa.done = append(fa.done, "- endpoint "+e.describe())
	delete(fa.endpoints, id)
	return fa.end(op)
}

// check validates a load balancer that is to have the given ID.
func (fa *fake) check(op string, lb LoadBalancer) error {
	network := ""
	for _, id := range lb.Endpoints {
		e, ok := fa.endpoints[id]
		switch {
		case !ok:
			return codeError(op, 0x803b0002)
		case network != "" && network != e.Network:
			return codeError(op, 0x80070057)
		case fa.unattached[id]:
			return codeError(op, 0x803b0007)
		}
		network = e.Network
	}
	f := fa.version.Features()
	v6 := lb.Family == service.IPv6
	switch {
	case len(lb.Endpoints) == 0, lb.TargetPort == 0, lb.Port == 0,
		lb.DSR && !f.DSR, v6 && !f.DualStack, lb.Distribution == DistributionSourceIP && !f.Affinity,
		!slices.IsSorted(lb.Endpoints), len(slices.Compact(slices.Clone(lb.Endpoints))) != len(lb.Endpoints):
		return codeError(op, 0x80070057)
	case lb.Addr.IsValid() && lb.Addr.Is6() != v6, lb.SourceVIP.IsValid() && lb.SourceVIP.Is6() != v6:
		return codeError(op, 0x803b001e)
	case fa.heldPorts[lb.Address]:
		return codeError(op, 0x803b0013)
	}
	for _, other := range fa.balancers {
		if other.ID != lb.ID && (other.Address == lb.Address || slices.Contains(other.ExtraKeys, lb.Address)) {
			return codeError(op, 0x803b0013)
		}
	}
	return nil
}

func (fa *fake) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	const op = "create load balancer"
	if err := fa.begin(op); err != nil {
		return LoadBalancer{}, err
	}
	lb.ID = ""
	if err := fa.check(op, lb); err != nil {
		return LoadBalancer{}, err
	}
	if fa.portBlocks > 0 && !lb.DSR && fa.usedBlocks(lb.Address) >= fa.portBlocks {
		return LoadBalancer{}, codeError(op, 0x803b0013)
	}
	lb.ID = fa.id("balancer")
	fa.log(func() string { return fa.balancerText("+ loadbalancer ", &lb) })
	fa.balancers[lb.ID] = lb
	return lb, fa.end(op)
}

// usedBlocks counts the blocks of dynamic ports that load balancers hold.
func (fa *fake) usedBlocks(like service.Address) int {
	n := 0
	for _, lb := range fa.balancers {
		if !lb.DSR && lb.Family == like.Family && lb.Protocol == like.Protocol {
			n++
		}
	}
	return n
}

func (fa *fake) PortsLeft(_ context.Context, like service.Address) (bool, error) {
	if fa.portsUnknown {
		return false, errors.ErrUnsupported
	}
	return fa.portBlocks == 0 || fa.usedBlocks(like) < fa.portBlocks, nil
}

func (fa *fake) UpdateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	const op = "update load balancer"
	if err := fa.begin(op); err != nil {
		return LoadBalancer{}, err
	}
	have, ok := fa.balancers[lb.ID]
	switch {
	case !fa.version.atLeast(15, 4):
		return LoadBalancer{}, codeError(op, notImplemented)
	case !ok:
		return LoadBalancer{}, codeError(op, 0x80070490)
	}
	if err := fa.check(op, lb); err != nil {
		return LoadBalancer{}, err
	}
	if !fa.version.atLeast(15, 5) {
		return have, nil
	}
	fa.log(func() string {
		return fmt.Sprintf("~ loadbalancer %s %s %s", lb.Address, lb.describe(), fa.pass(lb.Family).formatDiff(have.Endpoints, lb.Endpoints))
	})
	fa.balancers[lb.ID] = lb
	return lb, fa.end(op)
}

func (fa *fake) DeleteLoadBalancer(_ context.Context, lb LoadBalancer) error {
	const op = "delete load balancer"
	id := lb.ID
	if err := fa.begin(op); err != nil {
		return err
	}
	if _, ok := fa.balancers[id]; !ok {
		return codeError(op, 0x80070490)
	}
	fa.done = append(fa.done, "- loadbalancer "+fa.balancers[id].Address.String())
	delete(fa.balancers, id)
	return fa.end(op)
}

// memoryStore is a Store in memory.
type memoryStore struct {
	document []byte
	err      error
	saves    int
}

func (m *memoryStore) Load() ([]byte, error) { return m.document, m.err }

func (m *memoryStore) Save(b []byte) error {
	if m.err != nil {
		return m.err
	}
	m.document = b
	m.saves++
	return nil
}

// writes reports whether r is to change what HNS holds.
func (r request) writes() bool {
	return !slices.Contains([]string{"", opList, opListEndpoints, opFindEndpoint}, r.operation)
}

// onWrites returns a Driver that leaves the writing calls of d to by, with the name of the
// call. If by does not do one, HNS says that it did.
func onWrites(d Driver, by func(op string, do func())) Driver {
	without := dryRun(Listing{}).(*intercepted)
	return intercept(d, func(ctx context.Context, r request, do func() (any, error)) (answer any, err error) {
		if !r.writes() {
			return do()
		}
		answer, err = without.by(ctx, r, nil)
		by(strings.ReplaceAll(r.operation, "_", " "), func() { answer, err = do() })
		return answer, err
	})
}

// onLists returns a Driver that calls before before each listing of d.
func onLists(d Driver, before func()) Driver {
	return intercept(d, func(_ context.Context, r request, do func() (any, error)) (any, error) {
		if _, lists := r.of.(ObjectKinds); lists {
			before()
		}
		return do()
	})
}

// altered returns a Driver whose answers other has altered.
func altered(d Driver, other func(r request, answer any) any) Driver {
	return intercept(d, func(_ context.Context, r request, do func() (any, error)) (any, error) {
		answer, err := do()
		return other(r, answer), err
	})
}

// site returns a Site as discover returns it.
func site(n Network, v Version) *Site {
	s := &Site{Network: n, Version: v, Node: theNode, NodeIP: nodeA, HostMAC: "00-15-5d-aa-aa-aa"}
	if n.Kind == Overlay {
		s.SourceVIP = addr("10.244.1.2")
	}
	return s
}

const ownText = " is on the host network of this node, and HNS has no endpoint for that: it gets no connections through this node"

// formatDesired formats w, one object per line.
func formatDesired(w DesiredState) []string {
	var all []string
	for _, x := range w.LoadBalancers {
		var to []string
		for _, t := range x.Targets {
			to = append(to, t.text())
		}
		all = append(all, fmt.Sprintf("%s %s [%s]", x.Address, x.describe(), strings.Join(to, ", ")))
	}
	for _, err := range w.Limits {
		all = append(all, "limit: "+err.Error())
	}
	for _, n := range w.Notes {
		all = append(all, "note: "+n.Text)
	}
	return all
}

func (t Target) text() string {
	switch t.Location {
	case Local:
		return t.Addr.String()
	case Root:
		return "root"
	}
	return (&Endpoint{Addrs: []netip.Addr{t.Addr}, MAC: t.MAC, Provider: t.Provider, Remote: true}).describe()
}

func frontend(k service.Kind, a string, port uint16) service.Frontend {
	f := service.Frontend{Kind: k, Port: port}
	f.Addr, _ = netip.ParseAddr(a)
	return f
}

const (
	localEndpoint  = "10.244.1.11:8080"
	remoteEndpoint = "10.244.2.11:8080@b"
	remoteText     = "10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11"
)

type desiredCase struct {
	network Network
	version Version
	change  func(*service.Port, *Site)
	want    []string
}

var desiredCases = map[string]desiredCase{
	"ClusterIP on an overlay": {overlayN, v13, nil, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11, " + remoteText + "]"}},
	"with DSR": {overlayN, v13, func(_ *service.Port, s *Site) { s.Options.DSR = true },
		[]string{"tcp 10.96.0.10:80 -> :8080 dsr source-vip 10.244.1.2 [10.244.1.11, " + remoteText + "]"}},
	"DSR that HNS lacks": {bridgeN, Version{10, 1}, func(_ *service.Port, s *Site) { s.Options.DSR = true },
		[]string{"tcp 10.96.0.10:80 -> :8080 [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]"}},
	"NodePort": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.Frontends = []service.Frontend{frontend(service.NodePort, "", 30080)}
	}, []string{"tcp node:30080 -> :8080 local-routed external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]"}},
	"external policy Local": {overlayN, v13, func(p *service.Port, _ *Site) {
		p.Frontends = []service.Frontend{frontend(service.ExternalIP, "198.51.100.7", 80), frontend(service.ClusterIP, "10.96.0.10", 80)}
		p.External, p.Local = service.PolicyLocal, endpointsOf(localEndpoint)
	}, []string{
		"tcp 198.51.100.7:80 -> :8080 external dsr source-vip 10.244.1.2 [10.244.1.11]",
		"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11, " + remoteText + "]", "note: " + localForAll}},
	"policy Local without an endpoint here": {overlayN, v13, func(p *service.Port, _ *Site) { p.Internal = service.PolicyLocal }, nil},
	"source ranges": {bridgeN, v13, func(p *service.Port, _ *Site) {
		f := frontend(service.LoadBalancerIP, "203.0.113.5", 80)
		f.Sources = []netip.Prefix{}
		p.Frontends = []service.Frontend{f}
	}, []string{"limit: HNS has no source ranges: 203.0.113.5 is not programmed, because everybody could connect"}},
	"source ranges that are ignored": {bridgeN, v13, func(p *service.Port, s *Site) {
		f := frontend(service.LoadBalancerIP, "203.0.113.5", 80)
		f.Sources = []netip.Prefix{}
		p.Frontends, p.Cluster = []service.Frontend{f}, endpointsOf(localEndpoint)
		s.Options = Options{IgnoreSourceRanges: true, ForwardHealthChecks: true, HealthzPort: 10256}
	}, []string{"tcp 203.0.113.5:80 -> :8080 external [10.244.1.11]", "tcp 203.0.113.5:10256 -> :10256 [root]",
		"note: HNS has no source ranges: every client can connect to 203.0.113.5, as --ignore-source-ranges says"}},
	"preserve-destination": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.KeepVIP, p.Frontends = true, []service.Frontend{
			frontend(service.LoadBalancerIP, "203.0.113.5", 80), frontend(service.ExternalIP, "198.51.100.7", 80), frontend(service.NodePort, "", 30080),
		}
	}, []string{
		"tcp 203.0.113.5:80 -> :8080 mux preserve-destination external dsr [10.244.1.11]",
		"tcp 198.51.100.7:80 -> :8080 external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]",
		"tcp node:30080 -> :8080 local-routed external [10.244.1.11]", "note: " + keptHere}},
	"preserve-destination without an endpoint here": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.KeepVIP, p.Frontends = true, []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80), frontend(service.NodePort, "", 30080)}
		p.Cluster = endpointsOf(remoteEndpoint)
	}, []string{"note: " + keptHere}},
	"NodePorts at some addresses": {bridgeN, v13, func(p *service.Port, s *Site) {
		p.Frontends, p.Cluster = []service.Frontend{frontend(service.NodePort, "", 30080)}, endpointsOf(localEndpoint)
		s.Node = &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	}, []string{"tcp node:30080 -> :8080 local-routed external [10.244.1.11]", "note: " + everyNodePort}},
	"health checks of preserve-destination": {overlayN, v13, func(p *service.Port, s *Site) {
		p.KeepVIP, p.Frontends, p.Cluster = true, []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80)}, endpointsOf(localEndpoint)
		s.Options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
	}, []string{"tcp 203.0.113.5:80 -> :8080 mux preserve-destination external dsr source-vip 10.244.1.2 [10.244.1.11]",
		"tcp 203.0.113.5:10256 -> :10256 mux preserve-destination source-vip 10.244.1.2 [root]"}},
	"preserve-destination that HNS lacks": {bridgeN, Version{10, 1}, func(p *service.Port, _ *Site) {
		p.KeepVIP, p.Frontends = true, []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80), frontend(service.NodePort, "", 30080)}
	}, []string{"tcp 203.0.113.5:80 -> :8080 external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]",
		"tcp node:30080 -> :8080 local-routed external [10.244.1.11, 10.244.2.11 remote 02-11-0a-f4-02-0b]",
		"limit: HNS 10.1 has no direct server return: the annotation preserve-destination has no effect"}},
	"SCTP": {bridgeN, v13, func(p *service.Port, _ *Site) { p.Name.Protocol = service.SCTP },
		[]string{"limit: HNS has no load balancers for sctp"}},
	"two target ports": {bridgeN, v13, func(p *service.Port, _ *Site) {
		p.Cluster = endpointsOf("10.244.1.11:9090", "10.244.1.12:8080", "10.244.1.13:9090")
	}, []string{"tcp 10.96.0.10:80 -> :9090 [10.244.1.11, 10.244.1.13]",
		"limit: the endpoints of policy Cluster have different ports, and a load balancer of HNS has one: only the 2 with port 9090 get traffic, not 1 with ports [8080]"}},
	"affinity": {bridgeN, v13, func(p *service.Port, _ *Site) { p.Affinity, p.Cluster = time.Hour, endpointsOf(localEndpoint) },
		[]string{"tcp 10.96.0.10:80 -> :8080 affinity [10.244.1.11]", "note: session affinity has no timeout: HNS has none"}},
	"affinity that HNS lacks": {bridgeN, Version{11, 10}, func(p *service.Port, _ *Site) { p.Affinity, p.Cluster = time.Hour, endpointsOf(localEndpoint) },
		[]string{"tcp 10.96.0.10:80 -> :8080 [10.244.1.11]", "limit: HNS 11.10 has no session affinity: want Windows Server 2022 or newer"}},
	"no endpoints": {bridgeN, v13, func(p *service.Port, _ *Site) { p.Cluster = nil },
		[]string{"note: it has no ready endpoint, and HNS cannot refuse connections: they time out"}},
	"another node as endpoint": {overlayN, v13, func(p *service.Port, _ *Site) { p.Cluster = endpointsOf("192.0.2.11:6443@b") },
		[]string{"tcp 10.96.0.10:80 -> :6443 source-vip 192.0.2.10 [192.0.2.11 remote 02-11-c0-00-02-0b via 192.0.2.11]"}},
	"the host network of this node": {overlayN, v13, func(p *service.Port, s *Site) {
		p.Cluster = endpointsOf("192.0.2.10:8080", "10.244.1.11:8080")
		p.Cluster[0].Local = true
	}, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11]", "limit: endpoint 192.0.2.10:8080 of policy Cluster" + ownText}},
	"nothing else": {bridgeN, v13, func(p *service.Port, s *Site) {
		p.Cluster = endpointsOf("192.0.2.10:8080")
		p.Cluster[0].Local = true
	}, []string{"limit: endpoint 192.0.2.10:8080 of policy Cluster" + ownText}},
	"an endpoint outside the cluster": {overlayN, v13, func(p *service.Port, _ *Site) { p.Cluster = endpointsOf("198.51.100.9:443@b") },
		[]string{"tcp 10.96.0.10:80 -> :443 source-vip 192.0.2.10 [198.51.100.9 remote 02-11-c6-33-64-09 via 192.0.2.10]"}},
	"the narrowest route": {overlayN, v13, func(p *service.Port, s *Site) {
		s.Network.Routes = []Route{{prefix("10.244.0.0/16"), addr("192.0.2.99")}, {prefix("10.244.2.0/24"), addr("192.0.2.11")}, {prefix("10.244.2.0/23"), addr("192.0.2.98")}}
		p.Cluster = endpointsOf(remoteEndpoint)
	}, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [" + remoteText + "]"}},
	"no route yet": {overlayN, v13, func(p *service.Port, s *Site) {
		s.Node = &service.Node{NodePorts: service.AnyAddress(), Addrs: theNode.Addrs, Pods: service.LocalPods{Prefixes: []netip.Prefix{prefix("10.244.0.0/16")}}}
		p.Cluster = endpointsOf(localEndpoint, "10.244.9.1:8080@b")
	}, []string{"tcp 10.96.0.10:80 -> :8080 source-vip 10.244.1.2 [10.244.1.11]",
		`limit: network "vxlan0" has no route to the node of 10.244.9.1 yet: the network plugin makes it`}},
	"health checks of a UDP Service": {bridgeN, v13, func(p *service.Port, s *Site) {
		s.Options = Options{ForwardHealthChecks: true, RootEndpoint: "cbr0", HealthzPort: 10256}
		p.Name.Protocol, p.Cluster = service.UDP, endpointsOf(localEndpoint)
		p.Frontends = []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 53)}
	}, []string{"udp 203.0.113.5:53 -> :8080 external [10.244.1.11]", "tcp 203.0.113.5:10256 -> :10256 [root]"}},
	"health checks on the Service's own port": {bridgeN, v13, func(p *service.Port, s *Site) {
		s.Options.ForwardHealthChecks, p.HealthCheck, p.Cluster = true, 80, endpointsOf(localEndpoint)
		p.Frontends = []service.Frontend{frontend(service.LoadBalancerIP, "203.0.113.5", 80)}
	}, []string{"tcp 203.0.113.5:80 -> :8080 external [10.244.1.11]",
		"limit: port 80 of 203.0.113.5 is the Service's own: health checks on it do not reach the node"}},
	"family that cannot be had": {overlayN, v13, func(_ *service.Port, s *Site) { s.Unavailable = "no IPv6" }, nil},
}

func TestDesired(t *testing.T) {
	for name, tt := range desiredCases {
		t.Run(name, func(t *testing.T) {
			p, s := clusterIP("web", "10.96.0.10", localEndpoint, remoteEndpoint), site(tt.network, tt.version)
			if tt.change != nil {
				tt.change(p, s)
			}
			kit.Same(t, "wishes (-want +got)", tt.want, formatDesired(Desired(p, s)))
		})
	}
}

// A load balancer has at most 1,024 endpoints.
func TestDesiredTooMany(t *testing.T) {
	p := clusterIP("web", "10.96.0.10")
	a := addr("10.244.2.1")
	for range maxEndpoints + 1 {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(a, 80), Remote: true})
		a = a.Next()
	}
	w := Desired(p, site(bridgeN, v13))
	n := len(w.LoadBalancers[0].Targets)
	kit.Check(t, n == maxEndpoints && len(w.Limits) == 1, "%d targets, limits %v", n, w.Limits)
	kit.Check(t, errors.Is(w.Limits[0], errors.ErrUnsupported), "limit %v is not known as one", w.Limits[0])
}

func TestRemoteMAC(t *testing.T) {
	a, b := remoteMAC(addr("fd00:10:244:1::11")), remoteMAC(addr("fd00:10:244:2::11"))
	kit.Check(t, a != b, "two pods have %s", a)
	if !equalMAC("02-11-0A-00-00-01", "02:11:0a:00:00:01") || equalMAC("02-11-0a-00-00-01", "02-11-0a-00-00-02") {
		t.Error("sameMAC errs")
	}
}

func pod(network, a string) Endpoint {
	return Endpoint{ID: "pod-" + a, Name: "pod", Network: network, Addrs: []netip.Addr{addr(a)}}
}

func TestChooseNetwork(t *testing.T) {
	nat := Network{ID: "net-nat", Name: "nat", Kind: "NAT"}
	other := Network{ID: "net-other", Name: "other", Kind: L2Tunnel}
	external := Network{ID: "net-external", Name: "External", Kind: Overlay, Subnets: []netip.Prefix{prefix("192.168.255.0/30")}}
	flannel := Network{ID: "net-flannel", Name: "flannel.4096", Kind: Overlay, Subnets: []netip.Prefix{prefix("10.244.1.0/24")}}
	routed := flannel
	routed.Routes = []Route{{prefix("10.244.2.0/24"), addr("192.0.2.11")}}
	ranges := []netip.Prefix{prefix("fd00::/64"), prefix("10.244.1.0/24")}
	for name, tt := range map[string]struct {
		options Options
		listing Listing
		want    string // its name, or a part of the error
		waits   bool
		ranges  []netip.Prefix // podCIDRs of the Node
	}{
		"configured":                  {Options{NetworkName: "other", EnvName: "vxlan0"}, Listing{Networks: []Network{overlayN, other}}, "other", false, nil},
		"in the environment":          {Options{EnvName: "VXLAN0"}, Listing{Networks: []Network{overlayN, other}}, "vxlan0", false, nil},
		"configured, not there yet":   {Options{NetworkName: "cbr0"}, Listing{Networks: []Network{nat, overlayN}}, `network "cbr0", which --network-name or winkernel.networkName names; there is "nat" (NAT), "vxlan0" (Overlay)`, true, nil},
		"configured, of other type":   {Options{NetworkName: "nat"}, Listing{Networks: []Network{nat, overlayN}}, `is of type NAT: want Overlay, L2Bridge or L2Tunnel`, false, nil},
		"the only one":                {Options{}, Listing{Networks: []Network{nat, overlayN}}, "vxlan0", false, nil},
		"none":                        {Options{}, Listing{}, "there is no network at all", true, nil},
		"none that fits":              {Options{}, Listing{Networks: []Network{nat}}, `there is "nat" (NAT)`, true, nil},
		"where the pods are":          {Options{}, Listing{Networks: []Network{overlayN, other}, Endpoints: []Endpoint{pod("net-other", "10.0.0.1")}}, "other", false, nil},
		"pods in two":                 {Options{}, Listing{Networks: []Network{overlayN, other}, Endpoints: []Endpoint{pod("net-other", "10.0.0.1"), pod("net-overlay", "10.244.1.3")}}, "set --network-name to one of them", false, nil},
		"two without pods":            {Options{}, Listing{Networks: []Network{flannel, other}}, `"flannel.4096" (Overlay, 0 endpoints of pods), "other" (L2Tunnel, 0 endpoints of pods); set --network-name`, true, ranges[:1]},
		"podCIDR":                     {Options{}, Listing{Networks: []Network{external, flannel}}, "flannel.4096", false, ranges},
		"pods elsewhere than podCIDR": {Options{}, Listing{Networks: []Network{external, other, flannel}, Endpoints: []Endpoint{pod("net-other", "10.0.0.1")}}, "other", false, ranges},
		"podCIDR among pods in two":   {Options{}, Listing{Networks: []Network{external, flannel}, Endpoints: []Endpoint{pod("net-external", "192.168.255.2"), pod("net-flannel", "10.244.1.3")}}, "flannel.4096", false, ranges},
		"routes":                      {Options{}, Listing{Networks: []Network{external, routed}}, "flannel.4096", false, nil},
		"our own endpoint is no pod":  {Options{}, Listing{Networks: []Network{overlayN, other}, Endpoints: []Endpoint{{Name: sourceVIPName, Network: "net-overlay", Addrs: []netip.Addr{addr("10.244.1.2")}}, pod("net-other", "10.0.0.1")}}, "other", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := ChooseNetwork(tt.listing, tt.options, tt.ranges)
			switch {
			case err == nil && (c.Network.Name != tt.want || len(c.Log) == 0):
				t.Errorf("network %q, log %q, want %q and a reason", c.Network.Name, c.Log, tt.want)
			case err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(tt.want, " ")):
				t.Errorf("error %q, want %q in it, or the network of that name", err, tt.want)
			case errors.Is(err, ErrWaiting) != tt.waits:
				t.Errorf("waits: %v, want %v (%v)", !tt.waits, tt.waits, err)
			}
		})
	}
}

func TestChooseSourceVIP(t *testing.T) {
	reserved := Endpoint{Name: sourceVIPName, Network: "net-overlay", Addrs: []netip.Addr{addr("10.244.1.7")}}
	elsewhere := Endpoint{Name: sourceVIPName, Network: "net-other", Addrs: []netip.Addr{addr("10.9.9.9")}}
	taken := pod("net-overlay", "10.244.1.9")
	taken.HasNamespace = true
	script := Endpoint{ID: "s", Name: "VIPEndpoint", Network: "net-overlay", HasNamespace: true, Addrs: []netip.Addr{addr("10.244.1.9")}}
	calico := Endpoint{ID: "c", Name: "Calico_ep", Network: "net-overlay", HasNamespace: true, Addrs: []netip.Addr{addr("10.244.1.66")}}
	remote := Endpoint{ID: "r", Network: "net-overlay", Remote: true, Addrs: []netip.Addr{addr("10.244.1.8")}}
	for name, tt := range map[string]struct {
		given     string
		endpoints []Endpoint
		want      string // address, or a part of the error
		reserve   bool
	}{
		"HNS chooses":             {"", []Endpoint{elsewhere}, "invalid IP", true},
		"ours is there":           {"", []Endpoint{elsewhere, reserved}, "10.244.1.7", false},
		"Calico's is there":       {"", []Endpoint{calico}, "10.244.1.66", false},
		"ours before Calico's":    {"", []Endpoint{reserved, calico}, "10.244.1.7", false},
		"given, Calico's":         {"10.244.1.66", []Endpoint{calico}, "10.244.1.66", false},
		"given, not Calico's":     {"10.244.1.9", []Endpoint{calico}, "10.244.1.9", true},
		"given, free":             {"10.244.1.9", nil, "10.244.1.9", true},
		"given, somebody made it": {"10.244.1.9", []Endpoint{pod("net-overlay", "10.244.1.9")}, "10.244.1.9", false},
		"given, a script made it": {"10.244.1.9", []Endpoint{script}, "10.244.1.9", false},
		"given, a pod has it":     {"10.244.1.9", []Endpoint{taken}, `taken by a pod, as endpoint pod-10.244.1.9, "pod"`, false},
		"outside":                 {"10.9.0.9", nil, "in no subnet of network", false},
		"IPv6":                    {"fd00::9", nil, "want an IPv4 address", false},
		"network address":         {"10.244.1.0", nil, "reserved in 10.244.1.0/24", false},
		"gateway":                 {"10.244.1.1", nil, "reserved in 10.244.1.0/24", false},
		"broadcast":               {"10.244.1.255", nil, "reserved in 10.244.1.0/24", false},
		"taken":                   {"10.244.1.8", []Endpoint{remote}, "taken by remote endpoint r", false},
	} {
		t.Run(name, func(t *testing.T) {
			given, _ := netip.ParseAddr(tt.given)
			got, reserve, err := ChooseSourceVIP(Listing{Endpoints: tt.endpoints}, overlayN, given)
			_, noAddr := netip.ParseAddr(tt.want)
			switch {
			case err != nil && noAddr == nil:
				t.Error(err)
			case err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "--source-vip")):
				t.Errorf("error %q, want %q in it", err, tt.want)
			case err == nil && got.String() != tt.want, (reserve != nil) != tt.reserve:
				t.Errorf("%v, reserve %v, want %v, %v", got, reserve, tt.want, tt.reserve)
			}
		})
	}
}

// An error of discover includes the remedy. It fails the sync, not the start.
func TestDiscoverProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		version Version
		node    *service.Node
		mac     error
		want    string
	}{
		"old HNS":         {Version{9, 1}, theNode, nil, "HNS 9.1 has no remote subnets: want Windows Server 2019"},
		"nameless node":   {v13, &service.Node{NodePorts: service.AnyAddress()}, nil, "waiting for the node's IPv4 address"},
		"no such address": {v13, theNode, errors.New("no network interface"), "find the hardware address for overlay network"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, tt.version, overlayN)
			b.backend.hostMAC = func(netip.Addr) (string, error) { return "", tt.mac }
			_, err := b.backend.Plan(t.Context(), service.New(1, tt.node, nil))
			kit.Check(t, err != nil && strings.Contains(err.Error(), tt.want), "Plan = %v, want %q", err, tt.want)
		})
	}
}

// The proxy waits for a network that the network plugin has not created yet.
func TestNetworkComesLater(t *testing.T) {
	b := newTestNode(t, v13, overlayN)
	b.hns.networks = nil
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"))
	_, err := b.backend.Plan(t.Context(), want)
	kit.Need(t, errors.Is(err, ErrWaiting), "Plan = %v, want ErrWaiting", err)
	b.hns.networks = []Network{overlayN}
	b.converge(want)
}

// An overlay that sends from another address than the Node's is named.
func TestNetworkOnAnotherAdapter(t *testing.T) {
	for provider, want := range map[netip.Addr]bool{{}: false, nodeA: false, addr("192.0.2.99"): true} {
		b := newTestNode(t, v13, overlayN)
		b.hns.networks[0].Provider = provider
		b.plan(snapshot(1))
		got := strings.Contains(strings.Join(b.notes, "\n"), `Network "vxlan0" sends from 192.0.2.99`)
		kit.Check(t, got == want, "%s: notes %q", provider, b.notes)
	}
}

func TestHostMAC(t *testing.T) {
	_, err := hostMAC(addr("203.0.113.77"))
	kit.Check(t, err != nil && strings.Contains(err.Error(), "--bind-address"), "hostMAC of an address that no interface has = %v", err)
}

// The network plugin makes the network again, under another ID. A Service that gets an
// endpoint then does not wait for a resync to find that.
func TestNetworkMadeAgain(t *testing.T) {
	for name, before := range map[string][]string{"a new pod": {"10.244.1.11:80"}, "after it was missing": {"10.244.1.11:80", "10.244.1.12:80"}} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.pods("10.244.1.11")
			_, err := b.round(snapshot(1, clusterIP("web", "10.96.0.10", before...)))
			kit.Need(t, len(before) != 1 || err == nil, "%v", err)
			b.hns.networks[0].ID = "net-again"
			clear(b.hns.endpoints)
			b.pods("10.244.1.11", "10.244.1.12")
			b.converge(snapshot(2, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.1.12:80")))
			kit.Same(t, "(-want +got)", []string{"tcp 10.96.0.10:80 [10.244.1.11 10.244.1.12]"}, b.balancerTexts())
		})
	}
}
