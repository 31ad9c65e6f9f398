// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net/netip"
	"strings"
)

// NetworkConfig is a network as a CNI plugin creates it.
type NetworkConfig struct {
	ID      string // HNS chooses one if it is empty
	Name    string
	Type    string // Overlay, L2Bridge, L2Tunnel, NAT
	Subnets []netip.Prefix
	// Routes lead to the pods of other nodes, in an overlay network.
	Routes []Route
}

// Route is how an overlay network reaches the pods of another node.
type Route struct {
	Prefix   netip.Prefix
	Provider netip.Addr // the node's address
	MAC      string     // of its router
}

// vsid is the isolation number that flannel's overlay network has by default.
const vsid = 4096

// AddNetwork creates a network as a CNI plugin does. The gateway is the second address of
// each subnet.
func (s *Simulator) AddNetwork(n NetworkConfig) (id string, err error) {
	var subnets, policies []any
	for _, p := range n.Subnets {
		all := "0.0.0.0/0"
		if p.Addr().Is6() {
			all = "::/0"
		}
		sub := map[string]any{
			"IpAddressPrefix": p.String(),
			"Routes":          []any{map[string]any{"NextHop": p.Masked().Addr().Next().String(), "DestinationPrefix": all}},
		}
		if n.Type == overlay {
			sub["Policies"] = []any{map[string]any{"Type": "VSID", "Settings": map[string]any{"IsolationId": vsid}}}
		}
		subnets = append(subnets, sub)
	}
	for _, r := range n.Routes {
		policies = append(policies, r.policy())
	}
	return s.createExternal(Network, 0, Document{
		"ID": n.ID, "Name": n.Name, "Type": n.Type, "Policies": policies, "SchemaVersion": schema(),
		"Ipams": []any{map[string]any{"Type": "Static", "Subnets": subnets}},
	})
}

func (r Route) policy() map[string]any {
	return map[string]any{"Type": "RemoteSubnetRoute", "Settings": map[string]any{
		"DestinationPrefix": r.Prefix.String(), "IsolationId": vsid,
		"ProviderAddress": r.Provider.String(), "DistributedRouterMacAddress": r.MAC,
	}}
}

func schema() map[string]any { return map[string]any{"Major": 2, "Minor": 0} }

// createExternal creates an object for another program, in a network if it needs one.
func (s *Simulator) createExternal(kind Kind, network uint64, doc Document) (id string, err error) {
	reply := s.Call(Request{Function: "HcnCreate" + string(kind), Handle: network, Args: [3]string{text(doc)}})
	if network != 0 {
		s.closeHandle(Network, network)
	}
	if reply.Code != OK {
		return "", fmt.Errorf("create %s %s: %w", kind, doc.Name(), reply.Code)
	}
	s.mu.Lock()
	id = s.handles[reply.Handle].id
	s.mu.Unlock()
	s.closeHandle(kind, reply.Handle)
	return id, nil
}

func (s *Simulator) closeHandle(kind Kind, handle uint64) {
	s.Call(Request{Function: "HcnClose" + string(kind), Handle: handle})
}

// AddRoute adds a node to an overlay network.
func (s *Simulator) AddRoute(network string, r Route) error { return s.changeRoute(network, r, "Add") }

// RemoveRoute removes a node from an overlay network.
func (s *Simulator) RemoveRoute(network string, r Route) error {
	return s.changeRoute(network, r, "Remove")
}

func (s *Simulator) changeRoute(network string, r Route, how string) error {
	handle, err := s.openNetwork(network)
	if err != nil {
		return err
	}
	defer s.closeHandle(Network, handle)
	reply := s.Call(Request{Function: "HcnModifyNetwork", Handle: handle, Args: [3]string{text(Document{
		"ResourceType": "Policy", "RequestType": how, "Settings": map[string]any{"Policies": []any{r.policy()}},
	})}})
	return reply.Code.err()
}

// openNetwork opens a network by its name or its identity.
func (s *Simulator) openNetwork(network string) (uint64, error) {
	for _, n := range s.Objects(Network) {
		if n.Name() == network || n.ID() == strings.ToLower(network) {
			reply := s.Call(Request{Function: "HcnOpenNetwork", ID: n.ID()})
			return reply.Handle, reply.Code.err()
		}
	}
	return 0, fmt.Errorf("open network %q: %w", network, NetworkNotFound)
}

// podNamespace is the namespace of all pods' endpoints.
const podNamespace = "7c6ff0a5-0000-4000-8000-000000000001"

// AddPod creates the endpoint of a pod on this node as a CNI plugin with loopbackDSR does. The network is
// a name or an identity; without addresses HNS assigns one.
func (s *Simulator) AddPod(network, name string, ips ...netip.Addr) (id string, err error) {
	handle, err := s.openNetwork(network)
	if err != nil {
		return "", err
	}
	d := endpointDocument(name, ips)
	d["HostComputeNamespace"] = podNamespace
	var policies []any
	for _, ip := range ips {
		policies = append(policies, map[string]any{"Type": "OutBoundNAT", "Settings": map[string]any{"Destinations": []any{ip.String()}}})
	}
	if policies != nil {
		d["Policies"] = policies
	}
	return s.createExternal(Endpoint, handle, d)
}

// AddRemote creates a remote endpoint that the program under test does not own.
func (s *Simulator) AddRemote(network string, ip, provider netip.Addr, mac string) (id string, err error) {
	handle, err := s.openNetwork(network)
	if err != nil {
		return "", err
	}
	d := endpointDocument("", []netip.Addr{ip})
	d["Flags"], d["MacAddress"] = 1, mac
	d["Policies"] = []any{map[string]any{"Type": "ProviderAddress", "Settings": map[string]any{"ProviderAddress": provider.String()}}}
	return s.createExternal(Endpoint, handle, d)
}

func endpointDocument(name string, ips []netip.Addr) Document {
	var configs []any
	for _, ip := range ips {
		configs = append(configs, map[string]any{"IpAddress": ip.String()})
	}
	return Document{"Name": name, "IpConfigurations": configs, "SchemaVersion": schema()}
}

// AddLoadBalancer creates a load balancer that the program under test does not own.
func (s *Simulator) AddLoadBalancer(doc Document) (id string, err error) {
	return s.createExternal(LoadBalancer, 0, doc)
}

// Delete deletes an object for another program. Objects that use it break without a
// warning.
func (s *Simulator) Delete(kind Kind, id string) error {
	return s.Call(Request{Function: "HcnDelete" + string(kind), ID: id}).Code.err()
}

// Detach detaches an endpoint from the switch, which is its state while its pod starts: a
// load balancer with it cannot be created.
func (s *Simulator) Detach(endpoint string) error { return s.plug(endpoint, true) }

// Attach attaches it to the switch again.
func (s *Simulator) Attach(endpoint string) error { return s.plug(endpoint, false) }

func (s *Simulator) plug(endpoint string, out bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.store[Endpoint].objects[strings.ToLower(endpoint)]
	if o == nil {
		return EndpointNotFound
	}
	o.portless = out
	return nil
}

// LimitPorts is how many dynamic ports the host has for each protocol, 0 for no limit.
func (s *Simulator) LimitPorts(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports = n
}

// Hold simulates a program that listens on a port of the host, by IP protocol number.
func (s *Simulator) Hold(protocol, port int) { s.hold(hostPort{protocol, port}, 1) }

// Release ends a Hold.
func (s *Simulator) Release(protocol, port int) { s.hold(hostPort{protocol, port}, -1) }

func (s *Simulator) hold(p hostPort, more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heldPorts[p] = max(0, s.heldPorts[p]+more)
}
