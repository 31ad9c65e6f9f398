// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/files"
	"kubeproxy/common/service"
)

// The documents of HNS, schema 2, as far as this package uses them (microsoft/hcsshim,
// package hcn). The driver and dumps of a node's state share them.
type (
	schema struct{ Major, Minor int }

	policy struct {
		Type     string          `json:",omitempty"`
		Settings json.RawMessage `json:",omitempty"`
	}

	networkDocument struct {
		ID, Name, Type string
		Policies       []policy
		Ipams          []struct{ Subnets []subnetDocument }
	}

	subnetDocument struct {
		IpAddressPrefix string
		Routes          []struct{ NextHop, DestinationPrefix string }
	}

	endpointDocument struct {
		ID                 string `json:",omitempty"`
		Name               string
		HostComputeNetwork string
		// HostComputeNamespace is the ID of the endpoint's namespace.
		HostComputeNamespace string     `json:",omitempty"`
		Policies             []policy   `json:",omitempty"`
		IpConfigurations     []ipConfig `json:",omitempty"`
		MacAddress           string     `json:",omitempty"`
		Flags                uint32     `json:",omitempty"`
		SchemaVersion        schema
	}

	ipConfig struct {
		IpAddress    string
		PrefixLength uint8 `json:",omitempty"`
	}

	balancerDocument struct {
		ID                   string `json:",omitempty"`
		HostComputeEndpoints []string
		SourceVIP            string   `json:",omitempty"`
		FrontendVIPs         []string `json:",omitempty"`
		PortMappings         []portMapping
		Flags                uint32 `json:",omitempty"`
		SchemaVersion        schema
	}

	portMapping struct {
		Protocol                   uint32
		InternalPort, ExternalPort uint16
		DistributionType, Flags    uint32 `json:",omitempty"`
	}
)

const (
	flagRemote = 1 // of an endpoint
	flagDSR    = 1 // of a load balancer
	flagIPv6   = 2
)

// providerPolicy is the type of a policy with the node behind a network or endpoint.
const providerPolicy = "ProviderAddress"

// dump is the state of a node's HNS, as HNS's own documents.
type dump struct {
	Version       Version
	Networks      []json.RawMessage
	Endpoints     []json.RawMessage
	LoadBalancers []json.RawMessage
}

// ReadState parses a Listing from JSON: an object with Version, which has Major and
// Minor, and the lists Networks, Endpoints and LoadBalancers of documents, as HNS and
// hnsdiag return them. The text may be UTF-16, which Windows consoles write to files.
func ReadState(text []byte) (Listing, error) {
	var d dump
	if err := json.Unmarshal(files.Text(text), &d); err != nil {
		return Listing{}, fmt.Errorf("read HNS state: %w: want an object with Version, Networks, Endpoints and LoadBalancers", err)
	}
	if len(d.Networks) == 0 {
		return Listing{}, fmt.Errorf("read HNS state: Networks is missing or empty: want at least the network for pods")
	}
	if d.Version == (Version{}) {
		return Listing{}, fmt.Errorf(`read HNS state: Version is missing: want one such as {"Major": 13, "Minor": 3}`)
	}
	l := Listing{Version: d.Version}
	var err error
	if l.Networks, err = parseAll(d.Networks, "Networks", parseNetwork); err != nil {
		return Listing{}, err
	}
	if l.Endpoints, err = parseAll(d.Endpoints, "Endpoints", parseEndpoint); err != nil {
		return Listing{}, err
	}
	l.LoadBalancers, err = parseAll(d.LoadBalancers, "LoadBalancers", parseBalancer)
	return l, err
}

func parseAll[T any](documents []json.RawMessage, field string, parse func([]byte) (T, error)) ([]T, error) {
	var all []T
	for i, d := range documents {
		x, err := parse(d)
		if err != nil {
			return nil, fmt.Errorf("read HNS state: %s[%d]: %w", field, i, err)
		}
		all = append(all, x)
	}
	return all, nil
}

// parseNetwork ignores policies that it cannot parse, as HNS has more notations for a subnet.
func parseNetwork(text []byte) (Network, error) {
	var d networkDocument
	if err := json.Unmarshal(text, &d); err != nil {
		return Network{}, err
	}
	n := Network{ID: strings.ToLower(d.ID), Name: d.Name, Kind: Kind(d.Type), Provider: providerOf(d.Policies)}
	for _, k := range Kinds { // older versions use other capitals
		if strings.EqualFold(d.Type, string(k)) {
			n.Kind = k
		}
	}
	for _, ipam := range d.Ipams {
		for _, s := range ipam.Subnets {
			s.add(&n)
		}
	}
	for _, p := range d.Policies {
		var r struct{ DestinationPrefix, ProviderAddress string }
		if p.Type != "RemoteSubnetRoute" || json.Unmarshal(p.Settings, &r) != nil {
			continue
		}
		subnet, err1 := netip.ParsePrefix(r.DestinationPrefix)
		provider, err2 := netip.ParseAddr(r.ProviderAddress)
		if err1 == nil && err2 == nil {
			n.Routes = append(n.Routes, Route{subnet, provider})
		}
	}
	return n, nil
}

func (s *subnetDocument) add(n *Network) {
	if p, err := netip.ParsePrefix(s.IpAddressPrefix); err == nil {
		n.Subnets = append(n.Subnets, p)
	}
	for _, r := range s.Routes {
		if a, err := netip.ParseAddr(r.NextHop); err == nil && !a.IsUnspecified() {
			n.Gateways = append(n.Gateways, a)
		}
	}
}

func providerOf(policies []policy) netip.Addr {
	for _, p := range policies {
		var s struct{ ProviderAddress string }
		if p.Type == providerPolicy && json.Unmarshal(p.Settings, &s) == nil {
			a, _ := netip.ParseAddr(s.ProviderAddress)
			return a
		}
	}
	return netip.Addr{}
}

// noNamespace is how some versions write that an endpoint has no namespace.
const noNamespace = "00000000-0000-0000-0000-000000000000"

func parseEndpoint(text []byte) (Endpoint, error) {
	var d endpointDocument
	if err := json.Unmarshal(text, &d); err != nil {
		return Endpoint{}, err
	}
	e := Endpoint{
		ID: strings.ToLower(d.ID), Name: d.Name, Network: strings.ToLower(d.HostComputeNetwork),
		MAC: d.MacAddress, Provider: providerOf(d.Policies), Remote: d.Flags&flagRemote != 0,
		HasNamespace: d.HostComputeNamespace != "" && d.HostComputeNamespace != noNamespace,
	}
	for _, c := range d.IpConfigurations {
		if a, err := netip.ParseAddr(c.IpAddress); err == nil {
			e.Addrs = append(e.Addrs, a.Unmap())
		}
	}
	e.LoopbackDSR = slices.ContainsFunc(d.Policies, func(p policy) bool {
		var nat struct{ Destinations []string }
		return p.Type == "OutBoundNAT" && json.Unmarshal(p.Settings, &nat) == nil && slices.ContainsFunc(nat.Destinations, func(to string) bool {
			a, err := netip.ParseAddr(strings.TrimSuffix(to, "/32"))
			return err == nil && e.HasAddr(a.Unmap())
		})
	})
	return e, nil
}

// document returns the request that creates e.
func (e *Endpoint) document() endpointDocument {
	d := endpointDocument{Name: e.Name, HostComputeNetwork: e.Network, MacAddress: e.MAC, SchemaVersion: schema{Major: 2}}
	if e.Remote {
		d.Flags = flagRemote
	}
	for _, a := range e.Addrs {
		d.IpConfigurations = append(d.IpConfigurations, ipConfig{IpAddress: a.String()})
	}
	if e.Provider.IsValid() {
		settings, _ := json.Marshal(map[string]string{"ProviderAddress": e.Provider.String()})
		d.Policies = []policy{{providerPolicy, settings}}
	}
	return d
}

// parseBalancer also takes others'. Those with several addresses or ports have ExtraKeys.
func parseBalancer(text []byte) (LoadBalancer, error) {
	var d balancerDocument
	if err := json.Unmarshal(text, &d); err != nil {
		return LoadBalancer{}, err
	}
	lb := LoadBalancer{ID: strings.ToLower(d.ID), DSR: d.Flags&flagDSR != 0, Unsupported: d.Flags&^(flagDSR|flagIPv6) != 0}
	for _, id := range d.HostComputeEndpoints {
		lb.Endpoints = append(lb.Endpoints, strings.ToLower(id))
	}
	slices.Sort(lb.Endpoints)
	lb.Endpoints = slices.Compact(lb.Endpoints)
	if a, err := netip.ParseAddr(d.SourceVIP); err == nil {
		lb.SourceVIP = a.Unmap()
	}
	keys := d.keys()
	if len(keys) == 0 {
		lb.Unsupported = true
		return lb, nil
	}
	lb.Address, lb.ExtraKeys = keys[0], keys[1:]
	if len(lb.ExtraKeys) == 0 {
		lb.ExtraKeys = nil
	}
	m := d.PortMappings[0]
	lb.TargetPort, lb.Flags, lb.Distribution = m.InternalPort, PortFlags(m.Flags), Distribution(m.DistributionType)
	return lb, nil
}

// keys returns the keys of d. The address family of a NodePort is a flag.
func (d *balancerDocument) keys() []service.Address {
	var vips []netip.Addr
	for _, s := range d.FrontendVIPs {
		if a, err := netip.ParseAddr(s); err == nil {
			vips = append(vips, a.Unmap())
		}
	}
	if len(d.FrontendVIPs) == 0 {
		vips = []netip.Addr{{}}
	}
	var keys []service.Address
	for _, m := range d.PortMappings {
		for _, a := range vips {
			k := service.Address{Addr: a, Port: m.ExternalPort, Protocol: service.Protocol(m.Protocol)}
			if a.IsValid() {
				k.Family = service.FamilyOf(a)
			} else if d.Flags&flagIPv6 != 0 {
				k.Family = service.IPv6
			}
			keys = append(keys, k)
		}
	}
	return keys
}

// document returns the request that creates lb.
func (lb *LoadBalancer) document() balancerDocument {
	d := balancerDocument{
		HostComputeEndpoints: lb.Endpoints,
		PortMappings: []portMapping{{
			Protocol: uint32(lb.Protocol), InternalPort: lb.TargetPort, ExternalPort: lb.Port,
			DistributionType: uint32(lb.Distribution), Flags: uint32(lb.Flags),
		}},
		SchemaVersion: schema{Major: 2},
	}
	if lb.Addr.IsValid() {
		d.FrontendVIPs = []string{lb.Addr.String()}
	}
	if lb.SourceVIP.IsValid() {
		d.SourceVIP = lb.SourceVIP.String()
	}
	if lb.DSR {
		d.Flags |= flagDSR
	}
	if lb.Family == service.IPv6 {
		d.Flags |= flagIPv6
	}
	return d
}
