// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Kind is a kind of object, as it is spelt in the names of functions.
type Kind string

// The kinds of objects.
const (
	Network      Kind = "Network"
	Endpoint     Kind = "Endpoint"
	LoadBalancer Kind = "LoadBalancer"
	Namespace    Kind = "Namespace"
	SdnRoute     Kind = "SdnRoute"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Network, Endpoint, LoadBalancer, Namespace, SdnRoute} }

// Document is an HNS object as it is transmitted: JSON of schema 2. Numbers are float64.
// A missing field reads as the zero value.
type Document map[string]any

// ID returns the object's identity in lower case.
func (d Document) ID() string { return strings.ToLower(d.text("ID")) }

// Name returns the object's name; load balancers have none.
func (d Document) Name() string { return d.text("Name") }

// Type returns a network's type.
func (d Document) Type() string { return d.text("Type") }

// Flags returns the object's flags.
func (d Document) Flags() int { return d.number("Flags") }

// Remote returns whether an endpoint is on another host.
func (d Document) Remote() bool { return d.Flags()&1 != 0 }

// NetworkID returns an endpoint's network in lower case.
func (d Document) NetworkID() string { return strings.ToLower(d.text("HostComputeNetwork")) }

// MAC returns an endpoint's hardware address.
func (d Document) MAC() string { return d.text("MacAddress") }

// Endpoints returns the endpoints of a load balancer, identities in lower case.
func (d Document) Endpoints() []string {
	ids := d.texts("HostComputeEndpoints")
	for i, id := range ids {
		ids[i] = strings.ToLower(id)
	}
	return ids
}

// VIPs returns a load balancer's addresses; none means those of the node.
func (d Document) VIPs() []string { return d.texts("FrontendVIPs") }

// SourceVIP returns the address a load balancer masquerades with.
func (d Document) SourceVIP() string { return d.text("SourceVIP") }

// Ports returns a load balancer's port mappings.
func (d Document) Ports() []Document { return d.list("PortMappings") }

// IPs returns an endpoint's addresses. Invalid ones are left out.
func (d Document) IPs() []netip.Addr {
	var ips []netip.Addr
	for _, c := range d.list("IpConfigurations") {
		if a, err := netip.ParseAddr(c.text("IpAddress")); err == nil {
			ips = append(ips, a)
		}
	}
	return ips
}

// Subnets returns a network's subnets, each with its gateway, which may be the zero Addr.
func (d Document) Subnets() []Subnet {
	var subnets []Subnet
	for _, ipam := range d.list("Ipams") {
		for _, s := range ipam.list("Subnets") {
			if sub, ok := subnet(s); ok {
				subnets = append(subnets, sub)
			}
		}
	}
	return subnets
}

// Subnet is a subnet of a network.
type Subnet struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
	vsid    bool
}

func subnet(d Document) (Subnet, bool) {
	prefix, err := netip.ParsePrefix(d.text("IpAddressPrefix"))
	if err != nil {
		return Subnet{}, false
	}
	s := Subnet{Prefix: prefix.Masked(), vsid: len(d.policies("VSID")) > 0}
	for _, r := range d.list("Routes") {
		if a, err := netip.ParseAddr(r.text("NextHop")); err == nil {
			s.Gateway = a
		}
	}
	return s, true
}

// policies returns the settings of the policies of one type.
func (d Document) policies(typ string) []Document {
	var found []Document
	for _, p := range d.list("Policies") {
		if p.text("Type") == typ {
			found = append(found, p.object("Settings"))
		}
	}
	return found
}

func (d Document) text(key string) string { s, _ := d[key].(string); return s }
func (d Document) number(key string) int  { f, _ := d[key].(float64); return int(f) }

func (d Document) object(key string) Document {
	m, _ := d[key].(map[string]any)
	return m
}

func (d Document) list(key string) []Document {
	values, _ := d[key].([]any)
	list := make([]Document, 0, len(values))
	for _, v := range values {
		m, _ := v.(map[string]any)
		list = append(list, m)
	}
	return list
}

func (d Document) texts(key string) []string {
	values, _ := d[key].([]any)
	list := make([]string, 0, len(values))
	for _, v := range values {
		s, _ := v.(string)
		list = append(list, s)
	}
	return list
}

// parse parses a document. Its values have the types that encoding/json produces,
// whatever the text is.
func parse(text string) (Document, bool) {
	var d Document
	if err := json.Unmarshal([]byte(text), &d); err != nil || d == nil {
		return nil, false
	}
	return d, true
}

// clone copies d deeply, so that it may leave the Simulator.
func (d Document) clone() Document {
	copied, _ := copyOf(map[string]any(d)).(map[string]any)
	return copied
}

func copyOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := maps.Clone(v)
		for k := range m {
			m[k] = copyOf(m[k])
		}
		return m
	case []any:
		l := slices.Clone(v)
		for i := range l {
			l[i] = copyOf(l[i])
		}
		return l
	}
	return v
}
