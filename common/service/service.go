// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package service describes what a node must forward. It knows neither the
// Kubernetes API nor any operating system, so every backend can share it.
package service

import (
	"cmp"
	"net/netip"
	"time"
)

// Protocol is an IANA protocol number.
type Protocol uint8

// The protocols a Service may use.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the lower-case name that netfilter and logs use.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "unknown"
}

// Family is an IP family. It indexes arrays of length 2.
type Family uint8

// The two IP families.
const (
	IPv4 Family = iota
	IPv6
)

// Families lists both, in the order they are programmed.
var Families = [...]Family{IPv4, IPv6}

// String returns "IPv4" or "IPv6", as the Kubernetes API spells them.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf returns the family of a. A 4-in-6 mapped address counts as IPv6,
// so unmap what comes from outside first.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// PortName identifies one port of one Service. Namespace, Name and Port are
// the API's names; Port is empty for a Service's single unnamed port.
type PortName struct {
	Namespace, Name, Port string
	Protocol              Protocol
}

// String returns "namespace/name" or "namespace/name:port".
func (n PortName) String() string {
	s := n.Namespace + "/" + n.Name
	if n.Port != "" {
		s += ":" + n.Port
	}
	return s
}

// Compare orders names alphabetically, then by protocol number.
func (n PortName) Compare(m PortName) int {
	return cmp.Or(
		cmp.Compare(n.Namespace, m.Namespace),
		cmp.Compare(n.Name, m.Name),
		cmp.Compare(n.Port, m.Port),
		cmp.Compare(n.Protocol, m.Protocol),
	)
}

// Kind says where a Frontend's address comes from.
type Kind uint8

// The four ways to reach a Service port.
const (
	ClusterIP Kind = iota
	NodePort
	ExternalIP
	LoadBalancerIP
)

// String returns the API's word for k.
func (k Kind) String() string {
	return [...]string{"ClusterIP", "NodePort", "ExternalIP", "LoadBalancerIP"}[k]
}

// External reports that traffic to k follows the external traffic policy.
func (k Kind) External() bool { return k != ClusterIP }

// Frontend is an address that clients dial.
type Frontend struct {
	Kind Kind
	Addr netip.Addr // invalid for NodePort: the node's addresses, see Node
	Port uint16     // never 0
	// Sources are the clients that may connect, sorted and disjoint. Nil
	// admits everybody, an empty list that is not nil admits nobody: ranges
	// were given, but none that this family can use. Only LoadBalancerIP
	// frontends have any.
	Sources []netip.Prefix
}

// Endpoint is one place traffic may end up.
type Endpoint struct {
	Addr netip.AddrPort
	// Local means that it runs on this node.
	Local bool
	// Remote means that it is known to run on another node. Neither flag
	// is set for an endpoint whose node nobody told.
	Remote bool
}

// Policy is a traffic policy.
type Policy uint8

// The two traffic policies. The zero Policy is Cluster, the API's default.
const (
	PolicyCluster Policy = iota
	PolicyLocal
)

// String returns the API's word for p.
func (p Policy) String() string {
	if p == PolicyLocal {
		return "Local"
	}
	return "Cluster"
}

// Port is one Service port in one IP family, with endpoints already chosen:
// readiness, termination, topology and duplicates are settled before a
// backend sees it. A Port is read-only once it is in a Snapshot.
type Port struct {
	Name   PortName
	Family Family
	// Frontends never holds two of the same Kind, Addr and Port, and no
	// other Port in the same Snapshot claims one of them.
	Frontends []Frontend
	// Cluster serves traffic policy Cluster, Local serves policy Local. Both
	// are sorted by address and free of duplicates. Local is nil where
	// neither policy is Local. A Local endpoint need not be in Cluster:
	// topology narrows Cluster only.
	Cluster, Local []Endpoint
	// Draining serve, but get no new connections: they terminate while
	// others are ready, or topology prefers others. What they serve already
	// may go on. Sorted, not in Cluster or Local, and only kept for UDP, whose
	// flows have no end of their own.
	Draining []Endpoint
	// Listed are addresses that EndpointSlices list for the port and that are in
	// none of the lists above for being of another node and not ready, or
	// terminating, or not preferred. They get no connections. Sorted, and nil for
	// dataplanes in which an endpoint is no object of its own.
	Listed []netip.Addr
	// Internal applies to ClusterIP frontends, External to the others.
	Internal, External Policy
	Affinity           time.Duration // 0 means none; else whole seconds
	// KeepVIP asks for packets to a load balancer's address to reach pods of
	// this node alone and with that address, where a dataplane can do it.
	KeepVIP bool
	// HealthCheck is the healthCheckNodePort of the Service, 0 without one.
	// LocalReady, only kept with it, counts the Service's ready endpoints on
	// this node, in this family and over all its ports.
	HealthCheck uint16
	LocalReady  int
}

// Policy returns the traffic policy that applies to frontends of kind k.
func (p *Port) Policy(k Kind) Policy {
	if k.External() {
		return p.External
	}
	return p.Internal
}

// Endpoints returns the endpoints that traffic to a frontend of kind k may
// reach, leaving aside that pods and the node itself reach an external
// frontend with policy Local through the Cluster endpoints.
func (p *Port) Endpoints(k Kind) []Endpoint {
	if p.Policy(k) == PolicyLocal {
		return p.Local
	}
	return p.Cluster
}

// HasEndpoints reports that p has an endpoint anywhere. Traffic to a Port that is
// not served is rejected, whatever its policy; traffic to a served Port whose
// policy leaves no endpoint is dropped.
func (p *Port) HasEndpoints() bool { return len(p.Cluster) > 0 || len(p.Local) > 0 }
