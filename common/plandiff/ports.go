// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// Change is what happens to a Service port.
type Change string

// The changes.
const (
	Added   Change = "added"
	Changed Change = "changed"
	Removed Change = "removed"
)

// PortChange is a Service port that differs, in one IP family.
type PortChange struct {
	Service  string `json:"service"` // NAMESPACE/NAME:PORT
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	Change   Change `json:"change"`
	// Details are lines that begin with +, - or ~.
	Details []string `json:"details"`
}

// Snapshots adds what differs between two snapshots.
func (d *Difference) Snapshots(from, to *service.Snapshot) {
	d.Knows(from)
	d.Knows(to)
	d.Settings = append(d.Settings, nodeChanges(from.Node, to.Node)...)
	for _, f := range service.Families {
		for c := range service.Diff(from, to, f) {
			if x := portChange(c, f); x.Change != Changed || len(x.Details) > 0 {
				d.Ports = append(d.Ports, x)
				d.Affected = append(d.Affected, x.Service)
			}
		}
	}
	d.affects()
	slices.SortStableFunc(d.Ports, func(a, b PortChange) int { return strings.Compare(a.Service, b.Service) })
	d.Same = d.Same && len(d.Settings)+len(d.Ports) == 0
}

func portChange(c service.Change, f service.Family) PortChange {
	x := PortChange{Service: c.Name().String(), Protocol: c.Name().Protocol.String(), Family: f.String(), Change: Changed}
	from, to := c.Old, c.New
	switch {
	case from == nil:
		x.Change, from = Added, &service.Port{}
	case to == nil:
		x.Change, to = Removed, &service.Port{}
	}
	x.Details = slices.Concat(
		listChanges("", frontendTexts(from), frontendTexts(to)),
		listChanges("endpoint ", endpointTexts(from.Cluster), endpointTexts(to.Cluster)),
		listChanges("endpoint for policy Local ", endpointTexts(from.Local), endpointTexts(to.Local)))
	if x.Change == Removed {
		return x
	}
	x.Details = append(x.Details, valueChanges(
		value{"internal traffic policy", from.Internal.String(), to.Internal.String()},
		value{"external traffic policy", from.External.String(), to.External.String()},
		value{"session affinity", affinityText(from.Affinity), affinityText(to.Affinity)},
		value{"health check node port", portText(from.HealthCheck), portText(to.HealthCheck)},
	)...)
	return x
}

// value is a setting of a port.
type value struct{ name, from, to string }

// valueChanges lists values that differ.
func valueChanges(all ...value) []string {
	var lines []string
	for _, v := range all {
		if v.from != v.to {
			lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", v.name, v.from, v.to))
		}
	}
	return lines
}

func affinityText(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return "for " + d.String()
}

func portText(port uint16) string {
	if port == 0 {
		return "none"
	}
	return fmt.Sprint(port)
}

// frontendTexts names the frontends of p with the sources that they admit.
func frontendTexts(p *service.Port) []string {
	var all []string
	for _, f := range p.Frontends {
		at := fmt.Sprint(f.Port)
		if f.Addr.IsValid() {
			at = netip.AddrPortFrom(f.Addr, f.Port).String()
		}
		text := fmt.Sprintf("%s %s", f.Kind, at)
		if f.Sources != nil {
			text += " for clients in " + prefixTexts(f.Sources)
		}
		all = append(all, text)
	}
	return all
}

func endpointTexts(list []service.Endpoint) []string {
	var all []string
	for _, e := range list {
		text := e.Addr.String()
		if e.Local {
			text += " on this node"
		}
		all = append(all, text)
	}
	return all
}

func prefixTexts(list []netip.Prefix) string {
	var all []string
	for _, p := range list {
		all = append(all, p.String())
	}
	if len(all) == 0 {
		return "no range"
	}
	return strings.Join(all, ", ")
}

// listChanges lists what is only in one of two lists: first what is removed, then what is added.
func listChanges(what string, from, to []string) []string {
	var lines []string
	in := func(list []string) map[string]bool {
		set := make(map[string]bool, len(list))
		for _, s := range list {
			set[s] = true
		}
		return set
	}
	had, has := in(from), in(to)
	for _, s := range from {
		if !has[s] {
			lines = append(lines, "- "+what+s)
		}
	}
	for _, s := range to {
		if !had[s] {
			lines = append(lines, "+ "+what+s)
		}
	}
	return lines
}

func nodeChanges(from, to *service.Node) []string {
	return slices.Concat(
		listChanges("address of the node ", addrTexts(from.Addrs), addrTexts(to.Addrs)),
		listChanges("endpoint in a range of ClusterIPs ", addrTexts(from.EndpointsInServiceCIDRs), addrTexts(to.EndpointsInServiceCIDRs)),
		valueChanges(
			value{name: "addresses that answer NodePorts", from: prefixTexts(from.NodePorts), to: prefixTexts(to.NodePorts)},
			value{name: "ranges of ClusterIPs", from: prefixTexts(from.ServiceCIDRs), to: prefixTexts(to.ServiceCIDRs)},
			value{name: "pods are told from other clients by", from: podsText(from.Pods), to: podsText(to.Pods)},
			value{name: "masquerade all traffic to ClusterIPs", from: fmt.Sprint(from.MasqueradeAll), to: fmt.Sprint(to.MasqueradeAll)},
		))
}

func addrTexts(addrs []netip.Addr) []string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return all
}

func podsText(p service.LocalPods) string {
	switch {
	case p.Interface != "":
		return "interface " + p.Interface
	case p.InterfacePrefix != "":
		return "interfaces " + p.InterfacePrefix + "*"
	case len(p.Prefixes) == 0:
		return "nothing"
	}
	return prefixTexts(p.Prefixes)
}
