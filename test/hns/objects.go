// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

const overlay = "Overlay"

func (c *call) checkNetwork(n Document) Code {
	if n.Type() != overlay {
		return OK
	}
	for _, s := range n.Subnets() {
		if !s.vsid {
			return InvalidPolicy
		}
	}
	return OK
}

// checkEndpoint completes an endpoint as HNS does: an address if it has none, the length
// of its prefix, a hardware address, a name.
func (c *call) checkEndpoint(network, e Document) Code {
	e["HostComputeNetwork"] = network.ID()
	if c.options.Personality.PlainNames && strings.Contains(e.Name(), ":") {
		return InvalidParameter
	}
	for _, m := range mappedBy(e) {
		if _, taken := c.index.mapped[m]; taken {
			return PortExists
		}
	}
	subnets := network.Subnets()
	if len(e.list("IpConfigurations")) == 0 && !e.Remote() && len(subnets) > 0 {
		ip, ok := c.free(network, subnets[0], c.options.Personality.LastAddress)
		if !ok {
			return AddressReserved
		}
		e["IpConfigurations"] = []any{map[string]any{"IpAddress": ip.String()}}
	}
	for _, config := range e.list("IpConfigurations") {
		if code := c.checkAddress(network, e, config); code != OK {
			return code
		}
	}
	if code := c.checkRemote(network, e); code != OK {
		return code
	}
	if e.MAC() == "" {
		c.macs++
		e["MacAddress"] = fmt.Sprintf("00-15-5D-52-%02X-%02X", c.macs>>8&0xff, c.macs&0xff)
	}
	if _, err := net.ParseMAC(e.MAC()); err != nil {
		return InvalidParameter
	}
	if e.Name() == "" {
		e["Name"] = "Ethernet"
	}
	return OK
}

// free returns the first unused address of a subnet, or the last one of 254. It skips the address after the
// subnet's own, which is the gateway's by custom.
func (c *call) free(network Document, s Subnet, last bool) (netip.Addr, bool) {
	ip, next := s.Prefix.Addr().Next().Next(), netip.Addr.Next
	if last {
		next = netip.Addr.Prev
		for range 252 {
			ip = ip.Next()
		}
	}
	for ; s.Prefix.Contains(ip); ip = next(ip) {
		_, taken := c.index.addresses[address{network.ID(), ip, false}]
		if !taken && !s.reserves(network, ip) {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func (c *call) checkAddress(network, e, config Document) Code {
	ip, err := netip.ParseAddr(config.text("IpAddress"))
	if err != nil {
		return InvalidIP
	}
	if _, taken := c.index.addresses[address{network.ID(), ip, e.Remote()}]; taken && e.Remote() {
		return ObjectExists
	} else if taken {
		return AddressReserved
	}
	if _, other := c.index.addresses[address{network.ID(), ip, !e.Remote()}]; other && c.options.Personality.OneAddress {
		return AddressReserved
	}
	for _, s := range network.Subnets() {
		if !s.Prefix.Contains(ip) {
			continue
		}
		if !e.Remote() && s.reserves(network, ip) {
			return AddressReserved
		}
		if config.number("PrefixLength") == 0 {
			config["PrefixLength"] = float64(s.Prefix.Bits())
		}
		return OK
	}
	if !e.Remote() {
		return InvalidIP
	}
	return OK
}

// reserves returns whether no endpoint may have ip: the subnet's first and last address,
// and the gateway's in an overlay network. In a bridged network CNI gives the host an
// endpoint with the gateway's address.
func (s Subnet) reserves(network Document, ip netip.Addr) bool {
	last := ip.Is4() && !s.Prefix.Contains(ip.Next())
	return ip == s.Prefix.Addr() || last || ip == s.Gateway && network.Type() == overlay
}

func (c *call) checkRemote(network, e Document) Code {
	if !e.Remote() {
		return OK
	}
	if len(e.list("IpConfigurations")) == 0 {
		return InvalidParameter
	}
	provider := e.policies("ProviderAddress")
	if len(provider) > 0 && c.options.Personality.StrictPolicies && network.Type() != overlay {
		return InvalidPolicyType
	}
	if network.Type() != overlay {
		return OK
	}
	if len(provider) == 0 || provider[0].text("ProviderAddress") == "" || e.MAC() == "" {
		return InvalidPolicy
	}
	return OK
}

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

// flags of a load balancer.
const (
	flagDSR  = 1
	flagIPv6 = 2
)

// The protocols HNS supports, by their IP numbers.
var protocols = []int{6, 17, 132}

// checkLoadBalancer checks a new load balancer, or the modified version of old.
func (c *call) checkLoadBalancer(lb Document, old *object) Code {
	if len(lb.Endpoints()) == 0 || len(lb.Ports()) == 0 {
		return InvalidParameter
	}
	if lb.Flags()&flagDSR != 0 && !c.options.Version.dsr() || lb.v6() && !c.options.Version.dualStack() {
		return InvalidParameter
	}
	for _, p := range lb.Ports() {
		if !c.validPort(p) {
			return InvalidParameter
		}
	}
	for _, vip := range append(lb.VIPs(), lb.SourceVIP()) {
		if ip, err := netip.ParseAddr(vip); vip != "" && (err != nil || ip.Is6() != lb.v6()) {
			return InvalidIP
		}
	}
	if code := c.checkTargets(lb); code != OK {
		return code
	}
	if old == nil && !c.portsLeft(lb) {
		return PortExists
	}
	return c.checkFronts(lb, old)
}

// portBlock is how many dynamic ports of the host a load balancer takes for each of its
// ports, unless it has direct server return.
const portBlock = 64

// portsLeft returns whether the host has the dynamic ports for a new load balancer.
func (c *call) portsLeft(lb Document) bool {
	if c.ports == 0 {
		return true
	}
	need := blocksOf(lb)
	for _, o := range c.store[LoadBalancer].all() {
		for protocol, blocks := range blocksOf(o.doc) {
			if need[protocol] > 0 {
				need[protocol] += blocks
			}
		}
	}
	for _, blocks := range need {
		if blocks*portBlock > c.ports {
			return false
		}
	}
	return true
}

// blocksOf counts the blocks of ports that a load balancer takes, by protocol.
func blocksOf(lb Document) map[int]int {
	blocks := map[int]int{}
	if lb.Flags()&flagDSR == 0 {
		for _, p := range lb.Ports() {
			blocks[p.number("Protocol")]++
		}
	}
	return blocks
}

func (c *call) validPort(p Document) bool {
	distribution := p.number("DistributionType")
	if distribution > 2 || distribution > 0 && !c.options.Version.affinity() {
		return false
	}
	for _, key := range []string{"InternalPort", "ExternalPort"} {
		if n := p.number(key); n < 1 || n > 65535 {
			return false
		}
	}
	return slices.Contains(protocols, p.number("Protocol"))
}

// checkTargets checks that all endpoints exist, are in one network, are on the switch,
// and have an address of the load balancer's family.
func (c *call) checkTargets(lb Document) Code {
	network, seen := "", map[string]bool{}
	for _, id := range lb.Endpoints() {
		e := c.store[Endpoint].objects[id]
		if e == nil {
			return EndpointNotFound
		}
		if e.portless || e.plugged > c.total {
			return PortNotFound
		}
		if network != "" && network != e.doc.NetworkID() {
			return InvalidParameter
		}
		if !slices.ContainsFunc(e.doc.IPs(), func(ip netip.Addr) bool { return ip.Is6() == lb.v6() }) {
			return InvalidIP
		}
		if seen[id] {
			c.warn("load balancer %s leads to endpoint %s twice", lb.ID(), id)
		}
		seen[id], network = true, e.doc.NetworkID()
	}
	return OK
}

// checkFronts checks that no other load balancer has the frontends.
func (c *call) checkFronts(lb Document, old *object) Code {
	for _, f := range frontsOf(lb) {
		owner := c.store[LoadBalancer].objects[c.index.fronts[f]]
		switch {
		case owner != nil && owner != old && owner.restored:
			return AlreadyExists
		case owner != nil && owner != old, c.portHeld(f, lb):
			return PortExists
		}
	}
	return OK
}

// portHeld returns whether a program on the host listens on a frontend. On Windows Server
// 2019 any listen address conflicts, unless the load balancer has direct server return.
func (c *call) portHeld(f front, lb Document) bool {
	if c.heldPorts[f.hostPort] == 0 {
		return false
	}
	return f.vip == "" || c.options.Version.server2019() && lb.Flags()&flagDSR == 0
}

// modify changes an object. The request for a load balancer is a complete one; that for
// other kinds names what to add, to remove or to replace.
func (c *call) modify(id string) Code {
	o := c.store[c.kind].objects[id]
	if o == nil {
		return missing(c.kind)
	}
	request, ok := parse(c.request.Args[0])
	if !ok {
		return InvalidJSON
	}
	if c.by == Caller && o.by == External {
		c.warn("%s %s modified, which is foreign", c.kind, id)
	}
	switch c.kind {
	case LoadBalancer:
		return c.modifyLoadBalancer(o, request)
	case Namespace:
		modifyNamespace(o.doc, request)
	default:
		if request.text("ResourceType") == "Policy" {
			modifyPolicies(o.doc, request)
		}
	}
	return OK
}

// modifyLoadBalancer replaces the endpoints of a load balancer. No public source states
// that other fields can change, so the rest of the request is checked and then ignored. A
// caller that relies on more reads back the previous values.
func (c *call) modifyLoadBalancer(o *object, request Document) Code {
	if !c.options.Version.modify() {
		return NotImplemented
	}
	if code := c.checkLoadBalancer(request, o); code != OK {
		return code
	}
	if !c.options.Version.works() {
		return OK
	}
	c.index.remove(LoadBalancer, o.doc)
	o.doc["HostComputeEndpoints"] = request["HostComputeEndpoints"]
	c.index.add(LoadBalancer, o.doc)
	return OK
}

func modifyPolicies(d, request Document) {
	have, _ := d["Policies"].([]any)
	given, _ := request.object("Settings")["Policies"].([]any)
	switch request.text("RequestType") {
	case "Add":
		d["Policies"] = slices.Concat(have, given)
	case "Update":
		d["Policies"] = given
	case "Remove":
		d["Policies"] = slices.DeleteFunc(have, func(p any) bool {
			return slices.ContainsFunc(given, func(q any) bool { return reflect.DeepEqual(p, q) })
		})
	}
}

// modifyNamespace moves an endpoint into a namespace or out of it.
func modifyNamespace(d, request Document) {
	id := strings.ToUpper(request.object("Settings").text("EndpointId"))
	if request.text("ResourceType") != "Endpoint" || id == "" {
		return
	}
	resource := map[string]any{"Type": "Endpoint", "Data": map[string]any{"Id": id}}
	have, _ := d["Resources"].([]any)
	have = slices.DeleteFunc(have, func(r any) bool { return reflect.DeepEqual(r, any(resource)) })
	if request.text("RequestType") == "Add" {
		have = append(have, resource)
	}
	d["Resources"] = have
}

// index finds objects without a walk over all of them: a node has thousands.
type index struct {
	// addresses maps an address to its endpoint. A local and a remote endpoint may share
	// one.
	addresses map[address]string
	// fronts maps an address and port to its load balancer.
	fronts map[front]string
	// users are the load balancers of an endpoint.
	users map[string]map[string]bool
	// mapped are ports of the host that endpoints have taken.
	mapped map[hostPort]string
}

type address struct {
	network string
	ip      netip.Addr
	remote  bool
}

// front is a frontend, which belongs to one load balancer only. An empty VIP stands for
// all addresses of the node in one family.
type front struct {
	vip string
	v6  bool
	hostPort
}

// hostPort is a port of an IP protocol's number.
type hostPort struct{ protocol, port int }

func newIndex() index {
	return index{map[address]string{}, map[front]string{}, map[string]map[string]bool{}, map[hostPort]string{}}
}

func addressesOf(e Document) []address {
	var list []address
	for _, ip := range e.IPs() {
		list = append(list, address{e.NetworkID(), ip, e.Remote()})
	}
	return list
}

func mappedBy(e Document) []hostPort {
	var list []hostPort
	for _, m := range e.policies("PortMapping") {
		list = append(list, hostPort{m.number("Protocol"), m.number("ExternalPort")})
	}
	return list
}

func frontsOf(lb Document) []front {
	vips := lb.VIPs()
	if len(vips) == 0 {
		vips = []string{""}
	}
	var list []front
	for _, p := range lb.Ports() {
		for _, vip := range vips {
			list = append(list, front{vip, lb.v6(), hostPort{p.number("Protocol"), p.number("ExternalPort")}})
		}
	}
	return list
}

func (d Document) v6() bool { return d.Flags()&2 != 0 }

// add and remove update the index; they ignore the kinds that it does not cover.
func (x index) add(kind Kind, d Document) {
	id := d.ID()
	switch kind {
	case Endpoint:
		for _, a := range addressesOf(d) {
			x.addresses[a] = id
		}
		for _, m := range mappedBy(d) {
			x.mapped[m] = id
		}
	case LoadBalancer:
		for _, f := range frontsOf(d) {
			x.fronts[f] = id
		}
		for _, e := range d.Endpoints() {
			if x.users[e] == nil {
				x.users[e] = map[string]bool{}
			}
			x.users[e][id] = true
		}
	}
}

func (x index) remove(kind Kind, d Document) {
	switch kind {
	case Endpoint:
		for _, a := range addressesOf(d) {
			delete(x.addresses, a)
		}
		for _, m := range mappedBy(d) {
			delete(x.mapped, m)
		}
	case LoadBalancer:
		for _, f := range frontsOf(d) {
			delete(x.fronts, f)
		}
		for _, e := range d.Endpoints() {
			delete(x.users[e], d.ID())
		}
	}
}

// usersOf names the load balancers of an endpoint that are not deleted.
func (s *Simulator) usersOf(endpoint string) string {
	var ids []string
	for id := range s.index.users[endpoint] {
		if s.store[LoadBalancer].objects[id].gone == 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, ", ")
}
