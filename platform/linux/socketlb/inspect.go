// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// State is what the kernel has of the layer of one family, read back.
type State struct {
	*Memory
	// Fault is why not all connections are taken that could be, empty if they are.
	Fault string
	// Others is what is attached beside the programs and may decide before them.
	Others string
	// Pods is whether connections of pods are taken, not only those of the node.
	Pods bool
}

// Inspect returns what the kernel has of the layer, nil for nothing, valid until Close. It changes
// nothing. The Backend programs nothing.
func (b *Backend) Inspect() (*State, error) {
	s, err := b.driver.Inspect()
	if err != nil {
		return nil, fmt.Errorf("read back socket acceleration of %s: %w", b.family, err)
	}
	return s, nil
}

// endpoints returns where a program leads connections to an address, sorted, if it takes them.
func (s *State) endpoints(to netip.AddrPort) (all []netip.AddrPort, damaged bool) {
	i, found := s.find(nameOf(to))
	if !found {
		return nil, false
	}
	l := s.list(i)
	if !s.inside(l) {
		return nil, true
	}
	for n := range l.len() {
		all = append(all, s.slot(l.first()+n))
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return all, false
}

// boundSockets is what a reader should know of a connection that is taken.
const boundSockets = "a socket that the program bound to an address, a port or a device is left to the rules"

// Trace adds to w what happens to c at connect(2), before its first packet, and where that
// differs from want. The rest of w is the way of the connections that are left to the rules.
func (b *Backend) Trace(want *service.Snapshot, c route.Conn, w *explain.Walk) error {
	if b.off {
		return nil
	}
	reason, endpoints := expected(want, c)
	s, err := b.Inspect()
	if err != nil {
		return err
	}
	if s == nil {
		s = &State{Memory: &Memory{family: b.family}, Fault: "no program is attached"}
	}
	hop, have := explain.Hop{Object: "connect(2)"}, []netip.AddrPort(nil)
	if len(s.frontends) > 0 && elsewhere(want.Node, c) == "" && c.Protocol == service.TCP {
		damaged := false
		if have, damaged = s.endpoints(c.To); damaged {
			w.Faults = append(w.Faults, fmt.Sprintf("socket acceleration: the list of %s is damaged", c.To))
		}
	}
	left := "leaves the socket to the rules: "
	switch {
	case s.Fault != "" && reason == "":
		hop.Does = left + s.Fault
		w.Faults = append(w.Faults, "socket acceleration is not in force: "+s.Fault)
	case len(have) > 0 && !s.Pods && c.Interface != "":
		hop.Does = left + "the cgroup of all pods was not found in the hierarchy of version 2"
	case len(have) > 0 && s.Others != "":
		hop.Does = fmt.Sprintf("gives the socket one of %s, unless another program has changed its address: %s", addresses(have), s.Others)
		w.Faults = append(w.Faults, "socket acceleration may not be what decides: "+s.Others)
	case len(have) > 0:
		w.Taken = true
		hop.Does = fmt.Sprintf("gives the socket one of %s; %s", addresses(have), boundSockets)
	case reason != "":
		hop.Does = left + reason
	default:
		hop.Does = left + "no table has " + c.To.String()
	}
	if len(have) > 0 && s.Fault == "" {
		w.Notes = append(w.Notes, clientOf(c, have)...)
	}
	w.Faults = append(w.Faults, differences(have, endpoints, s.Fault)...)
	w.Hops = slices.Insert(w.Hops, 0, hop)
	return nil
}

// clientOf says which address an endpoint sees other than by the rules: nothing masquerades here.
func clientOf(c route.Conn, endpoints []netip.AddrPort) []string {
	if slices.ContainsFunc(endpoints, func(e netip.AddrPort) bool { return e.Addr() == c.From }) {
		return []string{fmt.Sprintf("at connect(2), a client that gets itself as the endpoint keeps its address: the server sees %s", c.From)}
	}
	if c.Interface == "" {
		return []string{"at connect(2), a socket of the node gets the address that the route to the endpoint has, not that of the route to the ClusterIP: " +
			"the server sees that one, which the rules may replace"}
	}
	return nil
}

// expected returns why the rules serve c, or else the endpoints that a socket may get.
func expected(want *service.Snapshot, c route.Conn) (reason string, endpoints []netip.AddrPort) {
	v := route.Decide(want, c)
	reason = cmp.Or(elsewhere(want.Node, c), destination(want.Node, c, &v))
	if reason != "" {
		return reason, nil
	}
	for f := range frontendsOf(v.Port) {
		if f.addr == c.To {
			for _, e := range f.endpoints {
				endpoints = append(endpoints, e.Addr)
			}
		}
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	return "", endpoints
}

// elsewhere returns why no socket of this node makes c.
func elsewhere(n *service.Node, c route.Conn) string {
	if c.Interface == "" || n.Pods.Contains(c.From, c.Interface) || !n.Pods.Known(service.FamilyOf(c.From)) {
		return ""
	}
	return "it is on another machine"
}

func destination(n *service.Node, c route.Conn, v *route.Verdict) string {
	switch {
	case c.Protocol != service.TCP:
		return strings.ToUpper(c.Protocol.String()) + " sockets would keep an endpoint that left"
	case v.Port == nil:
		return "no Service has " + c.To.String()
	case v.Frontend.Kind != service.ClusterIP:
		return "only ClusterIPs are accelerated"
	case !takes(n):
		return "with masqueradeAll an endpoint must see the address of the node"
	case v.Port.Affinity != 0:
		return "the rules know the clients of sessionAffinity"
	case v.Port.SelectsConsistently(service.ClusterIP):
		return "the rules select consistently"
	case len(v.Port.Endpoints(service.ClusterIP)) == 0:
		return "without endpoints the rules refuse it"
	}
	return ""
}

// differences says where the endpoints that a program chooses from are not those wanted.
func differences(have, want []netip.AddrPort, fault string) []string {
	if fault != "" {
		return nil
	}
	var all []string
	for _, e := range have {
		if !slices.Contains(want, e) {
			all = append(all, fmt.Sprintf("socket acceleration also gives %s, which should not get it", e))
		}
	}
	for _, e := range want {
		if !slices.Contains(have, e) {
			all = append(all, fmt.Sprintf("socket acceleration never gives %s, which should get its share", e))
		}
	}
	return all
}

// mostNamed bounds how many endpoints a sentence names.
const mostNamed = 8

func addresses(all []netip.AddrPort) string {
	text := ""
	for i, a := range all[:min(len(all), mostNamed)] {
		if i > 0 {
			text += ", "
		}
		text += a.String()
	}
	if n := len(all) - mostNamed; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}
