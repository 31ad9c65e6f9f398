// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/explain"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// Hook is where a chain filters.
type Hook string

// The hooks.
const (
	Input   Hook = "input"
	Forward Hook = "forward"
)

// Chain is a chain that drops packets which no rule accepts.
type Chain struct {
	Hook Hook
	// Family is that of nftables: ip, ip6 or inet.
	Family, Table, Name string
	// Legacy is whether the chain is one of iptables-legacy.
	Legacy bool
	Tables packet.Tables
	Base   packet.Base // of Tables
}

// String names the chain and its table.
func (c *Chain) String() string {
	if c.Legacy {
		return fmt.Sprintf("chain %s of %s", c.Name, c.command())
	}
	return fmt.Sprintf("chain %s of table %s %s of nftables", c.Name, c.Family, c.Table)
}

// ofIPTables returns whether an iptables command owns the chain.
func (c *Chain) ofIPTables() bool {
	return c.Legacy || c.Family != "inet" && c.Table == "filter" && c.Name == strings.ToUpper(string(c.Hook))
}

func (c *Chain) command() string {
	name := "iptables"
	if c.Family == "ip6" {
		name = "ip6tables"
	}
	if c.Legacy {
		return name + "-legacy"
	}
	return name + "-nft"
}

// drops returns whether the chain certainly drops what p is like.
func (c *Chain) drops(p *packet.Packet) (bool, error) {
	w := packet.Walk{Tables: c.Tables, Packet: p}
	f, err := w.Run(c.Base)
	return f.Does == explain.Drops || f.Does == explain.Refuses, err
}

// family is that of packets to ask the chain about.
func (c *Chain) family() service.Family {
	if c.Family == "ip6" {
		return service.IPv6
	}
	return service.IPv4
}

// local and remote are where packets lead.
type local struct{}
type remote struct{}

func (local) Local(netip.Addr) bool                 { return true }
func (local) Route(netip.Addr) (packet.Link, uint8) { return packet.Loopback(), packet.Local }

func (remote) Local(netip.Addr) bool                 { return false }
func (remote) Route(netip.Addr) (packet.Link, uint8) { return packet.Link{Unknown: true}, 0 }

// accepts returns whether the rules of each mode accept in the chain what they translated, and
// health checks. Those of iptables do in the chains of their variant; in a table of somebody else's
// that helps nothing, because a packet has to pass all chains of a hook.
func (n *Node) accepts(c *Chain) bool {
	if !n.all(Mode.xtables) || !c.ofIPTables() {
		return false
	}
	v, err := n.IPTables()
	return err != nil || c.Legacy == (v.Used == "legacy")
}

// modeOf returns the mode that is affected by the chain, empty for all.
func (n *Node) modeOf(c *Chain) string {
	if c.ofIPTables() && !n.all(Mode.xtables) {
		return "nftables"
	}
	return ""
}

// inputPolicy checks that load balancers reach the health checks of Services, and in mode ipvs,
// where all packets to Services pass the chains of INPUT, that clients reach Services.
func (n *Node) inputPolicy(ctx context.Context) (doctor.Seen, error) {
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	var checks []uint16
	if want != nil {
		checks = healthChecks(want, n.all(Mode.routes))
	}
	entries, err := n.entries()
	if err != nil {
		return doctor.Seen{}, err
	}
	seen := doctor.Seen{Note: "no chain drops by its policy"}
	err = n.filters(ctx, Input, func(c *Chain) error {
		if n.accepts(c) {
			return nil
		}
		seen.Note = fmt.Sprintf("%d ports", len(checks))
		var closed []string
		for _, port := range checks {
			drops, err := c.dropsAll(entries, port)
			if err != nil {
				return err
			}
			if drops {
				closed = append(closed, strconv.Itoa(int(port)))
			}
		}
		if len(closed) > 0 {
			seen.Findings = append(seen.Findings, n.inputFinding(c, closed))
		}
		return nil
	})
	if want == nil && err == nil && seen.Note != "no chain drops by its policy" {
		return doctor.NothingToSee("a chain drops by its policy, and no Services are known"), nil
	}
	return seen, err
}

// entries lists the interfaces by which load balancers may reach the node.
func (n *Node) entries() ([]packet.Link, error) {
	links, err := n.Kernel.Links()
	var all []packet.Link
	for _, l := range links {
		if !l.Bridge && l.Master == "" && (l.Global[service.IPv4] || l.Global[service.IPv6]) {
			all = append(all, packet.Link{Name: l.Name, Index: l.Index})
		}
	}
	if len(all) == 0 {
		all = []packet.Link{{Guess: true}}
	}
	return all, err
}

// dropsAll returns whether the chain drops connections to a node's port on any interface.
func (c *Chain) dropsAll(entries []packet.Link, port uint16) (bool, error) {
	for _, in := range entries {
		p := packet.Unaddressed(local{}, c.family(), service.TCP, port)
		p.In = in
		if drops, err := c.drops(p); err != nil || !drops {
			return false, err
		}
	}
	return true, nil
}

func (n *Node) inputFinding(c *Chain, closed []string) doctor.Finding {
	services := n.all(Mode.routes)
	f := doctor.Finding{
		Topic: doctor.InputPolicy, Subject: c.String(), Mode: n.modeOf(c),
		What: fmt.Sprintf("%s drops by its policy, and no rule accepts %d ports that are asked here: %s", c, len(closed), strings.Join(closed[:min(len(closed), mostPorts)], ", ")),
		Fix:  fmt.Sprintf("nft insert rule %s %s %s tcp dport '{ %s }' accept", c.Family, c.Table, c.Name, strings.Join(closed, ", ")),
	}
	switch {
	case services:
		f.Severity, f.Fix = doctor.Blocks, ""
		f.What += "; mode ipvs takes connections to Services in INPUT, so they are dropped"
		f.Advice = "accept there what is for the ServiceCIDR, for addresses of load balancers and for NodePorts"
	case c.ofIPTables():
		f.Fix = fmt.Sprintf("%s -I %s -p tcp -m multiport --dports %s -j ACCEPT", c.command(), c.Name, strings.Join(closed, ","))
	}
	return f
}

// mostPorts is how many ports a finding names.
const mostPorts = 10

// healthChecks lists the health check node ports, sorted, and those of Services over TCP.
func healthChecks(s *service.Snapshot, services bool) []uint16 {
	var all []uint16
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			if p.HealthCheck != 0 {
				all = append(all, p.HealthCheck)
			}
			if services && p.Name.Protocol == service.TCP {
				all = append(all, frontendPorts(p)...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func frontendPorts(p *service.Port) (all []uint16) {
	for _, x := range p.Frontends {
		all = append(all, x.Port)
	}
	return all
}

// filters calls each for the chains at a hook.
func (n *Node) filters(ctx context.Context, h Hook, each func(*Chain) error) error {
	return n.Kernel.FilterChains(ctx, func(c *Chain) error {
		if c.Hook != h {
			return nil
		}
		return each(c)
	})
}

// runtimeLinks begin the bridges of container runtimes, which accept their own networks alone.
const runtimeLinks = "docker br- podman"

// forwardPolicy checks that a chain which drops by its policy lets pods through. No mode can
// accept in tables of others. The rules of network plugins do.
func (n *Node) forwardPolicy(ctx context.Context) (doctor.Seen, error) {
	switch {
	case n.all(Mode.relays):
		return doctor.NothingToSee("the process relays: connections to Services are not forwarded"), nil
	case n.all(Mode.routes):
		return doctor.NothingToSee("IPVS takes connections in INPUT: only their replies are forwarded"), nil
	}
	seen, chains := doctor.Seen{Note: "no chain drops by its policy"}, 0
	err := n.filters(ctx, Forward, func(c *Chain) error {
		if n.accepts(c) {
			return nil
		}
		chains++
		seen.Note = fmt.Sprintf("%d chains that drop by their policy", chains)
		p := packet.Unaddressed(remote{}, c.family(), service.TCP, 0)
		p.Translated = true
		p.In = packet.Link{Guess: true, Except: runtimeLinks}
		p.Out = p.In
		drops, err := c.drops(p)
		if err != nil || !drops {
			return err
		}
		f := doctor.Finding{Topic: doctor.ForwardPolicy, Subject: c.String(), Mode: n.modeOf(c),
			What:   fmt.Sprintf("%s drops by its policy, and no rule of a network plugin accepts pods", c),
			Fix:    fmt.Sprintf("nft insert rule %s %s %s ct status dnat accept", c.Family, c.Table, c.Name),
			Advice: "it accepts what is translated, and nothing else; what makes the chain may remove it, so let that accept the addresses of pods, too"}
		if c.ofIPTables() {
			f.Fix = fmt.Sprintf("%s -I %s -m conntrack --ctstate DNAT -j ACCEPT", c.command(), c.Name)
		}
		seen.Findings = append(seen.Findings, f)
		return nil
	})
	return seen, err
}

// firewalls checks for firewall services, known by the names of chains and tables.
func (n *Node) firewalls(ctx context.Context) (doctor.Seen, error) {
	names, err := n.Kernel.FirewallNames(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	var found []doctor.Finding
	if slices.ContainsFunc(names, func(s string) bool {
		return s == "firewalld" || strings.HasPrefix(s, "FWD") || strings.HasPrefix(s, "FWDI_")
	}) {
		found = append(found, doctor.Finding{Topic: doctor.Firewall, Subject: "firewalld", What: "firewalld filters on this node",
			Advice: "admit the pods with firewall-cmd --permanent --zone=trusted --add-source=CLUSTER-CIDR, and the NodePorts, or disable it where another firewall protects the node"})
	}
	if slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, "ufw-") || strings.HasPrefix(s, "ufw6-") }) {
		found = append(found, doctor.Finding{Topic: doctor.Firewall, Subject: "ufw", What: "ufw filters on this node",
			Advice: "admit the pods with ufw route allow from CLUSTER-CIDR and ufw allow 30000:32767/tcp, or disable it where another firewall protects the node"})
	}
	return doctor.Seen{Findings: found, Note: "firewalld and ufw"}, nil
}
