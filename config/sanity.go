// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/netip"
	"slices"

	"kubeproxy/common/ipaddr"
)

// noteFamilies adds notes about settings that omit an IP family. None is an error,
// because a cluster may have one family.
func (b *build) noteFamilies() {
	primary := familyName(b.BindAddress)
	b.noteNodePorts()
	if all, _ := clusterCIDRs(b.ClusterCIDR); len(all) > 0 && b.DetectLocalMode == ClusterCIDR && !hasFamily(all, primary) {
		b.notef("clusterCIDR", "has no prefix of the primary family %s, so pods of that family cannot be distinguished from other clients", primary)
	}
	if excluded := prefixes(b.IPVS.ExcludeCIDRs); len(excluded) > 0 && b.Mode == IPVS && !hasFamily(excluded, primary) {
		b.notef("ipvs.excludeCIDRs", "has no prefix of the primary family %s", primary)
	}
	if vip := b.Winkernel.SourceVip; vip != "" && b.os == Windows && familyName(vip) != primary {
		b.notef("winkernel.sourceVip", "is not of the primary family %s", primary)
	}
	b.noteListener("healthzBindAddress", b.HealthzBindAddress, primary)
	b.noteListener("metricsBindAddress", b.MetricsBindAddress, primary)
}

// noteListener adds a note about a server that is unreachable over the primary family. On
// [::] it is reachable over both, and loopback is for the node alone.
func (b *build) noteListener(path, addr, primary string) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || at.Port() == 0 || at.Addr().IsLoopback() || at.Addr() == netip.IPv6Unspecified() || familyOf(at.Addr()) == primary {
		return
	}
	b.notef(path, "%s answers %s only, while the primary family is %s", addr, familyOf(at.Addr()), primary)
}

func (b *build) noteNodePorts() {
	words := b.NodePortAddresses
	if b.os == Windows {
		if len(words) > 0 {
			b.notef("nodePortAddresses", "applies on %s to health checks of Services only: NodePorts answer on every address of the node", b.os)
		}
		return
	}
	if len(words) == 0 && !usesNFTables(b.Mode, b.os) {
		b.notef("nodePortAddresses", "is not set: every address of the node answers NodePorts; %q restricts that to the node's own", wordPrimary)
	}
	all := prefixes(words)
	if len(all) == 0 || slices.Contains(words, wordPrimary) || slices.Contains(words, wordAll) || slices.Contains(words, wordLocalhost) {
		return
	}
	for _, f := range []string{ipv4, ipv6} {
		if !hasFamily(all, f) {
			b.notef("nodePortAddresses", "has no prefix of %s, so every %s address of the node answers NodePorts", f, f)
		}
	}
}

// The families, as people write them.
const (
	ipv4 = "IPv4"
	ipv6 = "IPv6"
)

func familyOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return ipv4
	}
	return ipv6
}

// familyName returns the family of an address that passed the checks.
func familyName(s string) string {
	a, _ := ipaddr.Parse(s)
	return familyOf(a)
}

// prefixes returns those words that are prefixes.
func prefixes(words []string) []netip.Prefix {
	var all []netip.Prefix
	for _, w := range words {
		if p, err := parsePrefix(w); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func hasFamily(all []netip.Prefix, family string) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
}
