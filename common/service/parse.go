// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

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
