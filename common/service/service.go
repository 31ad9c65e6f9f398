// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package service describes what a node must forward: Snapshot, Port, Frontend and
// Endpoint, and Diff for the changes between two snapshots. It depends on neither the
// Kubernetes API nor an operating system, so every backend can share it. Which endpoints
// a Port gets is decided by its caller.
package service

import (
	"cmp"
	"net/netip"
	"slices"
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

// FamilyOf returns the family of a. A 4-in-6 mapped address counts as IPv6, so callers
// must unmap addresses from outside first.
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

// Kind is where a Frontend's address comes from.
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

// External reports whether the external traffic policy applies to traffic to k.
func (k Kind) External() bool { return k != ClusterIP }

// Frontend is an address that clients dial.
type Frontend struct {
	Kind Kind
	Addr netip.Addr // invalid for NodePort, which uses the node's addresses, see Node
	Port uint16     // never 0
	// Sources are the prefixes of clients that may connect, sorted and disjoint. Nil
	// admits every client. An empty list that is not nil admits none: the Service has
	// ranges, but none of this family. Only LoadBalancerIP frontends have Sources.
	Sources []netip.Prefix
}

// SameAddress reports whether f and g have the same kind, address and port. They may admit
// different clients, and their Ports may have different protocols.
func (f Frontend) SameAddress(g Frontend) bool {
	return f.Kind == g.Kind && f.Addr == g.Addr && f.Port == g.Port
}

// Equal reports whether f and g have the same address and admit the same clients.
func (f Frontend) Equal(g Frontend) bool {
	return f.SameAddress(g) && (f.Sources == nil) == (g.Sources == nil) && slices.Equal(f.Sources, g.Sources)
}

// Endpoint is a destination of traffic.
type Endpoint struct {
	Addr netip.AddrPort
	// Local means that it runs on this node.
	Local bool
	// Remote means that it is known to run on another node. Neither flag is set if the
	// endpoint's node is unknown.
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

// Port is one Service port in one IP family, with its endpoints already chosen.
// Readiness, termination, topology and duplicates are resolved before a backend sees it.
// A Port is read-only once it is in a Snapshot.
type Port struct {
	Name   PortName
	Family Family
	// Frontends contains no two with the same Kind, Addr and Port. No other Port of the
	// same Snapshot has one of them.
	Frontends []Frontend
	// Cluster serves traffic policy Cluster, Local serves policy Local. Both are sorted
	// by address and have no duplicates. Local is nil if neither policy is Local. An
	// endpoint in Local need not be in Cluster, because topology narrows Cluster only.
	Cluster, Local []Endpoint
	// Draining endpoints serve, but get no new connections: they terminate while others
	// are ready, or topology prefers others. Their existing flows may continue. The list
	// is sorted and disjoint from Cluster and Local. It is kept for UDP only, because UDP
	// flows have no end of their own.
	Draining []Endpoint
	// Listed are addresses that EndpointSlices list for the port but that are in none of
	// the lists above, because they are on another node and not ready, terminating or not
	// preferred. They get no connections. Listed is sorted. It is nil for dataplanes in
	// which an endpoint is not an object of its own.
	Listed []netip.Addr
	// Internal applies to ClusterIP frontends, External to the others.
	Internal, External Policy
	Affinity           time.Duration // 0 means none; else whole seconds
	// KeepVIP requests that packets to a load balancer's address reach only pods of this
	// node, with that destination address. Dataplanes that cannot do it ignore KeepVIP.
	KeepVIP bool
	// HealthCheck is the healthCheckNodePort of the Service, or 0. LocalReady is set only
	// with it. It counts the Service's ready endpoints on this node, in this family and
	// over all its ports.
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

// Endpoints returns the endpoints for traffic to a frontend of kind k. It does not cover
// pods and the node itself, which reach an external frontend with policy Local through
// the Cluster endpoints.
func (p *Port) Endpoints(k Kind) []Endpoint {
	if p.Policy(k) == PolicyLocal {
		return p.Local
	}
	return p.Cluster
}

// NodePort returns the port of p on the nodes, 0 if it has none.
func (p *Port) NodePort() uint16 {
	for _, f := range p.Frontends {
		if f.Kind == NodePort {
			return f.Port
		}
	}
	return 0
}

// HasEndpoints reports whether p has any endpoint. Traffic to a Port without endpoints is
// rejected, whatever its policy. Traffic to a Port with endpoints is dropped if the
// policy excludes all of them.
func (p *Port) HasEndpoints() bool { return len(p.Cluster) > 0 || len(p.Local) > 0 }
