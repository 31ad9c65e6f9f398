// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// Host is the network state that the node itself reports.
type Host struct {
	// Addrs are the addresses of its interfaces, with the lengths of their networks.
	Addrs []netip.Prefix
	// Listening are the sockets that programs listen on. An unspecified IPv6 address
	// stands for both families.
	Listening []Socket
}

func (h *Host) has(a netip.Addr) bool {
	return slices.ContainsFunc(h.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
}

// Socket is a socket on which a program of the node listens.
type Socket struct {
	Protocol service.Protocol
	Addr     netip.AddrPort
}

// SetHost sets the state that the node reports. Both lists must be in a fixed order.
func (t *Tracker) SetHost(h Host) {
	t.change(func() bool {
		if slices.Equal(t.host.Addrs, h.Addrs) && slices.Equal(t.host.Listening, h.Listening) {
			return false
		}
		moved := !slices.Equal(t.host.Addrs, h.Addrs)
		t.host = h
		found := moved && len(t.cidrs) > 0 // ServiceCIDRs must not contain host addresses
		t.nodeDirty = t.nodeDirty || found
		for _, external := range t.claims.external {
			for s := range external {
				t.markDirty(s)
				found = true
			}
		}
		return found
	})
}

// clusterIPKey is the key of a ClusterIP with all its ports.
func clusterIPKey(a netip.Addr) address {
	return address{ip: a.As16(), family: service.FamilyOf(a)}
}

// nodePortKey is the key of the NodePort that occupies f's port on the node's addresses.
func nodePortKey(p *service.Port, f service.Frontend) address {
	return addressOf(p, service.Frontend{Kind: service.NodePort, Port: f.Port})
}

func isExternalAddress(k service.Kind) bool {
	return k == service.ExternalIP || k == service.LoadBalancerIP
}

// dependents counts, by key, what Services have there that depends on its holder.
type dependents map[address]map[*serviceState]int

func (d dependents) add(a address, s *serviceState) {
	if d[a] == nil {
		d[a] = map[*serviceState]int{}
	}
	d[a][s]++
}

func (d dependents) remove(a address, s *serviceState) {
	if d[a][s]--; d[a][s] <= 0 {
		delete(d[a], s)
	}
	if len(d[a]) == 0 {
		delete(d, a)
	}
}

// refused returns why an external address and port is not served, empty if it is served,
// and whether only this node refuses it. Every author of a Service can write an external
// IP, but does not own the addresses of nodes.
func (r *resolver) refused(p *service.Port, f service.Frontend) (why string, thisNode bool) {
	if !isExternalAddress(f.Kind) {
		return "", false
	}
	t := r.tracker
	if holder := t.claims.holder[clusterIPKey(f.Addr)]; holder.serviceState != nil && holder.serviceState != r.owner {
		return fmt.Sprintf("%s is refused: the address is the ClusterIP of service %s", describe(p, f), holder.name), false
	}
	named := slices.Contains(r.node.Addrs, f.Addr)
	// A controller may have assigned a load balancer's address to an interface.
	if !named && (f.Kind == service.LoadBalancerIP || !t.host.has(f.Addr)) {
		return "", false
	}
	if holder := t.claims.holder[nodePortKey(p, f)]; holder.serviceState != nil && holder.serviceState != r.owner && r.node.AnswersNodePorts(f.Addr) {
		return fmt.Sprintf("%s is refused: the address is node %s's, and the port a NodePort or healthCheckNodePort of service %s",
			describe(p, f), r.node.Name, holder.name), true
	}
	for _, l := range t.host.Listening {
		if l.Protocol == p.Name.Protocol && l.Addr.Port() == f.Port && listensOn(l.Addr.Addr(), f.Addr) {
			return fmt.Sprintf("%s is refused: the address is node %s's, and a program of the node listens on %s/%s",
				describe(p, f), r.node.Name, l.Addr, l.Protocol), true
		}
	}
	return "", false
}

// listensOn reports whether a socket on own receives packets to addr.
func listensOn(own, addr netip.Addr) bool {
	return own == addr || own.IsUnspecified() && (own.Is6() || addr.Is4())
}

// healthCheckPort returns the healthCheckNodePort that s specifies, or 0.
func (s *serviceState) healthCheckPort() uint16 {
	for _, p := range s.want {
		if p.HealthCheck != 0 {
			return p.HealthCheck
		}
	}
	return 0
}

// checkKeys returns what a health check occupies: a TCP port of the node in both
// families.
func checkKeys(port uint16) []address {
	var keys []address
	for _, f := range service.Families {
		keys = append(keys, address{port: port, proto: service.TCP, family: f})
	}
	return keys
}

// healthCheck returns the port for want's health check, or 0 if another Service holds it.
func (r *resolver) healthCheck(want *service.Port) uint16 {
	if want.HealthCheck == 0 {
		return 0
	}
	for _, k := range checkKeys(want.HealthCheck) {
		if holder := r.tracker.claims.holder[k]; holder.serviceState != r.owner {
			r.notes.refuse("spec.healthCheckNodePort", fmt.Sprintf("%d is not answered: the port belongs to service %s, which was there first",
				want.HealthCheck, holder.name), false)
			return 0
		}
	}
	return want.HealthCheck
}
