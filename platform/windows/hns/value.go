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
func (a *LoadBalancer) equal(b *LoadBalancer) bool {
	return a.Key == b.Key && a.TargetPort == b.TargetPort && slices.Equal(a.Endpoints, b.Endpoints) &&
		a.SourceVIP == b.SourceVIP && a.DSR == b.DSR && a.Flags == b.Flags && a.Distribution == b.Distribution &&
		len(a.ExtraKeys) == 0 && len(b.ExtraKeys) == 0 && a.Unsupported == b.Unsupported
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
