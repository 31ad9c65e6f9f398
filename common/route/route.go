// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package route decides what should happen to a connection. A snapshot and a connection
// go in, a Verdict comes out. The decision reads the snapshot in a simple way. It is too
// slow for packets, but it is the reference for what a backend programs. It does not
// depend on an operating system. Tests and kube-proxy explain use it; code that programs
// the node does not.
package route

import (
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/service"
)

// Conn is a new connection as the node first sees it.
type Conn struct {
	Protocol service.Protocol
	From     netip.Addr
	To       netip.AddrPort
	// Interface is where it enters the node. It is empty for the node's own processes.
	Interface string
	// ToNode means that To is one of the node's addresses, on any interface.
	ToNode bool
}

// Action is what happens to a connection.
type Action uint8

// The actions.
const (
	Pass    Action = iota // not for a Service, left alone
	Forward               // to one of the Verdict's endpoints, all equally likely
	Reject                // refused at once: TCP reset or ICMP port unreachable
	Drop                  // silently discarded
)

// String returns the name of a in lower case.
func (a Action) String() string { return [...]string{"pass", "forward", "reject", "drop"}[a] }

// Verdict is what should happen to a connection, and why.
type Verdict struct {
	Action   Action
	Port     *service.Port     // nil if no Service port matches
	Frontend *service.Frontend // nil if Port is nil; points into Port
	// Endpoints are the choices, sorted by address; set for Forward only.
	Endpoints []service.Endpoint
	Reason    string // one clause for people

	masquerade bool
	from       netip.Addr
}

// Masquerades reports whether e sees an address of the node instead of the client's.
func (v *Verdict) Masquerades(e service.Endpoint) bool {
	return v.masquerade || !e.Remote && e.Addr.Addr() == v.from
}

// Decide returns the verdict for c on the node that want is for.
func Decide(want *service.Snapshot, c Conn) Verdict {
	f := service.FamilyOf(c.To.Addr())
	p, frontend := find(want, c, f)
	v := Verdict{Port: p, Frontend: frontend, from: c.From}
	switch {
	case p == nil && isClusterIP(want, c.To.Addr(), f):
		v.Action, v.Reason = Reject, fmt.Sprintf("no Service has port %d/%s on this ClusterIP", c.To.Port(), c.Protocol)
	case p == nil && !c.ToNode && want.Node.IsServiceAddr(c.To.Addr()):
		v.Action, v.Reason = Drop, "the destination is in a ServiceCIDR, and no Service has it"
	case p == nil:
		v.Reason = closed(want, c, f)
	case !admits(frontend.Sources, c.From):
		v.Action, v.Reason = Drop, fmt.Sprintf("source %s is in none of the loadBalancerSourceRanges", c.From)
	case !p.HasEndpoints():
		v.Action, v.Reason = Reject, "the Service has no ready endpoint"
	default:
		choose(&v, want.Node, c)
	}
	return v
}

// find returns the port and frontend that c matches. If an ExternalIP is an address of
// the node, the ExternalIP takes precedence over a NodePort.
func find(want *service.Snapshot, c Conn, family service.Family) (*service.Port, *service.Frontend) {
	var nodePort *service.Port
	var nodeFrontend *service.Frontend
	for p := range want.Ports(family) {
		if p.Name.Protocol != c.Protocol {
			continue
		}
		for i := range p.Frontends {
			f := &p.Frontends[i]
			switch {
			case f.Port != c.To.Port():
			case f.Kind == service.NodePort && c.ToNode && want.Node.AnswersNodePorts(c.To.Addr()):
				nodePort, nodeFrontend = p, f
			case f.Kind != service.NodePort && f.Addr == c.To.Addr():
				return p, f
			}
		}
	}
	if nodePort != nil && isClusterIP(want, c.To.Addr(), family) {
		return nil, nil
	}
	return nodePort, nodeFrontend
}

// closed returns why a connection concerns no Service, as a NodePort not served at this address.
func closed(want *service.Snapshot, c Conn, family service.Family) string {
	to := c.To.Addr()
	if c.ToNode && !want.Node.AnswersNodePorts(to) && !to.IsLoopback() {
		for p := range want.Ports(family) {
			if p.Name.Protocol == c.Protocol && p.NodePort() == c.To.Port() {
				return fmt.Sprintf("NodePort %d of service %s/%s is not at this address: %s", c.To.Port(), p.Name.Namespace, p.Name.Name,
					want.Node.WhyNotNodePorts(family, []netip.Addr{to}))
			}
		}
	}
	return "the destination is no Service"
}

func isClusterIP(want *service.Snapshot, addr netip.Addr, family service.Family) bool {
	for p := range want.Ports(family) {
		for _, f := range p.Frontends {
			if f.Kind == service.ClusterIP && f.Addr == addr {
				return true
			}
		}
	}
	return false
}

func admits(sources []netip.Prefix, from netip.Addr) bool {
	return sources == nil || slices.ContainsFunc(sources, func(s netip.Prefix) bool { return s.Contains(from) })
}

// choose sets the endpoints, and whether to masquerade, for a port with some that admits c.
func choose(v *Verdict, node *service.Node, c Conn) {
	kind := v.Frontend.Kind
	pod, own := node.Pods.Contains(c.From, c.Interface), c.Interface == ""
	policy := v.Port.Policy(kind)
	v.Endpoints = v.Port.Endpoints(kind)
	switch {
	case !kind.External():
		v.masquerade = node.MasqueradeAll || node.Pods.Known(v.Port.Family) && !pod
		v.Reason = fmt.Sprintf("internalTrafficPolicy %s", policy)
	case policy == service.PolicyCluster:
		v.masquerade = true
		v.Reason = "externalTrafficPolicy Cluster"
	case pod:
		v.Endpoints = v.Port.Cluster
		v.Reason = "externalTrafficPolicy Local is for clients outside, and this is a pod"
	case own:
		v.Endpoints, v.masquerade = v.Port.Cluster, true
		v.Reason = "externalTrafficPolicy Local is for clients outside, and this is the node itself"
	default:
		v.Reason = "externalTrafficPolicy Local"
	}
	v.Action = Forward
	if len(v.Endpoints) == 0 {
		v.Action, v.masquerade = Drop, false
		v.Reason += ", and no endpoint is left"
	}
}
