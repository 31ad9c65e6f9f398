// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/ipaddr"
	"kubeproxy/common/service"
)

var (
	errSpecial   = errors.New("not an address of a pod or a Service: unspecified, loopback, multicast or broadcast")
	errLinkLocal = errors.New("link-local, which Kubernetes allows for ClusterIPs and load balancers alone")
	errScoped    = errors.New("has an IPv6 zone")
)

// parseAddr parses an address that traffic can be sent to. A link-local one is refused,
// as by the API's validation of endpoints and external IPs.
func parseAddr(s string) (netip.Addr, error) {
	a, err := parseAssigned(s)
	if err == nil && a.IsLinkLocalUnicast() {
		return netip.Addr{}, fmt.Errorf("%.80q: %w", s, errLinkLocal)
	}
	return a, err
}

// parseAssigned is parseAddr for an address that the API server or a load balancer's
// controller assigned. It may be link-local, because the range of ClusterIPs may be.
func parseAssigned(s string) (netip.Addr, error) {
	a, err := ipaddr.Parse(s)
	switch {
	case err != nil:
		return netip.Addr{}, err
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%.80q: %w", s, errScoped)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a == broadcast():
		return netip.Addr{}, fmt.Errorf("%.80q: %w", s, errSpecial)
	}
	return a, nil
}

func broadcast() netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// parsePrefix parses a CIDR and clears its host bits.
func parsePrefix(s string) (netip.Prefix, error) {
	s = strings.TrimSpace(s)
	p, err := ipaddr.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%.80q mixes IPv4 and IPv6", s)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// collapse sorts prefixes and drops those that lie within another. Their host bits must
// be clear. It reuses the slice.
func collapse(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	kept := prefixes[:0]
	for _, p := range prefixes {
		if n := len(kept); n == 0 || !kept[n-1].Contains(p.Addr()) {
			kept = append(kept, p)
		}
	}
	return slices.Clip(kept)
}

func containsAddr(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// firstOf returns the first address of family f, or the zero Addr.
func firstOf(addrs []netip.Addr, f service.Family) netip.Addr {
	for _, a := range addrs {
		if service.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}
