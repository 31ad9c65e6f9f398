// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ipaddr reads IP addresses and prefixes as Kubernetes reads those of stored
// objects: numbers with leading zeros are decimal (kubernetes/kubernetes#108074). API
// servers used to accept such addresses, and keep those that they have.
package ipaddr

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	netutils "k8s.io/utils/net"
)

// Parse reads an address. IPv4 mapped to IPv6 counts as IPv4. A zone is kept.
func Parse(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		var ok bool
		if a, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(s)); !ok {
			return netip.Addr{}, fmt.Errorf("%.80q is not an IP address", s)
		}
	}
	return a.Unmap(), nil
}

// ParsePort reads an address and port, such as 192.0.2.1:80 or [2001:db8::1]:80.
func ParsePort(s string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return netip.AddrPort{}, err
	}
	a, err := Parse(host)
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
	if p, err := netip.ParsePrefix(s); err == nil {
		return p, nil
	}
	ip, within, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%.80q is not a CIDR like 192.0.2.0/24", s)
	}
	a, _ := netip.AddrFromSlice(ip)
	bits, size := within.Mask.Size()
	if size == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits), nil
}
