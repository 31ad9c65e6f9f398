// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"net"
	"net/netip"
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
