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

// Kind is how an HNS network carries the traffic of pods, in HNS's words.
type Kind string

// The kinds of network that carry Kubernetes pods.
const (
	Overlay  Kind = "Overlay"
	L2Bridge Kind = "L2Bridge"
	L2Tunnel Kind = "L2Tunnel"
)

// Kinds lists the kinds that this package can program.
var Kinds = []Kind{Overlay, L2Bridge, L2Tunnel}

// Network is an HNS network.
type Network struct {
	ID, Name string
	Kind     Kind
	Subnets  []netip.Prefix
	Gateways []netip.Addr
	// Routes lead to the pods of other nodes on an overlay network.
	Routes []Route
	// Provider is the node's own address under an overlay network, invalid
	// where HNS does not say.
	Provider netip.Addr
}

// Route says under which node's address the pods of a subnet are reached.
type Route struct {
	Subnet   netip.Prefix
	Provider netip.Addr
}

// Endpoint is an address that HNS knows. The network plugin makes those of
// local pods; we make remote ones for everything else that a load balancer
// leads to.
type Endpoint struct {
	ID      string // as HNS gives it, in lower case
	Name    string
	Network string       // its ID
	Addrs   []netip.Addr // empty in a request lets HNS choose
	MAC     string       // six bytes in hexadecimal, with dashes
	// Provider is the node to send to on an overlay network.
	Provider netip.Addr
	Remote   bool
	// HasNamespace says that a namespace has it.
	HasNamespace bool
}

// HasAddr reports that e has the address a.
func (e *Endpoint) HasAddr(a netip.Addr) bool { return slices.Contains(e.Addrs, a) }

// Key is what HNS matches a packet by. Two load balancers with the same one
// cannot exist.
type Key struct {
	VIP      netip.Addr // invalid for a NodePort
	Family   service.Family
	Port     uint16
	Protocol service.Protocol
}

// Compare orders keys by family, address, port and protocol.
func (k Key) Compare(l Key) int {
	return cmp.Or(cmp.Compare(k.Family, l.Family), k.VIP.Compare(l.VIP), cmp.Compare(k.Port, l.Port), cmp.Compare(k.Protocol, l.Protocol))
}

// String returns "tcp 10.96.0.10:80" or "tcp node:30080", the latter with
// "node6" for IPv6.
func (k Key) String() string {
	switch {
	case k.VIP.IsValid():
		return fmt.Sprintf("%s %s", k.Protocol, netip.AddrPortFrom(k.VIP, k.Port))
	case k.Family == service.IPv6:
		return fmt.Sprintf("%s node6:%d", k.Protocol, k.Port)
	}
	return fmt.Sprintf("%s node:%d", k.Protocol, k.Port)
}

// PortFlags are the flags of a port mapping, with HNS's values.
type PortFlags uint32

// The flags that we set or know. ClusterIPs have none, as in kube-proxy.
const (
	ILB            PortFlags = 1  // ILB: nothing public says what it does, and nothing sets it
	LocalRoutedVIP PortFlags = 2  // the node itself may connect
	UseMux         PortFlags = 4  // NodePorts with direct server return
	PreserveDIP    PortFlags = 8  // pods see the address that clients dialled
	VIPExternalIP  PortFlags = 16 // the address is from outside the cluster
)

// Distribution says what HNS keeps together, with HNS's values.
type Distribution uint32

// The distributions.
const (
	DistributionNone             Distribution = 0
	DistributionSourceIPProtocol Distribution = 1
	DistributionSourceIP         Distribution = 2 // all connections of one client
)

// LoadBalancer is an HNS load balancer. HNS gives it no name.
type LoadBalancer struct {
	ID string // as HNS gives it, in lower case
	Key
	TargetPort   uint16
	Endpoints    []string // IDs, sorted, without duplicates
	SourceVIP    netip.Addr
	DSR          bool
	Flags        PortFlags
	Distribution Distribution
	// Kind is that of the frontend it is for, as far as this process knows: HNS
	// does not keep it.
	Kind service.Kind
	// ExtraKeys are further keys. Ours have none, nor anything Odd: what this
	// package could not express.
	ExtraKeys   []Key
	Unsupported bool
}

// equal reports that b does what a does. Only the ID may differ.
func (a *LoadBalancer) equal(b *LoadBalancer) bool {
	return a.Key == b.Key && a.TargetPort == b.TargetPort && slices.Equal(a.Endpoints, b.Endpoints) &&
		a.SourceVIP == b.SourceVIP && a.DSR == b.DSR && a.Flags == b.Flags && a.Distribution == b.Distribution &&
		len(a.ExtraKeys) == 0 && len(b.ExtraKeys) == 0 && a.Unsupported == b.Unsupported
}

// describe describes all of lb but its key and endpoints.
func (lb *LoadBalancer) describe() string {
	var w []string
	w = append(w, fmt.Sprintf("-> :%d", lb.TargetPort))
	for _, f := range []struct {
		flag PortFlags
		word string
	}{{ILB, "internal"}, {LocalRoutedVIP, "local-routed"}, {UseMux, "mux"}, {PreserveDIP, "preserve-destination"}, {VIPExternalIP, "external"}} {
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

// Version is that of HNS.
type Version struct{ Major, Minor int }

// String returns "13.3".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Features are what an HNS can do.
type Features struct {
	RemoteSubnet, DSR, DualStack, Affinity bool
	// Modify means that a load balancer can be changed in place. HNS 15.4
	// says that it can, answers a change with success, and ignores it.
	Modify bool
}

// Features returns what HNS of version v can do.
func (v Version) Features() Features {
	return Features{
		RemoteSubnet: v.atLeast(9, 2),
		DSR:          v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2),
		DualStack:    v.atLeast(11, 10),
		Affinity:     v.atLeast(12, 0),
		Modify:       v.atLeast(15, 5),
	}
}

// remoteMAC returns the address by which everybody knows the pod or node at a:
// the same on each node, and other than that of its neighbours.
func remoteMAC(a netip.Addr) string {
	b := a.AsSlice()
	if a.Is6() { // pods of different nodes may well end alike
		h := fnv.New32a()
		h.Write(b)
		b = h.Sum(nil)
	}
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// equalMAC compares in any notation.
func equalMAC(a, b string) bool {
	strip := strings.NewReplacer("-", "", ":", "")
	return strings.EqualFold(strip.Replace(a), strip.Replace(b))
}
