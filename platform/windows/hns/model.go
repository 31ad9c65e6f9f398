// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// model is what HNS holds, according to a listing and the changes since. A fork shows the
// result of further changes and does not affect the original.
type model struct {
	base      *model                   // nil if this is no fork
	network   string                   // ID; addresses are looked up in this network only
	endpoints map[string]*Endpoint     // by ID, nil if deleted
	balancers map[string]*LoadBalancer // by ID, nil if deleted
	keys      map[Key]string           // the ID of the load balancer, empty if deleted
	local     map[netip.Addr]string    // the ID of the local endpoint
	remote    map[netip.Addr]string    // the ID of the remote endpoint
	refs      map[string]int           // number of load balancers of any owner, by endpoint ID
	names     map[string]string        // of networks, by ID
}

func emptyModel(base *model, network string) *model {
	return &model{
		base: base, network: network,
		endpoints: map[string]*Endpoint{}, balancers: map[string]*LoadBalancer{}, keys: map[Key]string{},
		local: map[netip.Addr]string{}, remote: map[netip.Addr]string{}, refs: map[string]int{},
	}
}

func newModel(l Listing, network string) *model {
	m := emptyModel(nil, network)
	m.names = map[string]string{}
	for _, n := range l.Networks {
		m.names[n.ID] = n.Name
	}
	for i := range l.Endpoints {
		m.putEndpoint(&l.Endpoints[i])
	}
	for i := range l.LoadBalancers {
		m.putBalancer(&l.LoadBalancers[i])
	}
	return m
}

// fork returns a model that starts as m. Changes to it do not affect m.
func (m *model) fork() *model { return emptyModel(m, m.network) }

// withEndpoints returns m with a new listing of endpoints. m must not be a fork.
func (m *model) withEndpoints(all []Endpoint) *model {
	next := emptyModel(nil, m.network)
	next.balancers, next.keys, next.refs, next.names = m.balancers, m.keys, m.refs, m.names
	for i := range all {
		next.putEndpoint(&all[i])
	}
	return next
}

func (m *model) endpoint(id string) *Endpoint {
	for ; m != nil; m = m.base {
		if e, ok := m.endpoints[id]; ok {
			return e
		}
	}
	return nil
}

func (m *model) balancer(k Key) *LoadBalancer {
	for at := m; at != nil; at = at.base {
		if id, ok := at.keys[k]; ok {
			return m.balancerByID(id)
		}
	}
	return nil
}

func (m *model) balancerByID(id string) *LoadBalancer {
	for ; m != nil; m = m.base {
		if lb, ok := m.balancers[id]; ok {
			return lb
		}
	}
	return nil
}

func (m *model) refCount(id string) int {
	for ; m != nil; m = m.base {
		if n, ok := m.refs[id]; ok {
			return n
		}
	}
	return 0
}

// endpointAt returns the local or remote endpoint of the network with address a, or nil.
func (m *model) endpointAt(a netip.Addr, w Location) *Endpoint {
	for at := m; at != nil; at = at.base {
		index := at.remote
		if w == Local {
			index = at.local
		}
		if id, ok := index[a]; ok {
			return m.endpoint(id)
		}
	}
	return nil
}

// listed returns the model that m is a fork of, which has what was listed.
func (m *model) listed() *model {
	for m.base != nil {
		m = m.base
	}
	return m
}

// endpointNamed returns the endpoint of the network with this name, or nil. It uses only
// listed endpoints.
func (m *model) endpointNamed(name string) *Endpoint {
	for _, e := range m.listed().endpoints {
		if e != nil && e.Name == name && e.Network == m.network {
			return e
		}
	}
	return nil
}

// setEntry sets v under k. The zero value means that the entry is deleted, which only a
// fork must store.
func setEntry[K, V comparable](m *model, of map[K]V, k K, v V) {
	var none V
	if v == none && m.base == nil {
		delete(of, k)
		return
	}
	of[k] = v
}

// elsewhere returns the network in which a pod has address a, the one of m aside, empty if none is listed.
func (m *model) elsewhere(a netip.Addr) string {
	for _, e := range m.listed().endpoints {
		if e != nil && e.usedByPod() && e.Network != m.network && e.HasAddr(a) {
			return cmp.Or(m.names[e.Network], e.Network)
		}
	}
	return ""
}

// moved reports whether the local endpoint with address a is in another network, and the
// network of m has no local endpoints. It uses only listed endpoints.
func (m *model) moved(a netip.Addr) bool {
	m = m.listed()
	if len(m.local) > 0 {
		return false
	}
	for _, e := range m.endpoints {
		if e != nil && !e.Remote && e.Network != m.network && e.HasAddr(a) {
			return true
		}
	}
	return false
}

func (m *model) index(e *Endpoint, id string) {
	if e.Network != m.network {
		return
	}
	for _, a := range e.Addrs {
		if e.Remote {
			setEntry(m, m.remote, a, id)
		} else {
			setEntry(m, m.local, a, id)
		}
	}
}

func (m *model) putEndpoint(e *Endpoint) {
	m.endpoints[e.ID] = e
	m.index(e, e.ID)
}

func (m *model) removeEndpoint(e *Endpoint) {
	setEntry(m, m.endpoints, e.ID, nil)
	m.index(e, "")
}

func (m *model) putBalancer(lb *LoadBalancer) {
	m.balancers[lb.ID] = lb
	for _, k := range append([]Key{lb.Key}, lb.ExtraKeys...) {
		m.keys[k] = lb.ID
	}
	for _, id := range lb.Endpoints {
		m.refs[id] = m.refCount(id) + 1
	}
}

func (m *model) removeBalancer(lb *LoadBalancer) {
	setEntry(m, m.balancers, lb.ID, nil)
	for _, k := range append([]Key{lb.Key}, lb.ExtraKeys...) {
		setEntry(m, m.keys, k, "")
	}
	for _, id := range lb.Endpoints {
		setEntry(m, m.refs, id, m.refCount(id)-1)
	}
}

// changeBalancer replaces from by lb, which has the same ID and key, and no further keys.
// Its cost is proportional to the endpoints that change.
func (m *model) changeBalancer(from, lb *LoadBalancer) {
	m.balancers[lb.ID] = lb
	for _, id := range notIn(from.Endpoints, lb.Endpoints) {
		setEntry(m, m.refs, id, m.refCount(id)-1)
	}
	for _, id := range notIn(lb.Endpoints, from.Endpoints) {
		m.refs[id] = m.refCount(id) + 1
	}
}

// sortedBalancers returns the load balancers for which fit returns true, in key order.
func (m *model) sortedBalancers(fit func(*LoadBalancer) bool) []*LoadBalancer {
	var all []*LoadBalancer
	for at := m; at != nil; at = at.base {
		for id, lb := range at.balancers {
			if lb != nil && fit(lb) && m.balancerByID(id) == lb {
				all = append(all, lb)
			}
		}
	}
	slices.SortFunc(all, func(a, b *LoadBalancer) int { return a.Key.Compare(b.Key) })
	return all
}

// balancersOf returns the load balancers of a family in key order.
func (m *model) balancersOf(f service.Family) []*LoadBalancer {
	return m.sortedBalancers(func(lb *LoadBalancer) bool { return lb.Family == f })
}

// balancersUsing returns the load balancers that have one of the endpoints, in key order.
func (m *model) balancersUsing(of map[string]bool) []*LoadBalancer {
	return m.sortedBalancers(func(lb *LoadBalancer) bool {
		return slices.ContainsFunc(lb.Endpoints, func(id string) bool { return of[id] })
	})
}

// sortedRemotes returns the network's remote endpoints with an address of family f, in
// address order. m must not be a fork.
func (m *model) sortedRemotes(f service.Family) []*Endpoint {
	var all []*Endpoint
	for _, e := range m.endpoints {
		if e != nil && e.Remote && e.Network == m.network && len(e.Addrs) > 0 && service.FamilyOf(e.Addrs[0]) == f {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *Endpoint) int { return a.Addrs[0].Compare(b.Addrs[0]) })
	return all
}

// Kind is the type of an HNS network, in HNS's terms.
type Kind string

// The types of networks for Kubernetes pods.
const (
	Overlay  Kind = "Overlay"
	L2Bridge Kind = "L2Bridge"
	L2Tunnel Kind = "L2Tunnel"
)

// Kinds lists the types that this package supports.
var Kinds = []Kind{Overlay, L2Bridge, L2Tunnel}

// Network is an HNS network.
type Network struct {
	ID, Name string
	Kind     Kind
	Subnets  []netip.Prefix
	Gateways []netip.Addr
	// Routes lead to the pods of other nodes on an overlay network.
	Routes []Route
	// Provider is the node's own address under an overlay network, the zero value if HNS
	// does not provide it.
	Provider netip.Addr
}

// Route is the node's address through which the pods of a subnet are reached.
type Route struct {
	Subnet   netip.Prefix
	Provider netip.Addr
}

// Endpoint is an address in HNS. The network plugin creates the endpoints of local pods.
// This package creates remote ones for every other destination of a load balancer.
type Endpoint struct {
	ID      string // assigned by HNS, in lower case
	Name    string
	Network string       // its ID
	Addrs   []netip.Addr // empty in a request: HNS chooses
	MAC     string       // six hexadecimal bytes with dashes
	// Provider is the node to send to on an overlay network.
	Provider netip.Addr
	Remote   bool
	// HasNamespace means that the endpoint belongs to a namespace.
	HasNamespace bool
	// LoopbackDSR means that the network plugin has prepared the pod for connections to itself through a load balancer
	// with direct server return (https://www.cni.dev/plugins/current/main/win-bridge/, loopbackDSR).
	LoopbackDSR bool
}

// HasAddr reports whether e has the address a.
func (e *Endpoint) HasAddr(a netip.Addr) bool { return slices.Contains(e.Addrs, a) }

// inFamily reports whether e has an address of family f.
func (e *Endpoint) inFamily(f service.Family) bool {
	return slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return service.FamilyOf(a) == f })
}

// Key is what HNS matches packets by. HNS permits only one load balancer with a key.
type Key struct {
	VIP      netip.Addr // the zero value for a NodePort
	Family   service.Family
	Port     uint16
	Protocol service.Protocol
}

// Compare orders keys by family, address, port and protocol.
func (k Key) Compare(l Key) int {
	return cmp.Or(cmp.Compare(k.Family, l.Family), k.VIP.Compare(l.VIP), cmp.Compare(k.Port, l.Port), cmp.Compare(k.Protocol, l.Protocol))
}

// String returns "tcp 10.96.0.10:80", or "tcp node:30080" for a NodePort, with "node6"
// for IPv6.
func (k Key) String() string {
	switch {
	case k.VIP.IsValid():
		return fmt.Sprintf("%s %s", k.Protocol, netip.AddrPortFrom(k.VIP, k.Port))
	case k.Family == service.IPv6:
		return fmt.Sprintf("%s node6:%d", k.Protocol, k.Port)
	}
	return fmt.Sprintf("%s node:%d", k.Protocol, k.Port)
}

// PortFlags are the flags of a port mapping, with HNS's values (microsoft/hcsshim,
// hcn/hcnloadbalancer.go, and kubernetes/kubernetes#113742 for VIPExternalIP).
type PortFlags uint32

// The flags that this package sets or recognises. ClusterIPs have none, as in kube-proxy.
const (
	ILB            PortFlags = 1  // undocumented, and never set here
	LocalRoutedVIP PortFlags = 2  // the node itself may connect
	UseMux         PortFlags = 4  // NodePorts with direct server return
	PreserveDIP    PortFlags = 8  // pods receive packets with the original destination
	VIPExternalIP  PortFlags = 16 // the address is from outside of the cluster
)

// flagWords names the flags for people.
var flagWords = []struct {
	flag PortFlags
	word string
}{{ILB, "internal"}, {LocalRoutedVIP, "local-routed"}, {UseMux, "mux"}, {PreserveDIP, "preserve-destination"}, {VIPExternalIP, "external"}}

// Distribution is how HNS assigns connections to endpoints, with HNS's values.
type Distribution uint32

// The distributions.
const (
	DistributionNone             Distribution = 0
	DistributionSourceIPProtocol Distribution = 1
	DistributionSourceIP         Distribution = 2 // by client address
)

// LoadBalancer is an HNS load balancer. HNS gives it no name.
type LoadBalancer struct {
	ID string // assigned by HNS, in lower case
	Key
	TargetPort   uint16
	Endpoints    []string // IDs, sorted, without duplicates
	SourceVIP    netip.Addr
	DSR          bool
	Flags        PortFlags
	Distribution Distribution
	// Kind is the kind of its frontend, as far as this process knows. HNS does not store
	// it.
	Kind service.Kind
	// ExtraKeys are further keys. Unsupported marks properties that this package cannot
	// express. Our own load balancers have neither.
	ExtraKeys   []Key
	Unsupported bool
}

// equal reports whether a and b have the same effect. Only the ID may differ.
func (lb *LoadBalancer) equal(b *LoadBalancer) bool {
	return lb.Key == b.Key && lb.TargetPort == b.TargetPort && slices.Equal(lb.Endpoints, b.Endpoints) &&
		lb.SourceVIP == b.SourceVIP && lb.DSR == b.DSR && lb.Flags == b.Flags && lb.Distribution == b.Distribution &&
		len(lb.ExtraKeys) == 0 && len(b.ExtraKeys) == 0 && lb.Unsupported == b.Unsupported
}

// describe returns a text about lb without its key and endpoints.
func (lb *LoadBalancer) describe() string {
	var w []string
	w = append(w, fmt.Sprintf("-> :%d", lb.TargetPort))
	for _, f := range flagWords {
		if lb.Flags&f.flag != 0 {
			w = append(w, f.word)
		}
	}
	if lb.DSR {
		w = append(w, "dsr")
	}
	if lb.Distribution == DistributionSourceIP {
		w = append(w, "affinity")
	}
	if lb.SourceVIP.IsValid() {
		w = append(w, "source-vip "+lb.SourceVIP.String())
	}
	return strings.Join(w, " ")
}

// Version is the version of HNS.
type Version struct{ Major, Minor int }

// String returns "13.3".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Features are the capabilities of an HNS.
type Features struct {
	RemoteSubnet, DSR, DualStack, Affinity bool
	// Modify means that a load balancer can be changed in place. HNS 15.4 announces that,
	// reports success, and ignores the change (kubernetes/kubernetes#131466).
	Modify bool
}

// Features returns the capabilities of HNS version v (microsoft/hcsshim,
// hcn/hcnglobals.go).
func (v Version) Features() Features {
	return Features{
		RemoteSubnet: v.atLeast(9, 2),
		DSR:          v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2),
		DualStack:    v.atLeast(11, 10),
		Affinity:     v.atLeast(12, 0),
		Modify:       v.atLeast(15, 5),
	}
}

// remoteMAC returns the hardware address that every node uses for the pod or node at a.
// It is the same on each node and differs from those of its neighbours.
func remoteMAC(a netip.Addr) string {
	b := a.AsSlice()
	if a.Is6() { // pods of different nodes may have the same last bytes
		h := fnv.New32a()
		h.Write(b)
		b = h.Sum(nil)
	}
	const digits = "0123456789abcdef"
	mac := []byte("02-11-00-00-00-00") // without fmt, as it is called for each endpoint of each port
	for i, x := range b[:4] {
		mac[6+3*i], mac[7+3*i] = digits[x>>4], digits[x&15]
	}
	return string(mac)
}

// equalMAC compares hardware addresses in any notation.
func equalMAC(a, b string) bool {
	if strings.EqualFold(a, b) { // without the cost of the rest, for each endpoint of each port
		return true
	}
	strip := strings.NewReplacer("-", "", ":", "")
	return strings.EqualFold(strip.Replace(a), strip.Replace(b))
}
