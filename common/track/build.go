// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
)

// LabelProxyName assigns a Service to the proxy with that name. See
// https://kubernetes.io/docs/reference/labels-annotations-taints/.
const LabelProxyName = "service.kubernetes.io/service-proxy-name"

// annotationKeepVIP sets service.Port.KeepVIP if its value is "true".
const annotationKeepVIP = "preserve-destination"

// builder turns a Service into its Ports without endpoints, whatever other Services have.
type builder struct {
	service        *corev1.Service
	interner       *interner
	ignoreExternal bool   // leave out spec.externalIPs
	proxyName      string // see Options
	notes          notes
	reason         string // why nothing is served, see unproxied
	choices        byte   // see serviceState
	closesLeft     bool   // see AnnotationClose

	serves   [2]bool       // families the Service has
	cluster  [2]netip.Addr // its ClusterIPs
	external [2][]netip.Addr
	balancer [2][]netip.Addr
	sources  [2][]netip.Prefix // of balancer addresses
	left     []netip.Addr      // of the balancer that handles them itself: ipMode Proxy

	nodePorts bool
	taken     map[service.Address]string // the path of the port that has it
}

// build returns nil for a Service that this proxy does not handle.
func (b *builder) build() []*service.Port {
	if b.reason = b.unproxied(); b.reason != "" {
		return nil
	}
	b.addresses()
	b.choices = readChoice(b, AnnotationSilent, "off, observe or on", silents[:]) +
		4*readChoice(b, AnnotationSelection, "random, consistent or consistent-all", selections[:]) +
		directChoice*readChoice(b, AnnotationDirectReturn, "on or off", directs[:])
	b.closesLeft = closesLeft(b.service, &b.notes)
	b.taken = make(map[service.Address]string)
	ports := make([]*service.Port, 0, len(b.service.Spec.Ports))
	seen := make(map[service.PortName]string, len(b.service.Spec.Ports))
	template := b.template()
	for i := range b.service.Spec.Ports {
		name, ok := b.name(i)
		if !ok {
			continue
		}
		if first, dup := seen[name]; dup {
			b.notes.add(at("spec.ports", i)+".name", "%.80q is also the name of %s", name.Port, first)
			continue
		}
		seen[name] = at("spec.ports", i)
		for _, f := range service.Families {
			if b.serves[f] {
				p := template
				p.Name, p.Family = name, f
				p.Frontends = b.frontends(i, &p)
				ports = append(ports, &p)
			}
		}
	}
	if len(ports) == 0 {
		b.reason = "has no port that can be used"
	}
	return ports
}

// Named reports that s is for the proxy of that name, or for the one without a name.
func Named(s *corev1.Service, name string) bool {
	label, labelled := s.Labels[LabelProxyName]
	return labelled == (name != "") && label == name
}

// unproxied returns a clause with why this proxy does not serve the Service, or "".
func (b *builder) unproxied() string {
	spec := &b.service.Spec
	label, labelled := b.service.Labels[LabelProxyName]
	switch {
	case !Named(b.service, b.proxyName) && labelled:
		return fmt.Sprintf("is left to another proxy: its label %s is %q", LabelProxyName, label)
	case !Named(b.service, b.proxyName):
		return fmt.Sprintf("is left to another proxy: it has no label %s", LabelProxyName)
	case spec.Type == corev1.ServiceTypeExternalName:
		return fmt.Sprintf("is of type ExternalName: its name stands for %s in DNS, and no proxy takes part", cmp.Or(spec.ExternalName, "no name"))
	}
	switch spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	default:
		b.notes.add("spec.type", "%.80q is not ClusterIP, NodePort, LoadBalancer or ExternalName; taken as ClusterIP", spec.Type)
	}
	switch first := cmp.Or(spec.ClusterIP, cmp.Or(spec.ClusterIPs...)); first {
	case corev1.ClusterIPNone:
		return "is headless: its name stands for the pods in DNS, and no proxy takes part"
	case "":
		b.notes.add("spec.clusterIP", "not set, so the Service is not proxied: want an address, or None")
		return "has no ClusterIP, so no proxy serves it"
	}
	return ""
}

// template returns the fields that all ports of the Service share.
func (b *builder) template() service.Port {
	spec := &b.service.Spec
	template := service.Port{Affinity: b.affinity(), KeepVIP: b.service.Annotations[annotationKeepVIP] == "true"}
	if spec.InternalTrafficPolicy != nil {
		template.Internal = b.policy("spec.internalTrafficPolicy", string(*spec.InternalTrafficPolicy))
	}
	reachable := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(spec.ExternalIPs) > 0 && !b.ignoreExternal
	if reachable {
		template.External = b.policy("spec.externalTrafficPolicy", string(spec.ExternalTrafficPolicy))
	}
	template.HealthCheck = b.healthCheck(template.External)
	template.Rebalance = b.rebalance(template.Affinity)
	return template
}

// healthCheck returns where load balancers query local endpoints, which policy Local needs.
func (b *builder) healthCheck(external service.Policy) uint16 {
	spec := &b.service.Spec
	n := spec.HealthCheckNodePort
	switch {
	case n == 0 || spec.Type != corev1.ServiceTypeLoadBalancer || external != service.PolicyLocal:
		return 0
	case n < 0 || n > 65535:
		b.notes.add("spec.healthCheckNodePort", "%d is not a port: want 1 to 65535", n)
		return 0
	}
	for i, p := range spec.Ports {
		if p.NodePort == n && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			b.notes.add("spec.healthCheckNodePort", "%d is also %s.nodePort, so health checks are not answered", n, at("spec.ports", i))
			return 0
		}
	}
	return uint16(n)
}

func (b *builder) policy(field, value string) service.Policy {
	switch value {
	case "Local":
		return service.PolicyLocal
	case "", "Cluster":
	default:
		b.notes.add(field, "%.80q is not Cluster or Local; taken as Cluster", value)
	}
	return service.PolicyCluster
}

// maxAffinity is the API's limit in seconds: one day.
const maxAffinity = 86400

func (b *builder) affinity() time.Duration {
	spec := &b.service.Spec
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
	case "", corev1.ServiceAffinityNone:
		return 0
	default:
		b.notes.add("spec.sessionAffinity", "%.80q is not ClientIP or None; taken as None", spec.SessionAffinity)
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if t := *c.ClientIP.TimeoutSeconds; t >= 1 && t <= maxAffinity {
			seconds = t
		} else {
			b.notes.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds",
				"%d is not between 1 and %d; taken as %d", t, maxAffinity, seconds)
		}
	}
	return time.Duration(seconds) * time.Second
}

func (b *builder) name(i int) (service.PortName, bool) {
	p := &b.service.Spec.Ports[i]
	if p.Port < 1 || p.Port > 65535 {
		b.notes.add(at("spec.ports", i)+".port", "%d is not a port: want 1 to 65535", p.Port)
		return service.PortName{}, false
	}
	proto, ok := protocolOf(p.Protocol)
	if !ok {
		b.notes.add(at("spec.ports", i)+".protocol", "%.80q is not TCP, UDP or SCTP", p.Protocol)
		return service.PortName{}, false
	}
	return service.PortName{
		Namespace: b.interner.intern(b.service.Namespace),
		Name:      b.service.Name,
		Port:      b.interner.intern(p.Name),
		Protocol:  proto,
	}, true
}

func protocolOf(p corev1.Protocol) (service.Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return service.TCP, true
	case corev1.ProtocolUDP:
		return service.UDP, true
	case corev1.ProtocolSCTP:
		return service.SCTP, true
	}
	return 0, false
}

// frontends lists the addresses of port i in p's family, by kind and address. One that is both a
// load balancer's and an external IP is the former, so that its source ranges apply.
func (b *builder) frontends(i int, p *service.Port) []service.Frontend {
	spec, number := &b.service.Spec.Ports[i], uint16(b.service.Spec.Ports[i].Port)
	path := at("spec.ports", i)
	list := make([]service.Frontend, 0, 1)
	add := func(kind service.Kind, addr netip.Addr, port uint16, sources []netip.Prefix) {
		f := service.Frontend{Kind: kind, Addr: addr, Port: port, Sources: sources}
		a := p.Address(f)
		if first, dup := b.taken[a]; !dup {
			b.taken[a] = path
			list = append(list, f)
		} else if first != path {
			b.notes.add(path, "%s is already served by %s", describe(p, f), first)
		}
	}
	if a := b.cluster[p.Family]; a.IsValid() {
		add(service.ClusterIP, a, number, nil)
	}
	switch n := spec.NodePort; {
	case !b.nodePorts || n == 0:
	case n < 0 || n > 65535:
		if p.Family == service.IPv4 || !b.serves[service.IPv4] { // once for both families
			b.notes.add(path+".nodePort", "%d is not a port: want 1 to 65535", n)
		}
	default:
		add(service.NodePort, netip.Addr{}, uint16(n), nil)
	}
	for _, a := range b.balancer[p.Family] {
		add(service.LoadBalancerIP, a, number, b.sources[p.Family])
	}
	for _, a := range b.external[p.Family] {
		add(service.ExternalIP, a, number, nil)
	}
	slices.SortFunc(list, compareFrontends)
	return list
}

func compareFrontends(a, b service.Frontend) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Addr.Compare(b.Addr))
}

// describe names a frontend of p in messages.
func describe(p *service.Port, f service.Frontend) string {
	if f.Kind == service.NodePort {
		return fmt.Sprintf("%s %s %d/%s", p.Family, f.Kind, f.Port, p.Name.Protocol)
	}
	return fmt.Sprintf("%s %s/%s", f.Kind, netip.AddrPortFrom(f.Addr, f.Port), p.Name.Protocol)
}

// addresses reads the Service's addresses and its load balancer's source ranges.
func (b *builder) addresses() {
	spec := &b.service.Spec
	b.nodePorts = spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
	b.clusterIPs()
	if !b.ignoreExternal {
		for i, s := range spec.ExternalIPs {
			a, err := parseAddr(s)
			b.addExternal(&b.external, at("spec.externalIPs", i), a, err)
		}
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	for i := range b.service.Status.LoadBalancer.Ingress {
		b.ingress(at("status.loadBalancer.ingress", i), &b.service.Status.LoadBalancer.Ingress[i])
	}
	if len(spec.LoadBalancerSourceRanges) > 0 {
		b.sourceRanges()
	}
}

// clusterIPs determines the families, also by a ClusterIP that cannot be parsed.
func (b *builder) clusterIPs() {
	spec := &b.service.Spec
	list, one := spec.ClusterIPs, [1]string{spec.ClusterIP}
	if len(list) == 0 {
		list = one[:]
	}
	for i, s := range list {
		a, err := parseAssigned(s)
		if err != nil {
			b.notes.add(at("spec.clusterIPs", i), "%v", err)
			if i < len(spec.IPFamilies) {
				b.serves[familyOf(spec.IPFamilies[i])] = true
			}
			continue
		}
		f := service.FamilyOf(a)
		if b.cluster[f].IsValid() {
			b.notes.add(at("spec.clusterIPs", i), "%.80q is a second %s address; want one of each family", s, f)
			continue
		}
		b.serves[f], b.cluster[f] = true, a
	}
}

func familyOf(f corev1.IPFamily) service.Family {
	if f == corev1.IPv6Protocol {
		return service.IPv6
	}
	return service.IPv4
}

// addExternal adds an address other than a ClusterIP to its family's list.
func (b *builder) addExternal(to *[2][]netip.Addr, field string, a netip.Addr, err error) {
	if err != nil {
		b.notes.add(field, "%v", err)
		return
	}
	f := service.FamilyOf(a)
	if !b.serves[f] {
		b.notes.add(field, "%q is %s, which the Service does not have", a, f)
		return
	}
	to[f] = append(to[f], a)
}

func (b *builder) ingress(field string, in *corev1.LoadBalancerIngress) {
	if in.IP == "" {
		return // a host name, which is not ours to resolve
	}
	if mode := in.IPMode; mode != nil && *mode != corev1.LoadBalancerIPModeVIP {
		if *mode != corev1.LoadBalancerIPModeProxy {
			b.notes.add(field+".ipMode", "%.80q is not VIP or Proxy; the address is left out", *mode)
		} else if a, err := parseAssigned(in.IP); err == nil {
			b.left = append(b.left, a)
		}
		return
	}
	a, err := parseAssigned(in.IP)
	b.addExternal(&b.balancer, field+".ip", a, err)
}

// sourceRanges reads which clients may use the load balancer. Ranges express a limit: a family
// without a usable one admits nobody, and only one of length zero opens it. The annotation
// service.beta.kubernetes.io/load-balancer-source-ranges is for cloud providers.
func (b *builder) sourceRanges() {
	var ranges [2][]netip.Prefix
	var open [2]bool
	for i, s := range b.service.Spec.LoadBalancerSourceRanges {
		p, err := parsePrefix(s)
		if err != nil {
			b.notes.add(at("spec.loadBalancerSourceRanges", i), "%v", err)
			continue
		}
		f := service.FamilyOf(p.Addr())
		ranges[f] = append(ranges[f], p)
		open[f] = open[f] || p.Bits() == 0
	}
	for _, f := range service.Families {
		switch {
		case open[f]:
		case len(ranges[f]) > 0:
			b.sources[f] = collapse(ranges[f])
		case open[1-f]:
		default:
			b.sources[f] = []netip.Prefix{}
			if len(b.balancer[f]) > 0 {
				b.notes.add("spec.loadBalancerSourceRanges",
					"no usable %s range, so no %s client may connect to the load balancer", f, f)
			}
		}
	}
}

// maxEndpoints bounds the endpoints of one Port.
const maxEndpoints = 1 << 16

// candidate is a possible endpoint of one Port.
type candidate struct {
	addr  netip.AddrPort
	state state
}

// chooser picks the endpoints of one Port after another and reuses its memory.
type chooser struct {
	zone       string // of this node, "" while unknown
	candidates []candidate
	cluster    []service.Endpoint
	local      []service.Endpoint
	draining   []service.Endpoint
	listed     []netip.Addr
	excess     int // how many did not fit
	// wantCluster and wantLocal are the states that put a candidate into cluster and local.
	wantCluster, wantLocal state
	filled                 *service.Port // the Port that the lists are for, or nil
	from                   []origin      // where its endpoints come from
	// silent endpoints are treated by policy; protocol is of the Port.
	silent   map[service.Address]time.Time
	policy   Silent
	protocol service.Protocol
}

// fill fills the lists for p from the slices in from, and returns how many did not fit. Ports of a
// Service with the same endpoints but for the number reuse the lists of the one before.
func (c *chooser) fill(p *service.Port, from []origin, listed bool) (excess int) {
	if c.reusable(p, from) {
		port := from[0].port
		for _, list := range [...][]service.Endpoint{c.cluster, c.local, c.draining} {
			for i := range list {
				list[i].Addr = netip.AddrPortFrom(list[i].Addr.Addr(), port)
			}
		}
		return c.excess
	}
	c.gather(from)
	c.excess = c.choose(p)
	if listed {
		c.pickListed()
	}
	c.filled, c.from = p, append(c.from[:0], from...)
	return c.excess
}

// reusable reports whether the lists are right for p, except for the port number.
func (c *chooser) reusable(p *service.Port, from []origin) bool {
	q := c.filled
	if q == nil || c.leavesOut() || len(from) == 0 || len(from) != len(c.from) ||
		p.Internal != q.Internal || p.External != q.External || (p.Name.Protocol == service.UDP) != (q.Name.Protocol == service.UDP) {
		return false
	}
	for i, s := range from {
		if s.slice != c.from[i].slice || s.port != from[0].port || c.from[i].port != c.from[0].port {
			return false
		}
	}
	return true
}

// invalidate must be called when slices have changed.
func (c *chooser) invalidate() {
	clear(c.from)
	c.filled, c.from = nil, c.from[:0]
}

// gather collects the endpoints of slices, sorted by address and without duplicates. An
// endpoint that moves between slices can be in both for a moment. The copy with the
// longest expected life counts. See
// https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/#duplicate-endpoints.
func (c *chooser) gather(from []origin) {
	c.candidates = c.candidates[:0]
	for _, s := range from {
		c.add(s.slice, s.port)
	}
	slices.SortFunc(c.candidates, func(a, b candidate) int {
		if c := a.addr.Compare(b.addr); c != 0 {
			return c
		}
		return b.state.rank() - a.state.rank()
	})
	c.candidates = slices.CompactFunc(c.candidates, func(a, b candidate) bool { return a.addr == b.addr })
}

// rank orders copies of one endpoint. Those that do not terminate come before those that
// do. Then ready, serving and local ones come first. The rest has a fixed order.
func (s state) rank() int {
	r := int(s)
	for i, fact := range [...]state{local, serving, ready} {
		if s.has(fact) {
			r |= 1 << (16 + i)
		}
	}
	if !s.has(terminating) {
		r |= 1 << 20
	}
	return r
}

func (c *chooser) add(s *slice, port uint16) {
	for i, e := range s.endpoints {
		st := e.state
		if e.hint > 0 && c.zone != "" && listContains(s.zones[e.hint-1], c.zone) {
			st |= forZone
		}
		c.candidates = append(c.candidates, candidate{netip.AddrPortFrom(s.addr(i), port), st})
	}
}

// listContains reports whether a comma-separated list contains item.
func listContains(list, item string) bool { return slices.Contains(strings.Split(list, ","), item) }

// choose fills cluster and draining, and local if p needs it, and returns how many did not fit.
func (c *chooser) choose(p *service.Port) int {
	c.cluster, c.wantCluster = c.firstOf(c.cluster, c.topology()|ready, serving|terminating)
	c.local, c.wantLocal = c.local[:0], 0
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		c.local, c.wantLocal = c.firstOf(c.local, local|ready, local|serving|terminating)
	}
	c.protocol = p.Name.Protocol
	c.cluster, c.local = c.leaveOut(p, c.cluster), c.leaveOut(p, c.local)
	c.pickDraining(p)
	excess := max(len(c.cluster), len(c.local)) - maxEndpoints
	c.cluster = c.cluster[:min(len(c.cluster), maxEndpoints)]
	c.local = c.local[:min(len(c.local), maxEndpoints)]
	return max(excess, 0)
}

// pickDraining fills draining with endpoints that serve and were not picked, in order, for UDP: its
// flows have no end of their own, so the proxy decides when to cut them.
func (c *chooser) pickDraining(p *service.Port) {
	c.draining = c.draining[:0]
	if p.Name.Protocol != service.UDP {
		return
	}
	c.draining = c.pick(c.draining, serving)
	rest, more := c.cluster, c.local
	c.draining = slices.DeleteFunc(c.draining, func(e service.Endpoint) bool {
		_, picked := c.silent[service.AddressOf(service.UDP, e.Addr)]
		picked = picked && c.leavesOut()
		for _, list := range []*[]service.Endpoint{&rest, &more} {
			for len(*list) > 0 && (*list)[0].Addr.Compare(e.Addr) <= 0 {
				picked = picked || (*list)[0].Addr == e.Addr
				*list = (*list)[1:]
			}
		}
		return picked
	})
}

// pickListed fills listed with what choose left out, in the order of candidates, but addresses of
// this node, of which the network plugin keeps the objects.
func (c *chooser) pickListed() {
	c.listed = c.listed[:0]
	picked, more := c.cluster, c.local
	for _, e := range c.candidates {
		chosen := false
		for _, list := range []*[]service.Endpoint{&picked, &more} {
			for len(*list) > 0 && (*list)[0].Addr.Compare(e.addr) < 0 {
				*list = (*list)[1:]
			}
			chosen = chosen || len(*list) > 0 && (*list)[0].Addr == e.addr
		}
		if a := e.addr.Addr(); !chosen && !e.state.has(local) && (len(c.listed) == 0 || c.listed[len(c.listed)-1] != a) {
			c.listed = append(c.listed, a)
		}
	}
}

// topology returns the state that makes an endpoint preferred here. Hints count only if all ready
// endpoints have them and one matches, so a partial view leaves no node without endpoints. Those
// for nodes precede those for zones:
// https://kubernetes.io/docs/concepts/services-networking/topology-aware-routing/.
func (c *chooser) topology() state {
	all, some := c.readyHints()
	switch {
	case all.has(nodeHints) && some.has(forNode):
		return forNode
	case all.has(zoneHints) && some.has(forZone):
		return forZone
	}
	return 0
}

// readyHints returns the hints that every ready endpoint has, and what any of them has.
func (c *chooser) readyHints() (all, some state) {
	all = nodeHints | zoneHints
	for _, e := range c.candidates {
		if e.state.has(ready) {
			all &= e.state
			some |= e.state
		}
	}
	return all, some
}

// firstOf replaces the contents of list with the candidates that have all of best, or if
// there is none, all of second. It also returns which of the two.
func (c *chooser) firstOf(list []service.Endpoint, best, second state) ([]service.Endpoint, state) {
	if list = c.pick(list, best); len(list) > 0 {
		return list, best
	}
	return c.pick(list, second), second
}

// pick replaces the contents of list with the candidates that have all of want.
func (c *chooser) pick(list []service.Endpoint, want state) []service.Endpoint {
	list = list[:0]
	for _, e := range c.candidates {
		if e.state.has(want) {
			list = append(list, service.Endpoint{
				Addr:   e.addr,
				Local:  e.state.has(local),
				Remote: e.state.has(remote),
			})
		}
	}
	return list
}

// shrink releases the memory of an unusually large Port.
func (c *chooser) shrink() {
	if cap(c.candidates) > 4096 {
		*c = chooser{zone: c.zone}
	}
}
