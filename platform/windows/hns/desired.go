// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Site is what Desired needs beside Services: network and node. Its fields can be compared.
type Site struct {
	Network   Network
	Version   Version
	Node      *service.Node
	NodeIP    netip.Addr // the node's own address in the family
	HostMAC   string     // of the interface with NodeIP; only on overlay networks
	SourceVIP netip.Addr
	// Unavailable is why the family cannot be programmed at all. If set, Desired returns nothing.
	Unavailable string
	Options     Options
}

// Options are the operator's settings.
type Options struct {
	// NetworkName is the configured network. If it is empty, EnvName applies, the value
	// of KUBE_NETWORK. If both are empty, the network is detected.
	NetworkName, EnvName string
	// SourceVIP is the address for masquerading on overlay networks, if invalid the last free one.
	SourceVIP netip.Addr
	// DSR enables direct server return for ClusterIPs.
	DSR bool
	// ForwardHealthChecks forwards load balancers' health checks to the node, through RootEndpoint.
	ForwardHealthChecks bool
	RootEndpoint        string
	// IgnoreSourceRanges serves an address with source ranges to all clients.
	IgnoreSourceRanges bool
	// HealthzPort serves the health checks of Services without a health check port.
	HealthzPort uint16
	// MetricsPort is the port of the proxy's own metrics server, 0 if there is none.
	MetricsPort uint16
}

// DesiredLoadBalancer is a load balancer that should exist, without ID and Endpoints.
type DesiredLoadBalancer struct {
	LoadBalancer
	PortName service.PortName
	Targets  []Target // sorted by address
	// Shared means that several Service ports may need the same load balancer.
	Shared bool
}

// DesiredState is what one Service port needs.
type DesiredState struct {
	LoadBalancers []DesiredLoadBalancer
	// VIPs are remote endpoints for addresses of the Service itself.
	VIPs []Target
	// Listed are addresses whose remote endpoints stay: their pods may serve old connections.
	Listed []netip.Addr
	// Limits are the parts that cannot be programmed, now or at all. The rest can. Notes
	// describe what works differently from the Service's specification.
	Limits []error
	Notes  []reconcile.Note
}

// maxEndpoints is the maximum number of endpoints of an HNS load balancer.
const maxEndpoints = 1024

// Desired returns the desired state of p at s.
func Desired(p *service.Port, s *Site) DesiredState {
	var w DesiredState
	switch {
	case s.Unavailable != "":
		return w
	case p.Name.Protocol != service.TCP && p.Name.Protocol != service.UDP:
		w.addLimit(p.Frontends, "HNS has no load balancers for %s", p.Name.Protocol)
		return w
	case !p.HasEndpoints():
		w.Notes = append(w.Notes, reconcile.Note{Text: "it has no ready endpoint, and HNS cannot refuse connections: they time out", Transient: true})
	}
	w.Listed = p.Listed
	choices := map[service.Policy]targetGroup{}
	for _, f := range p.Frontends {
		policy := p.Policy(f.Kind)
		c, known := choices[policy]
		if !known {
			c = s.chooseTargets(&w, p, p.Endpoints(f.Kind), policy)
			choices[policy] = c
		}
		if s.keepsHere(p, f) {
			c.targets = slices.DeleteFunc(slices.Clone(c.targets), func(t Target) bool { return t.Location != Local })
		}
		if f.Sources != nil && !s.servesSourceRanges(&w, f) {
			continue
		}
		if len(c.targets) > 0 {
			w.LoadBalancers = append(w.LoadBalancers, s.balancer(p, f, c))
		}
		if f.Kind == service.ClusterIP && s.Network.Kind == Overlay {
			w.VIPs = append(w.VIPs, Target{Addr: f.Addr, Location: Remote, MAC: s.HostMAC, Provider: s.NodeIP})
		}
	}
	w.noteAffinity(p, s)
	w.noteReach(p, s)
	w.limitDSR(p, s)
	s.healthChecks(&w, p)
	return w
}

// servesSourceRanges records how f, which has source ranges, is handled: whether it is served.
func (s *Site) servesSourceRanges(w *DesiredState, f service.Frontend) bool {
	if !s.Options.IgnoreSourceRanges {
		w.addLimit([]service.Frontend{f}, "HNS has no source ranges: %s is not programmed, because everybody could connect", f.Addr)
		return false
	}
	w.Notes = append(w.Notes, reconcile.Note{Text: fmt.Sprintf("HNS has no source ranges: every client can connect to %s, as --ignore-source-ranges says", f.Addr)})
	return true
}

func (d *DesiredState) addLimit(lost []service.Frontend, format string, args ...any) {
	d.Limits = append(d.Limits, &reconcile.UnsupportedError{Text: fmt.Sprintf(format, args...), Affected: lost})
}

// noteAffinity records how session affinity differs.
func (d *DesiredState) noteAffinity(p *service.Port, s *Site) {
	switch {
	case p.Affinity == 0 || len(d.LoadBalancers) == 0:
	case s.Version.Features().Affinity:
		d.Notes = append(d.Notes, reconcile.Note{Text: "session affinity has no timeout: HNS has none"})
	default:
		d.addLimit(nil, "HNS %s has no session affinity: want Windows Server 2022 or newer", s.Version)
	}
}

// What clients of external addresses cannot have, whatever the Service asks for.
const (
	localForAll   = "external policy Local applies to all clients: pods and the node itself reach only endpoints of this node"
	keptHere      = "the annotation preserve-destination leads load balancer's addresses and NodePorts to endpoints of this node only"
	everyNodePort = "NodePorts answer on every address of the node, whatever nodePortAddresses says"
)

// noteReach records where clients reach fewer endpoints than the Service says, or more addresses.
func (d *DesiredState) noteReach(p *service.Port, s *Site) {
	elsewhere := slices.ContainsFunc(p.Cluster, func(e service.Endpoint) bool { return !e.Local })
	if elsewhere && slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return s.keepsHere(p, f) }) {
		d.Notes = append(d.Notes, reconcile.Note{Text: keptHere, Transient: true})
	}
	external := slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind.External() })
	if elsewhere && external && p.External == service.PolicyLocal {
		d.Notes = append(d.Notes, reconcile.Note{Text: localForAll, Transient: true})
	}
	if p.NodePort() != 0 && s.restrictsNodePorts(p.Family) {
		d.Notes = append(d.Notes, reconcile.Note{Text: everyNodePort})
	}
}

// restrictsNodePorts reports whether nodePortAddresses leaves out an address of f.
func (s *Site) restrictsNodePorts(f service.Family) bool {
	return !slices.ContainsFunc(s.Node.NodePortPrefixes(f), func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// preserveFlags are what the annotation preserve-destination asks for.
const preserveFlags = UseMux | PreserveDIP

// keepsHere reports whether f leads to pods of this node alone, apart from traffic policies: where preservesDIP, and
// at NodePorts of the same Service. Load balancers of a cloud ask these which nodes have a pod
// (kubernetes/kubernetes#86544), and kube-proxy answers them so.
func (s *Site) keepsHere(p *service.Port, f service.Frontend) bool {
	return s.preservesDIP(p, f) || p.KeepVIP && f.Kind == service.NodePort && s.Version.Features().DSR
}

// preservesDIP reports whether pods receive packets to f with the original destination
// address. Then no other node can translate the replies.
func (s *Site) preservesDIP(p *service.Port, f service.Frontend) bool {
	return p.KeepVIP && f.Kind == service.LoadBalancerIP && s.Version.Features().DSR
}

// limitDSR records what a Service port lacks on an HNS without direct server return.
func (d *DesiredState) limitDSR(p *service.Port, s *Site) {
	if s.Version.Features().DSR {
		return
	}
	if p.KeepVIP && slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.LoadBalancerIP }) {
		d.addLimit(nil, "HNS %s has no direct server return: the annotation preserve-destination has no effect", s.Version)
	}
	if p.External == service.PolicyLocal && slices.ContainsFunc(d.LoadBalancers, func(lb DesiredLoadBalancer) bool { return lb.Flags&VIPExternalIP != 0 }) {
		d.addLimit(nil, "HNS %s has no direct server return: endpoints do not see the addresses of clients", s.Version)
	}
}

// targetGroup is the endpoints with one port that a traffic policy permits.
type targetGroup struct {
	port    uint16
	targets []Target
}

// chooseTargets returns the targets for endpoints. An HNS load balancer has one target
// port, so chooseTargets uses the largest group of endpoints with the same port.
func (s *Site) chooseTargets(w *DesiredState, p *service.Port, endpoints []service.Endpoint, policy service.Policy) targetGroup {
	endpoints = s.withoutOwn(w, p, endpoints, policy)
	if len(endpoints) == 0 {
		return targetGroup{}
	}
	c := targetGroup{port: endpoints[0].Addr.Port()}
	chosen := endpoints
	if slices.ContainsFunc(endpoints, func(e service.Endpoint) bool { return e.Addr.Port() != c.port }) {
		c.port, chosen = largestGroup(w, endpoints, policy)
	}
	if len(chosen) > maxEndpoints {
		w.addLimit(nil, "it has %d endpoints, and a load balancer of HNS at most %d: the rest get no traffic", len(chosen), maxEndpoints)
		chosen = chosen[:maxEndpoints]
	}
	var waits []error
	c.targets = make([]Target, 0, len(chosen))
	for _, e := range chosen {
		t, err := s.target(e)
		if err != nil {
			waits = append(waits, err)
			continue
		}
		c.targets = append(c.targets, t)
	}
	for _, err := range waits {
		if len(c.targets) > 0 {
			err = &reconcile.DegradedError{Err: err}
		}
		w.Limits = append(w.Limits, err)
	}
	return c
}

// withoutOwn leaves out pods on the host network of this node. HNS has no endpoint for them, and kube-proxy makes none
// (kubernetes/kubernetes#126795): nothing public says what a remote endpoint with an address of the node itself does.
func (s *Site) withoutOwn(w *DesiredState, p *service.Port, all []service.Endpoint, policy service.Policy) []service.Endpoint {
	own := func(e service.Endpoint) bool { return e.Local && slices.Contains(s.Node.Addrs, e.Addr.Addr()) }
	i := slices.IndexFunc(all, own)
	if i < 0 {
		return all
	}
	rest := slices.DeleteFunc(slices.Clone(all), own)
	var lost []service.Frontend
	if len(rest) == 0 {
		lost = slices.DeleteFunc(slices.Clone(p.Frontends), func(f service.Frontend) bool { return p.Policy(f.Kind) != policy })
	}
	w.addLimit(lost, "endpoint %s of policy %s is on the host network of this node, and HNS has no endpoint for that: it gets no connections through this node",
		all[i].Addr, policy)
	return rest
}

// largestGroup returns the port that most endpoints have, and these.
func largestGroup(w *DesiredState, endpoints []service.Endpoint, policy service.Policy) (uint16, []service.Endpoint) {
	groups := map[uint16][]service.Endpoint{}
	for _, e := range endpoints {
		groups[e.Addr.Port()] = append(groups[e.Addr.Port()], e)
	}
	ports := slices.SortedFunc(maps.Keys(groups), func(a, b uint16) int {
		return cmp.Or(cmp.Compare(len(groups[b]), len(groups[a])), cmp.Compare(a, b))
	})
	chosen := groups[ports[0]]
	w.addLimit(nil, "the endpoints of policy %s have different ports, and a load balancer of HNS has one: only the %d with port %d get traffic, not %d with ports %v",
		policy, len(chosen), ports[0], len(endpoints)-len(chosen), ports[1:])
	return ports[0], chosen
}

// target returns the location of e and the route to it.
func (s *Site) target(e service.Endpoint) (Target, error) {
	a := e.Addr.Addr()
	t := Target{Addr: a, Location: Remote, MAC: remoteMAC(a)}
	switch {
	case e.Local:
		return Target{Addr: a, Location: Local}, nil
	case !e.Remote:
		t.Location = Unknown
	}
	if s.Network.Kind != Overlay { // without a provider address, as kube-proxy has it
		return t, nil
	}
	provider := s.Network.routeProvider(a)
	switch {
	case provider.IsValid():
		t.Provider, t.needsNodeIP = provider, provider == a
	case s.Node.Pods.Contains(a, "") && t.Location == Remote:
		return t, pendingError(fmt.Sprintf("network %q has no route to the node of %s yet: the network plugin makes it", s.Network.Name, a))
	default: // outside of the cluster
		t.Provider, t.needsNodeIP = s.NodeIP, t.Location == Remote || !s.Network.contains(a)
	}
	return t, nil
}

// routeProvider returns the address of the node that hosts a, a itself if it is a node's
// address, and the zero value if the network has no route. The narrowest route applies.
func (n *Network) routeProvider(a netip.Addr) netip.Addr {
	var best Route
	for _, r := range n.Routes {
		switch {
		case r.Provider == a:
			return a
		case r.Subnet.Contains(a) && (!best.Provider.IsValid() || r.Subnet.Bits() > best.Subnet.Bits()):
			best = r
		}
	}
	return best.Provider
}

func (n *Network) contains(a netip.Addr) bool {
	return slices.ContainsFunc(n.Subnets, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (s *Site) balancer(p *service.Port, f service.Frontend, c targetGroup) DesiredLoadBalancer {
	features := s.Version.Features()
	lb := LoadBalancer{
		Address:    p.Address(f),
		TargetPort: c.port,
		SourceVIP:  s.SourceVIP,
		Kind:       f.Kind,
	}
	switch f.Kind {
	case service.ClusterIP:
		lb.DSR = s.Options.DSR && features.DSR
	case service.NodePort:
		lb.Flags = LocalRoutedVIP | VIPExternalIP
	default:
		lb.Flags = VIPExternalIP
	}
	if f.Kind.External() && p.External == service.PolicyLocal {
		lb.DSR = features.DSR
	}
	if s.preservesDIP(p, f) {
		lb.DSR, lb.Flags = true, lb.Flags|preserveFlags
	}
	if p.Affinity > 0 && features.Affinity {
		lb.Distribution = DistributionSourceIP
	}
	// Replies from outside of the overlay network cannot reach an address inside it.
	if s.Network.Kind == Overlay && slices.ContainsFunc(c.targets, func(t Target) bool { return t.needsNodeIP }) {
		lb.SourceVIP = s.NodeIP
	}
	return DesiredLoadBalancer{LoadBalancer: lb, PortName: p.Name, Targets: c.targets}
}

// healthChecks adds load balancers that forward health checks to the node. These use TCP
// for Services of every protocol.
func (s *Site) healthChecks(w *DesiredState, p *service.Port) {
	if !s.Options.ForwardHealthChecks {
		return
	}
	port := p.HealthCheck
	if port == 0 {
		port = s.Options.HealthzPort
	}
	for _, f := range p.Frontends {
		if f.Kind != service.LoadBalancerIP || f.Sources != nil && !s.Options.IgnoreSourceRanges || port == 0 {
			continue
		}
		k := service.Address{Addr: f.Addr, Family: p.Family, Port: port, Protocol: service.TCP}
		if slices.ContainsFunc(w.LoadBalancers, func(x DesiredLoadBalancer) bool { return x.Address == k }) {
			w.addLimit(nil, "port %d of %s is the Service's own: health checks on it do not reach the node", port, f.Addr)
			continue
		}
		lb := LoadBalancer{Address: k, TargetPort: port, SourceVIP: s.SourceVIP, Kind: service.LoadBalancerIP}
		if s.preservesDIP(p, f) {
			lb.Flags = preserveFlags
		}
		w.LoadBalancers = append(w.LoadBalancers, DesiredLoadBalancer{LoadBalancer: lb, PortName: p.Name, Targets: []Target{{Location: Root}}, Shared: true})
	}
}

// portShortageHint returns the remedy for a lack of ports.
func (s *Site) portShortageHint(k service.Address) string {
	family, netsh := "ipv4", ""
	if k.Family == service.IPv6 {
		family = "ipv6"
	}
	netsh = fmt.Sprintf("netsh int %s set dynamicportrange %s start=FIRST num=COUNT widens the range", family, k.Protocol)
	switch {
	case !s.Version.Features().DSR:
		return fmt.Sprintf("HNS %s has no direct server return, which needs none: %s", s.Version, netsh)
	case !s.Options.DSR:
		return "--enable-dsr or winkernel.enableDSR serves ClusterIPs without them, and externalTrafficPolicy Local other addresses; " + netsh
	}
	return "externalTrafficPolicy Local serves other addresses than ClusterIPs without them; " + netsh
}

// listenerHint returns what probably listens on the port of lb, and the remedy. HNS of
// Windows Server 2019 creates no load balancer for a port that a program listens on at
// all addresses of the node (kubernetes/community#8883).
func (s *Site) listenerHint(lb *LoadBalancer) string {
	const newer = ", or use Windows Server 2022 or newer"
	switch o := s.Options; {
	case lb.Protocol != service.TCP:
	case o.HealthzPort != 0 && lb.Port == o.HealthzPort:
		return fmt.Sprintf("kube-proxy itself, for healthzBindAddress; set --healthz-bind-address to one address of the node, such as %s%s", s.nodeAddrPort(lb.Port), newer)
	case o.MetricsPort != 0 && lb.Port == o.MetricsPort:
		return fmt.Sprintf("kube-proxy itself, for metricsBindAddress; set --metrics-bind-address to one address of the node, such as %s, or to another port%s", s.nodeAddrPort(lb.Port), newer)
	case lb.Use() == "healthcheck":
		return "kube-proxy itself, for the healthCheckNodePort; set --nodeport-addresses to addresses of the node" + newer
	}
	command := "Get-NetTCPConnection -State Listen"
	if lb.Protocol == service.UDP {
		command = "Get-NetUDPEndpoint"
	}
	return fmt.Sprintf("%s -LocalPort %d names its process; have it listen elsewhere", command, lb.Port)
}

// nodeAddrPort formats an address and port of the node.
func (s *Site) nodeAddrPort(port uint16) string {
	if !s.NodeIP.IsValid() {
		return fmt.Sprintf("NODE-IP:%d", port)
	}
	return netip.AddrPortFrom(s.NodeIP, port).String()
}
