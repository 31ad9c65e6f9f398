// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/common/service"
)

// slice is what is kept of an EndpointSlice, compact: there is one for ten endpoints.
type slice struct {
	*sliceLayout // shared, so read-only
	owner        *serviceState
	name         string
	addrs        []byte // 4 or 16 bytes each
	endpoints    []endpoint
}

// sliceLayout is what many slices have in common, so that they can share it.
type sliceLayout struct {
	family service.Family
	ports  []targetPort
	zones  []string // hints, comma-separated because zones contain no comma
	notes  []note
	// otherProxy means that the slice has the label of a Service of a proxy with a name.
	otherProxy bool
}

// endpoint is one entry of a slice, without its address.
type endpoint struct {
	hint  uint32 // 1 + index into zones, 0 without zone hints
	state state
	// place is an index into the interner's places. It only explains.
	place uint16
}

// place is where an endpoint runs, as far as its slice says.
type place struct{ node, zone string }

// state is a set of properties of an endpoint.
type state uint16

const (
	ready state = 1 << iota
	serving
	terminating
	local     // on this node
	remote    // on another node
	nodeHints // it has hints for nodes
	forNode   // one of them names this node
	zoneHints // it has hints for zones
	forZone   // one of them names this node's zone; never kept in a slice
)

func (s state) has(all state) bool { return s&all == all }

type targetPort struct {
	name  string
	port  uint16
	proto service.Protocol
}

// width returns the bytes per address in addrs.
func (s *slice) width() int {
	if s.family == service.IPv6 {
		return 16
	}
	return 4
}

func (s *slice) addr(i int) netip.Addr {
	w := s.width()
	a, _ := netip.AddrFromSlice(s.addrs[i*w : (i+1)*w])
	return a
}

// localReady counts ready addresses of this node by family, for a Service with a health check.
func (s *serviceState) localReady() [2]int {
	var n [2]int
	if len(s.want) == 0 || s.want[0].HealthCheck == 0 {
		return n
	}
	seen := map[netip.Addr]bool{}
	for _, x := range s.slices {
		for i, e := range x.endpoints {
			if a := x.addr(i); e.state.has(local|ready) && !e.state.has(terminating) && !seen[a] {
				seen[a] = true
				n[x.family]++
			}
		}
	}
	return n
}

// same reports whether both are equal, except for owner, name and places.
func (s *slice) same(t *slice) bool {
	return s.family == t.family &&
		bytes.Equal(s.addrs, t.addrs) &&
		slices.EqualFunc(s.endpoints, t.endpoints, func(a, b endpoint) bool { return a.state == b.state && a.hint == b.hint }) &&
		slices.Equal(s.ports, t.ports) &&
		slices.Equal(s.zones, t.zones) &&
		slices.Equal(s.notes, t.notes)
}

// relevant reports whether s can have endpoints of a proxied Service.
func relevant(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels[corev1.IsHeadlessService]
	return !headless && s.Labels[discoveryv1.LabelServiceName] != "" &&
		s.AddressType != discoveryv1.AddressTypeFQDN
}

// packer turns an EndpointSlice into a slice.
type packer struct {
	node     string // own, normalized
	interner *interner
	out      *slice
	notes    notes
	hints    map[string]uint32
}

func (p *packer) pack(from *discoveryv1.EndpointSlice) *slice {
	p.out = &slice{sliceLayout: &sliceLayout{}, name: from.Name}
	switch from.AddressType {
	case discoveryv1.AddressTypeIPv4:
	case discoveryv1.AddressTypeIPv6:
		p.out.family = service.IPv6
	default:
		p.notes.add(p.field("addressType"), "%.80q is not IPv4, IPv6 or FQDN; the slice is ignored", from.AddressType)
		p.out.notes = p.notes.all()
		return p.out
	}
	_, p.out.otherProxy = from.Labels[LabelProxyName]
	p.ports(from.Ports)
	p.out.endpoints = make([]endpoint, 0, len(from.Endpoints))
	p.out.addrs = make([]byte, 0, len(from.Endpoints)*p.out.width())
	for i := range from.Endpoints {
		p.endpoint(i, &from.Endpoints[i])
	}
	p.out.notes = p.notes.all()
	p.out.sliceLayout = p.interner.internLayout(p.out.sliceLayout)
	return p.out
}

// field returns the path of a field in the present slice.
func (p *packer) field(path string) string { return "endpointslice " + p.out.name + " " + path }

func (p *packer) ports(from []discoveryv1.EndpointPort) {
	for i, port := range from {
		if port.Port == nil {
			p.notes.add(p.field(at("ports", i)+".port"), "not set, which stands for all ports and cannot be served: want 1 to 65535")
			continue
		}
		if *port.Port < 1 || *port.Port > 65535 {
			p.notes.add(p.field(at("ports", i)+".port"), "%d is not a port: want 1 to 65535", *port.Port)
			continue
		}
		proto := corev1.ProtocolTCP
		if port.Protocol != nil {
			proto = *port.Protocol
		}
		number, ok := protocolOf(proto)
		if !ok {
			p.notes.add(p.field(at("ports", i)+".protocol"), "%.80q is not TCP, UDP or SCTP", proto)
			continue
		}
		t := targetPort{port: uint16(*port.Port), proto: number}
		if port.Name != nil {
			t.name = p.interner.intern(*port.Name)
		}
		p.out.ports = append(p.out.ports, t)
	}
}

func (p *packer) endpoint(i int, from *discoveryv1.Endpoint) {
	if len(from.Addresses) == 0 {
		p.notes.add(p.field(at("endpoints", i)+".addresses"), "no address")
		return
	}
	// The API means all addresses of an endpoint to be interchangeable, and clients may
	// use the first one only: kubernetes/kubernetes#106267.
	addr, err := parseAddr(from.Addresses[0])
	if err != nil {
		p.notes.add(p.field(at("endpoints", i)+".addresses[0]"), "%v", err)
		return
	}
	if f := service.FamilyOf(addr); f != p.out.family {
		p.notes.add(p.field(at("endpoints", i)+".addresses[0]"), "%.80q is %s in a slice of %s", from.Addresses[0], f, p.out.family)
		return
	}
	e := endpoint{place: p.interner.internPlace(placeOf(from)), state: p.condition(from.Conditions) | p.location(from.NodeName)}
	if from.Hints != nil {
		e.state |= p.nodes(from.Hints.ForNodes)
		if e.hint = p.zones(from.Hints.ForZones); e.hint > 0 {
			e.state |= zoneHints
		}
	}
	p.out.endpoints = append(p.out.endpoints, e)
	p.out.addrs = append(p.out.addrs, addr.AsSlice()...)
}

// condition applies the API's defaults: ready, serving and not terminating.
func (p *packer) condition(c discoveryv1.EndpointConditions) state {
	var s state
	if c.Ready == nil || *c.Ready {
		s |= ready
	}
	if c.Serving == nil || *c.Serving {
		s |= serving
	}
	if c.Terminating != nil && *c.Terminating {
		s |= terminating
	}
	return s
}

func (p *packer) location(node *string) state {
	switch {
	case node == nil || strings.TrimSpace(*node) == "":
		return 0
	case normalize(*node) == p.node:
		return local
	}
	return remote
}

func placeOf(from *discoveryv1.Endpoint) place {
	var at place
	if from.NodeName != nil {
		at.node = *from.NodeName
	}
	if from.Zone != nil {
		at.zone = *from.Zone
	}
	return at
}

func (p *packer) nodes(hints []discoveryv1.ForNode) state {
	if len(hints) == 0 {
		return 0
	}
	named := func(n discoveryv1.ForNode) bool { return normalize(n.Name) == p.node }
	if p.node != "" && slices.ContainsFunc(hints, named) {
		return nodeHints | forNode
	}
	return nodeHints
}

func (p *packer) zones(hints []discoveryv1.ForZone) uint32 {
	if len(hints) == 0 {
		return 0
	}
	all := hints[0].Name
	for _, z := range hints[1:] {
		all += "," + z.Name
	}
	if i, ok := p.hints[all]; ok {
		return i
	}
	if p.hints == nil {
		p.hints = map[string]uint32{}
	}
	p.out.zones = append(p.out.zones, p.interner.intern(all))
	p.hints[all] = uint32(len(p.out.zones))
	return p.hints[all]
}

// normalize makes node names comparable: some report upper case, and flags may have spaces.
func normalize(node string) string { return strings.ToLower(strings.TrimSpace(node)) }

// interner shares frequent values: namespaces, port names, zones and layouts of slices.
type interner struct {
	seen    map[string]string
	layouts map[string]*sliceLayout
	key     []byte // scratch memory of internLayout

	places     []place // the first one is unknown
	placeIndex map[place]uint16
}

// maxInterned bounds the memory that names of deleted objects occupy.
const maxInterned = 4096

func (in *interner) intern(s string) string {
	if s == "" {
		return ""
	}
	if have, ok := in.seen[s]; ok {
		return have
	}
	if in.seen == nil || len(in.seen) >= maxInterned {
		in.seen = map[string]string{}
	}
	s = strings.Clone(s)
	in.seen[s] = s
	return s
}

// internLayout returns k or an equal layout that is known. Those with notes are not shared.
func (in *interner) internLayout(k *sliceLayout) *sliceLayout {
	if len(k.notes) > 0 {
		return k
	}
	in.key = append(in.key[:0], byte(k.family))
	if k.otherProxy {
		in.key = append(in.key, '!')
	}
	for _, p := range k.ports {
		in.key = append(strconv.AppendQuote(in.key, p.name), byte(p.proto), byte(p.port>>8), byte(p.port))
	}
	for _, z := range k.zones {
		in.key = strconv.AppendQuote(append(in.key, 0), z)
	}
	if have := in.layouts[string(in.key)]; have != nil {
		return have
	}
	if in.layouts == nil || len(in.layouts) >= maxInterned {
		in.layouts = map[string]*sliceLayout{}
	}
	in.layouts[string(in.key)] = k
	return k
}

// internPlace returns the index of at in places. When the table is full, others are unknown.
func (in *interner) internPlace(at place) uint16 {
	if i, ok := in.placeIndex[at]; ok {
		return i
	}
	if in.places == nil {
		in.places, in.placeIndex = []place{{}}, map[place]uint16{{}: 0}
		return in.internPlace(at)
	}
	if len(in.places) > math.MaxUint16 {
		return 0
	}
	at = place{strings.Clone(at.node), strings.Clone(at.zone)}
	in.placeIndex[at] = uint16(len(in.places))
	in.places = append(in.places, at)
	return in.placeIndex[at]
}
