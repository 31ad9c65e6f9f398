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
	// Provider is the node's own address under an overlay network, if HNS has it.
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

func (e *Endpoint) inFamily(f service.Family) bool { return service.FirstOf(e.Addrs, f).IsValid() }

// addrIn returns the address of e in family f, otherwise its first one.
func (e *Endpoint) addrIn(f service.Family) netip.Addr {
	if a := service.FirstOf(e.Addrs, f); a.IsValid() {
		return a
	}
	return e.Addrs[0]
}

// usedByPod distinguishes the endpoint of a pod from one that reserves a source VIP. The
// latter may be in the host's namespace, but its name contains "vip", or is that of Calico.
func (e *Endpoint) usedByPod() bool {
	reserved := strings.EqualFold(e.Name, CalicoVIPName) || strings.Contains(strings.ToLower(e.Name), "vip")
	return !e.Remote && e.HasNamespace && !reserved
}

// describe returns a text about e for plans and errors.
func (e *Endpoint) describe() string {
	var addrs []string
	for _, a := range e.Addrs {
		addrs = append(addrs, a.String())
	}
	s := strings.Join(addrs, ",")
	if !e.Remote {
		return s + " local"
	}
	s += " remote " + cmp.Or(e.MAC, "the node's MAC")
	if e.Provider.IsValid() {
		s += " via " + e.Provider.String()
	}
	return s
}

// The names of our endpoints, which identify them.
const (
	remotePrefix  = "kube-proxy-remote-"
	sourceVIPName = "kube-proxy-source-vip"
)

// CalicoVIPName is Calico's endpoint as source VIP (rancher/rke2, reserveCalicoVIP).
const CalicoVIPName = "Calico_ep"

// remoteName has dashes for colons: nothing public says that a name of HNS may have them.
func remoteName(a netip.Addr) string { return remotePrefix + strings.ReplaceAll(a.String(), ":", "-") }

// ownsEndpoint reports whether this proxy created e.
func ownsEndpoint(e *Endpoint) bool {
	return e.Name == sourceVIPName || strings.HasPrefix(e.Name, remotePrefix)
}

// Location is where a target is. It determines which process creates its endpoint.
type Location uint8

// The locations.
const (
	Local   Location = iota // a pod of this node: the network plugin creates the endpoint
	Remote                  // on another node or outside: we create a remote endpoint
	Unknown                 // the node is not known: use an existing endpoint, otherwise a remote one
	Root                    // the node's own endpoint, found by its name
)

// Target is one destination of a load balancer.
type Target struct {
	Addr     netip.Addr // the zero value for Root
	Location Location
	// MAC and Provider are set for remote endpoints, Provider on overlays alone.
	MAC      string
	Provider netip.Addr
	// needsNodeIP means that replies must return to the node's own address.
	needsNodeIP bool
}

// describe returns a text about the remote endpoint for t.
func (t *Target) describe() string {
	e := Endpoint{Addrs: []netip.Addr{t.Addr}, MAC: t.MAC, Provider: t.Provider, Remote: true}
	return e.describe()
}

// misrouted reports whether e does not lead to t. A MAC that is not known, of the node in a dump, fits all.
func misrouted(e *Endpoint, t Target) bool {
	return t.MAC != "" && !equalMAC(e.MAC, t.MAC) || t.Provider.IsValid() && e.Provider.IsValid() && e.Provider != t.Provider
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

// String names the flags, separated by spaces, or returns "none".
func (f PortFlags) String() string {
	var all []string
	for _, x := range flagWords {
		if f&x.flag != 0 {
			all = append(all, x.word)
			f &^= x.flag
		}
	}
	if f != 0 {
		all = append(all, fmt.Sprintf("0x%x", uint32(f)))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, " ")
}

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
	service.Address
	TargetPort   uint16
	Endpoints    []string // IDs, sorted, without duplicates
	SourceVIP    netip.Addr
	DSR          bool
	Flags        PortFlags
	Distribution Distribution
	// Kind is that of its frontend, as far as known: HNS does not store it.
	Kind service.Kind
	// ExtraKeys are further keys. Unsupported marks properties that this package cannot
	// express. Our own load balancers have neither.
	ExtraKeys   []service.Address
	Unsupported bool
}

// equal reports whether a and b have the same effect. Only the ID may differ.
func (lb *LoadBalancer) equal(b *LoadBalancer) bool {
	return lb.Address == b.Address && lb.TargetPort == b.TargetPort && slices.Equal(lb.Endpoints, b.Endpoints) &&
		lb.SourceVIP == b.SourceVIP && lb.DSR == b.DSR && lb.Flags == b.Flags && lb.Distribution == b.Distribution &&
		len(lb.ExtraKeys) == 0 && len(b.ExtraKeys) == 0 && lb.Unsupported == b.Unsupported
}

// withEndpoints returns lb with other endpoints. HNS is known to change nothing else in place.
func (lb *LoadBalancer) withEndpoints(endpoints []string) *LoadBalancer {
	x := *lb
	x.Endpoints = endpoints
	return &x
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

// Use returns a load balancer's purpose as kube-proxy's metrics name it, for those of others maybe
// an external IP or ClusterIP instead.
func (lb *LoadBalancer) Use() string {
	switch {
	case !lb.Addr.IsValid():
		return "nodeport"
	case lb.Flags&VIPExternalIP == 0 && lb.Kind == service.LoadBalancerIP:
		return "healthcheck"
	case lb.Flags&VIPExternalIP == 0:
		return "clusterip"
	case lb.Kind == service.LoadBalancerIP:
		return "ingressip"
	}
	return "externalip"
}

// targetPort returns the port to which lb leads k, known for its first port mapping alone.
func (lb *LoadBalancer) targetPort(k service.Address) (port uint16, known bool) {
	return lb.TargetPort, k.Port == lb.Port && k.Protocol == lb.Protocol
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

// Features returns what HNS version v can do (microsoft/hcsshim, hcn/hcnglobals.go).
func (v Version) Features() Features {
	return Features{
		RemoteSubnet: v.atLeast(9, 2),
		DSR:          v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2),
		DualStack:    v.atLeast(11, 10),
		Affinity:     v.atLeast(12, 0),
		Modify:       v.atLeast(15, 5),
	}
}

// Listing is what HNS holds. Kinds that were not requested are nil.
type Listing struct {
	Version       Version
	Networks      []Network
	Endpoints     []Endpoint
	LoadBalancers []LoadBalancer
}

// LoopbackDSR counts a network's pods, and those that reach themselves with direct server return.
func (l *Listing) LoopbackDSR(network string) (pods, ready int) {
	for i := range l.Endpoints {
		e := &l.Endpoints[i]
		if e.Network != network || !e.usedByPod() {
			continue
		}
		if pods++; e.LoopbackDSR {
			ready++
		}
	}
	return pods, ready
}

// PodsElsewhere returns the addresses of pods in networks other than the given one, by the name of the network.
func (l *Listing) PodsElsewhere(network string) map[string][]netip.Addr {
	names, found := map[string]string{}, map[string][]netip.Addr{}
	for _, n := range l.Networks {
		names[n.ID] = n.Name
	}
	for i := range l.Endpoints {
		if e := &l.Endpoints[i]; e.Network != network && e.usedByPod() {
			name := cmp.Or(names[e.Network], e.Network)
			found[name] = append(found[name], e.Addrs...)
		}
	}
	return found
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

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return "none"
	}
	return a.String()
}

// has reports whether the sorted list all has x.
func has(all []string, x string) bool {
	_, found := slices.BinarySearch(all, x)
	return found
}

// notIn returns the elements of all that others lacks. Both are sorted.
func notIn(all, others []string) []string {
	var rest []string
	for _, x := range all {
		for len(others) > 0 && others[0] < x {
			others = others[1:]
		}
		if len(others) == 0 || others[0] != x {
			rest = append(rest, x)
		}
	}
	return rest
}
