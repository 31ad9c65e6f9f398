// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package service describes what a node must forward: Snapshot, Port, Frontend and
// Endpoint, and Diff for the changes between two snapshots. It depends on neither the
// Kubernetes API nor an operating system, so every backend can share it. Which endpoints
// a Port gets is decided by its caller.
package service

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// FamilyOf returns the family of a. Addresses from outside must be unmapped first: 4-in-6 is IPv6.
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

// ParsePortName reads a name as String writes it, without protocol, else the zero value.
func ParsePortName(text string) PortName {
	service, port, hasPort := strings.Cut(text, ":")
	namespace, name, hasName := strings.Cut(service, "/")
	isLabel := func(s string) bool {
		return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
	}
	if !hasName || !isLabel(namespace) || !isLabel(name) || hasPort && !isLabel(port) {
		return PortName{}
	}
	return PortName{Namespace: namespace, Name: name, Port: port}
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

// Address is what a Frontend occupies. No two Services have the same one.
type Address struct {
	Addr     netip.Addr // invalid for a port of the node
	Port     uint16
	Protocol Protocol
	Family   Family
}

// AddressOf returns the Address at a, an address with a port.
func AddressOf(p Protocol, a netip.AddrPort) Address {
	return Address{a.Addr(), a.Port(), p, FamilyOf(a.Addr())}
}

// Compare orders by family, address, port and protocol.
func (a Address) Compare(b Address) int {
	return cmp.Or(cmp.Compare(a.Family, b.Family), a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// String returns "tcp 10.96.0.10:80", or "tcp node:30080", with "node6" for IPv6.
func (a Address) String() string {
	switch {
	case a.Addr.IsValid():
		return fmt.Sprintf("%s %s", a.Protocol, netip.AddrPortFrom(a.Addr, a.Port))
	case a.Family == IPv6:
		return fmt.Sprintf("%s node6:%d", a.Protocol, a.Port)
	}
	return fmt.Sprintf("%s node:%d", a.Protocol, a.Port)
}

// OnNode returns the port of the node that a has.
func (a Address) OnNode() Address {
	a.Addr = netip.Addr{}
	return a
}

// Address returns what f, a Frontend of p, occupies.
func (p *Port) Address(f Frontend) Address { return Address{f.Addr, f.Port, p.Name.Protocol, p.Family} }

// Endpoint is a destination of traffic.
type Endpoint struct {
	Addr netip.AddrPort
	// Local means that it runs on this node.
	Local bool
	// Remote means that it is known to run elsewhere. Of unknown nodes neither flag is set.
	Remote bool
}

// Policy is a traffic policy.
type Policy uint8

// The two traffic policies. The zero Policy is Cluster, the API's default.
const (
	PolicyCluster Policy = iota
	PolicyLocal
)

// Policies are both.
var Policies = [...]Policy{PolicyCluster, PolicyLocal}

// String returns the API's word for p.
func (p Policy) String() string {
	if p == PolicyLocal {
		return "Local"
	}
	return "Cluster"
}

// Port is one Service port in one IP family. Readiness, termination, topology and duplicates are
// resolved: its endpoints are chosen. It is read-only once it is in a Snapshot.
type Port struct {
	Name   PortName
	Family Family
	// Internal applies to ClusterIP frontends, External to the others.
	Internal, External Policy
	Consistent         Consistent
	// Frontends contains no two with the same Kind, Addr and Port, also none of other Ports.
	Frontends []Frontend
	// Cluster serves traffic policy Cluster, Local serves policy Local. Both are sorted
	// by address and have no duplicates. Local is nil if neither policy is Local. An
	// endpoint in Local need not be in Cluster, because topology narrows Cluster only.
	Cluster, Local []Endpoint
	// Draining endpoints serve, but get no new connections: they terminate while others are ready,
	// or topology prefers others. Their flows may continue. Sorted and disjoint from Cluster and
	// Local, the list is kept for UDP, whose flows have no end of their own.
	Draining []Endpoint
	// Listed are, sorted, other addresses that EndpointSlices list for the port, on other nodes and
	// not ready, terminating or not preferred. They get no connections. It is nil for dataplanes in
	// which an endpoint is no object of its own.
	Listed []netip.Addr
	// Direct is set if clients from outside get answers from the endpoints' nodes, see LeadsDirectly.
	Direct   *Direct
	Affinity time.Duration // 0 means none; else whole seconds
	// Rebalance is the age of TCP connections from which they end on endpoints with more
	// than their share after one was added. 0 means that none ends.
	Rebalance time.Duration
	// KeepVIP requests that packets to a load balancer's address reach only pods of this
	// node, with that destination address. Dataplanes that cannot do it ignore KeepVIP.
	KeepVIP bool
	// HealthCheck is the healthCheckNodePort of the Service, or 0. LocalReady, set only with it,
	// counts the Service's ready endpoints on this node, in this family and over all ports.
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

// Endpoints returns the endpoints for traffic to a frontend of kind k, but not that of pods and the
// node, which reach external frontends with policy Local by Cluster.
func (p *Port) Endpoints(k Kind) []Endpoint { return p.EndpointsFor(p.Policy(k)) }

// EndpointsFor returns the endpoints for traffic of a policy.
func (p *Port) EndpointsFor(policy Policy) []Endpoint {
	if policy == PolicyLocal {
		return p.Local
	}
	return p.Cluster
}

// Lists reports whether list, which is sorted by address, has an endpoint.
func Lists(list []Endpoint, a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(list, a, func(e Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return found
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

// HasEndpoints reports whether p has any endpoint. Without one, traffic is rejected, whatever the
// policy. It is dropped if the policy excludes all.
func (p *Port) HasEndpoints() bool { return len(p.Cluster) > 0 || len(p.Local) > 0 }

// Node is what forwarding depends on besides Services: properties of the node and the
// operator's resolved settings. It is read-only once it is in a Snapshot.
type Node struct {
	Name string
	// Addrs are the node's own IPs from the API or the operator, a family's primary one first.
	Addrs []netip.Addr
	// PodCIDRs are the ranges that the Node object has for its pods.
	PodCIDRs []netip.Prefix
	// Pods distinguishes traffic of this node's pods from other traffic.
	Pods LocalPods
	// NodePorts are prefixes. Addresses of the node within them serve NodePorts. A family
	// without a prefix serves no NodePorts, see AnyAddress. Loopback addresses have
	// listeners instead, see LocalhostNodePorts.
	NodePorts []netip.Prefix
	// NodePortsEverywhere means that every address of the node serves NodePorts, whatever
	// NodePorts says, as on Windows.
	NodePortsEverywhere bool
	// NodePortsPending means, by family, that NodePorts lacks addresses that are not known yet.
	// Backends keep those that an earlier process programmed.
	NodePortsPending [2]bool
	// ServiceCIDRs are the known ranges that ClusterIPs come from, sorted and disjoint.
	// Traffic to an address in them that belongs to no Service is dropped.
	ServiceCIDRs []netip.Prefix
	// EndpointsInServiceCIDRs are addresses in ServiceCIDRs that EndpointSlices list,
	// sorted. Somebody may use them for pods, so traffic to them is not dropped.
	EndpointsInServiceCIDRs []netip.Addr
	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool
}

// LocalPods detects traffic of pods, in one of three ways. The zero value detects none.
type LocalPods struct {
	Prefixes        []netip.Prefix // the source address is in one of them
	Interface       string         // the traffic enters through this bridge
	InterfacePrefix string         // the traffic enters through an interface with this name prefix
}

// Known reports whether p can detect pods of family f.
func (p LocalPods) Known(f Family) bool {
	return p.Interface != "" || p.InterfacePrefix != "" || len(InFamily(p.Prefixes, f)) > 0
}

// Contains reports whether traffic from addr through the interface iface, "" for the node's own,
// comes from a pod. It is false where p detects nothing.
func (p LocalPods) Contains(addr netip.Addr, iface string) bool {
	switch {
	case p.Interface != "":
		return iface == p.Interface
	case p.InterfacePrefix != "":
		return strings.HasPrefix(iface, p.InterfacePrefix)
	}
	return slices.ContainsFunc(p.Prefixes, func(x netip.Prefix) bool { return x.Contains(addr) })
}

// InFamily returns the prefixes of family f, in their order.
func InFamily(prefixes []netip.Prefix, f Family) []netip.Prefix {
	var in []netip.Prefix
	for _, p := range prefixes {
		if FamilyOf(p.Addr()) == f {
			in = append(in, p)
		}
	}
	return in
}

// FirstOf returns the first of addrs in family f, or the zero Addr.
func FirstOf(addrs []netip.Addr, f Family) netip.Addr {
	for _, a := range addrs {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// localhost is where local programs reach NodePorts, where LocalhostNodePorts is true.
var localhost = [...]netip.Addr{IPv4: netip.AddrFrom4([4]byte{127, 0, 0, 1}), IPv6: netip.IPv6Loopback()}

// Localhost returns 127.0.0.1 or ::1.
func Localhost(f Family) netip.Addr { return localhost[f] }

// LocalhostNodePorts reports whether the operator enabled NodePorts on Localhost(f). That
// takes a prefix of loopback addresses only. A wider one, such as 0.0.0.0/0, does not
// include loopback addresses, as in KEP-6032 (kubernetes/enhancements#6032).
func (n *Node) LocalhostNodePorts(f Family) bool {
	return slices.ContainsFunc(n.NodePorts, func(p netip.Prefix) bool { return LoopbackOnly(p) && p.Contains(localhost[f]) })
}

// LoopbackOnly reports whether all addresses in p are loopback addresses.
func LoopbackOnly(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Addr().IsLoopback() && p.Bits() >= 8
	}
	return p.Masked() == netip.PrefixFrom(netip.IPv6Loopback(), 128)
}

// AnswersNodePorts reports whether addr, an address of the node, serves NodePorts. Loopback
// addresses do not: they have a listener, see LocalhostNodePorts.
func (n *Node) AnswersNodePorts(addr netip.Addr) bool {
	if addr.IsLoopback() || n.NodePortsEverywhere {
		return !addr.IsLoopback()
	}
	return slices.ContainsFunc(n.NodePorts, func(x netip.Prefix) bool { return x.Contains(addr) })
}

// WhyNodePortsClosed returns why none of the node's addresses serves NodePorts of f, as a
// clause. It is "" if one does, or if local, the addresses of its interfaces, is empty.
func (n *Node) WhyNodePortsClosed(f Family, local []netip.Addr) string {
	if n.LocalhostNodePorts(f) && !n.NodePortsPending[f] {
		return ""
	}
	return n.WhyNotNodePorts(f, local)
}

// WhyNotNodePorts is WhyNodePortsClosed for some of the node's addresses, without loopback.
func (n *Node) WhyNotNodePorts(f Family, local []netip.Addr) string {
	local = slices.DeleteFunc(slices.Clone(local), func(a netip.Addr) bool { return a.IsLoopback() || FamilyOf(a) != f })
	prefixes := n.NodePortPrefixes(f)
	switch {
	case n.NodePortsEverywhere:
		return ""
	case n.NodePortsPending[f]:
		return fmt.Sprintf("nodePortAddresses is %q, and no Node named %q with an address is known; addresses that answered before still do", "primary", n.Name)
	case len(prefixes) == 0:
		return fmt.Sprintf("nodePortAddresses is %q, and the Node %q has no %s address", "primary", n.Name, f)
	case len(local) == 0 || slices.ContainsFunc(local, n.AnswersNodePorts):
		return ""
	}
	const most = 4
	if shown := slices.DeleteFunc(slices.Clone(local), netip.Addr.IsLinkLocalUnicast); len(shown) > 0 {
		local = shown
	}
	more := ""
	if n := len(local) - most; n > 0 {
		local, more = local[:most], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("nodePortAddresses %s has none of %s%s", joined(prefixes), joined(local), more)
}

func joined[T fmt.Stringer](all []T) string {
	var words []string
	for _, x := range all {
		words = append(words, x.String())
	}
	return strings.Join(words, ", ")
}

// NodePortPrefixes returns the NodePorts of family f. The result is a single prefix of
// length zero if every address serves NodePorts, and empty if none does.
func (n *Node) NodePortPrefixes(f Family) []netip.Prefix {
	in := InFamily(n.NodePorts, f)
	if i := slices.IndexFunc(in, func(x netip.Prefix) bool { return x.Bits() == 0 }); i >= 0 {
		return in[i : i+1]
	}
	return in
}

// AnyAddress returns the prefixes 0.0.0.0/0 and ::/0.
func AnyAddress() []netip.Prefix { return OrAnyAddress(nil) }

// OrAnyAddress returns prefixes, with that of length zero for each family without one.
func OrAnyAddress(prefixes []netip.Prefix) []netip.Prefix {
	all := slices.Clone(prefixes)
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if len(InFamily(prefixes, FamilyOf(a))) == 0 {
			all = append(all, netip.PrefixFrom(a, 0))
		}
	}
	return all
}

// IsServiceAddr reports whether addr is in a range of ClusterIPs, and no endpoint.
func (n *Node) IsServiceAddr(addr netip.Addr) bool {
	if _, listed := slices.BinarySearchFunc(n.EndpointsInServiceCIDRs, addr, netip.Addr.Compare); listed {
		return false
	}
	return slices.ContainsFunc(n.ServiceCIDRs, func(x netip.Prefix) bool { return x.Contains(addr) })
}

// TrimCommon returns a and b without their common prefix and suffix. Of two lists of
// endpoints that differ by one endpoint, little is left.
func TrimCommon[T comparable](a, b []T) (onlyA, onlyB []T) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}

// leading are zeros before other digits. Kubernetes ignores them in addresses and prefixes of
// stored objects: numbers of IPv4 with them are decimal (kubernetes/kubernetes#108074). API
// servers used to accept such addresses, and keep those that they have.
var leading = regexp.MustCompile(`(^|[.:/])0+([0-9a-fA-F])`)

// plain returns s without leading zeros, which an address with a zone cannot have.
func plain(s string) string {
	if strings.Contains(s, "%") {
		return s
	}
	return leading.ReplaceAllString(s, "$1$2")
}

// ParseAddr reads an address. IPv4 mapped to IPv6 counts as IPv4. A zone is kept.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		a, err = netip.ParseAddr(plain(s))
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%.80q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// ParseAddrPort reads an address and port, such as 192.0.2.1:80 or [2001:db8::1]:80.
func ParseAddrPort(s string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, err
	}
	a, err := ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%.80q is not a port", port)
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

// ParsePrefix reads a CIDR. Host bits are kept, and IPv4 mapped to IPv6 too.
func ParsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		p, err = netip.ParsePrefix(plain(s))
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%.80q is not a CIDR like 192.0.2.0/24", s)
	}
	return p, nil
}
