// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/ipaddr"
	"kubeproxy/common/service"
)

// The words that nodePortAddresses accepts besides prefixes.
const (
	wordPrimary   = "primary"
	wordAll       = "all"
	wordLocalhost = "localhost"
)

// normalName converts a node's name to the form that the API uses.
func normalName(name string) string { return strings.ToLower(strings.TrimSpace(name)) }

// NodeName returns the name of the node. host is the system's host name.
func (c *Config) NodeName(host string) string {
	if c.HostnameOverride != "" {
		return c.HostnameOverride
	}
	return normalName(host)
}

// NodeIP returns the address that the operator set for the node. It is invalid if the
// Node object decides.
func (c *Config) NodeIP() netip.Addr {
	a, _ := ipaddr.Parse(c.BindAddress)
	if a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// ClusterCIDRs returns the prefixes of all pods, at most one per family.
func (c *Config) ClusterCIDRs() []netip.Prefix {
	all, _ := clusterCIDRs(c.ClusterCIDR)
	return all
}

// NodePortRange selects the addresses of the node that serve NodePorts.
type NodePortRange struct {
	Prefixes []netip.Prefix // length zero means all addresses
	Primary  bool           // the node's primary addresses too
}

// NodePorts returns nodePortAddresses, resolved. Without the word primary, a family
// without a prefix serves on all addresses. If the setting is empty, mode nftables uses
// the primary addresses, unlike the other modes:
// https://kubernetes.io/docs/reference/networking/virtual-ips/.
func (c *Config) NodePorts() NodePortRange {
	words := c.NodePortAddresses
	if len(words) == 0 && usesNFTables(c.Mode, c.OS) {
		words = []string{wordPrimary}
	}
	r, _ := nodePorts(words)
	if !r.Primary {
		r.Prefixes = service.OrAnyAddress(r.Prefixes)
	}
	return r
}

func (b *build) validateAddresses() {
	if _, err := ipaddr.Parse(b.BindAddress); err != nil {
		b.errorf("bindAddress", "%q is no IP address: want one such as 192.0.2.1, or 0.0.0.0 or :: for the node's own", b.BindAddress)
	}
	b.hostPort("healthzBindAddress", b.HealthzBindAddress, "0.0.0.0:10256 or [::]:10256")
	b.hostPort("metricsBindAddress", b.MetricsBindAddress, "127.0.0.1:10249 or [::1]:10249")
	b.checkServersDiffer()
	if _, err := clusterCIDRs(b.ClusterCIDR); err != nil {
		b.errorf("clusterCIDR", "%v", err)
	}
	if _, err := nodePorts(b.NodePortAddresses); err != nil {
		b.errorf("nodePortAddresses", "%v", err)
	}
	for i, s := range b.IPVS.ExcludeCIDRs {
		if _, err := parsePrefix(s); err != nil {
			b.errorf(fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), "%v", err)
		}
	}
	if vip := b.Winkernel.SourceVip; vip != "" {
		if _, err := ipaddr.Parse(vip); err != nil {
			b.errorf("winkernel.sourceVip", "%q is no IP address: want one such as 192.0.2.1", vip)
		}
	}
}

// hostPort validates an address with a port. Port 0 means no server.
func (b *build) hostPort(path, s, example string) {
	if _, err := netip.ParseAddrPort(s); err != nil {
		b.errorf(path, "%.80q is no IP address with a port: want one such as %s, port 0 for none", s, example)
	}
}

// checkServersDiffer checks for two servers on the same address. Old versions had one
// server for everything, so old units have such addresses. Then the health server serves,
// and the other one waits for the address.
func (b *build) checkServersDiffer() {
	health, err1 := netip.ParseAddrPort(b.HealthzBindAddress)
	metrics, err2 := netip.ParseAddrPort(b.MetricsBindAddress)
	if err1 != nil || err2 != nil || health.Port() != metrics.Port() || health.Port() == 0 {
		return
	}
	x, y := health.Addr(), metrics.Addr()
	all := netip.IPv6Unspecified()
	if x != y && x != all && y != all && (x.Is4() != y.Is4() || !x.IsUnspecified() && !y.IsUnspecified()) {
		return
	}
	if b.BindAddressHardFail {
		b.errorf("metricsBindAddress", "%s is taken by healthzBindAddress %s: want another port", metrics, health)
		return
	}
	b.warnf("metricsBindAddress", "%s is taken by healthzBindAddress %s, so metrics are not served: want another port", metrics, health)
}

func clusterCIDRs(s string) ([]netip.Prefix, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var all []netip.Prefix
	for _, part := range strings.Split(s, ",") {
		p, err := parsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
		return nil, fmt.Errorf("%q holds more than one prefix of a family: want one, or one IPv4 and one IPv6", s)
	}
	return all, nil
}

func nodePorts(words []string) (NodePortRange, error) {
	var r NodePortRange
	var errs []error
	seen := map[string]bool{}
	for _, word := range words {
		canon := word
		switch word {
		case wordPrimary:
			r.Primary = true
		case wordAll:
			r.Prefixes = append(r.Prefixes, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
		case wordLocalhost:
			r.Prefixes = append(r.Prefixes, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		default:
			p, err := parsePrefix(word)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w, or one of the words %s, %s, %s", err, wordPrimary, wordAll, wordLocalhost))
				continue
			}
			canon = p.String()
			r.Prefixes = append(r.Prefixes, p)
		}
		if seen[canon] {
			errs = append(errs, fmt.Errorf("%q is there twice: want it once", word))
		}
		seen[canon] = true
	}
	slices.SortFunc(r.Prefixes, netip.Prefix.Compare)
	return r, oneLine(errs)
}

// parsePrefix returns the prefix with its host bits cleared.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := ipaddr.ParsePrefix(s)
	switch {
	case err != nil:
		return p, fmt.Errorf("%.80q is no prefix: want one such as 10.0.0.0/8 or fd00::/48", s)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%q is IPv4 inside IPv6: want the IPv4 form", s)
	}
	return p.Masked(), nil
}

// oneLine joins errs with semicolons.
func oneLine(errs []error) error {
	var all []string
	for _, err := range errs {
		all = append(all, err.Error())
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, "; "))
}
