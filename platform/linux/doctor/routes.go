// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
)

// mostRoutes bounds how many routes are looked up.
const mostRoutes = 1000

// serviceRoutes checks that processes of the node have a route to ClusterIPs.
func (n *Node) serviceRoutes(ctx context.Context) (doctor.Seen, error) {
	if n.only("ipvs") {
		return doctor.NothingToSee("the mode makes routes itself"), nil
	}
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	if want == nil {
		return doctor.NothingToSee("no Services are known"), nil
	}
	looked := 0
	var seen doctor.Seen
	for _, f := range service.Families {
		var lost []netip.Addr
		var why error
		for _, a := range clusterIPs(want, f) {
			looked++
			if err := n.Route(a); err != nil {
				lost, why = append(lost, a), cmp.Or(why, err)
			}
		}
		if len(lost) == 0 {
			continue
		}
		seen.Findings = append(seen.Findings, doctor.Finding{
			Topic: doctor.ServiceRoute, Subject: f.String(),
			What:   fmt.Sprintf("the node has no route to %d ClusterIPs, the first is %s: %v", len(lost), lost[0], why),
			Fix:    n.routeCommand(f, serviceRange(want.Node, lost)),
			Advice: "or give the node a default route",
		})
	}
	seen.Note = fmt.Sprintf("ClusterIPs: %d", looked)
	return seen, nil
}

// clusterIPs returns ClusterIPs of a family, sorted.
func clusterIPs(s *service.Snapshot, f service.Family) []netip.Addr {
	var all []netip.Addr
	for p := range s.Ports(f) {
		for _, x := range p.Frontends {
			if x.Kind == service.ClusterIP {
				all = append(all, x.Addr)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	return all[:min(len(all), mostRoutes)]
}

// serviceRange returns a range that holds sorted ClusterIPs: the known one, or else the
// smallest.
func serviceRange(n *service.Node, all []netip.Addr) netip.Prefix {
	first, last := all[0], all[len(all)-1]
	for _, x := range n.ServiceCIDRs {
		if x.Contains(first) && x.Contains(last) {
			return x
		}
	}
	p := netip.PrefixFrom(first, first.BitLen())
	for !p.Contains(last) {
		p = netip.PrefixFrom(first, p.Bits()-1).Masked()
	}
	return p
}

// routeCommand returns a command that makes a route through an interface of the node. No
// packet leaves by it, because the rules translate the address.
func (n *Node) routeCommand(f service.Family, to netip.Prefix) string {
	links, err := n.Kernel.Links()
	i := slices.IndexFunc(links, func(l Link) bool { return l.Global[f] && l.Master == "" })
	if err != nil || i < 0 {
		return ""
	}
	return fmt.Sprintf("ip route replace %s dev %s", to, links[i].Name)
}
