// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
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
	// Rules are the rules as nft or iptables-legacy prints them, a line each. They are
	// empty if the command is missing.
	Rules []string
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

// command returns the iptables command for the chain.
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

var portWords = regexp.MustCompile(`(?:--dports? |dport |-p tcp.*--dports )(!?=? ?\{? ?[0-9:,\- ]+)`)

// accepts returns whether a rule of the chain lets TCP connections to a port in.
func (c *Chain) accepts(port uint16) bool {
	return slices.ContainsFunc(c.Rules, func(rule string) bool {
		if !strings.Contains(strings.ToLower(rule), "accept") {
			return false
		}
		m := portWords.FindStringSubmatch(rule)
		return m != nil && !strings.Contains(m[1], "!") && includes(m[1], port)
	})
}

// includes returns whether a list of ports, in the words of nft or iptables, has a port.
func includes(list string, port uint16) bool {
	words := strings.FieldsFunc(list, func(r rune) bool { return r == ' ' || r == ',' || r == '{' || r == '}' })
	return slices.ContainsFunc(words, func(w string) bool {
		first, last, isRange := strings.Cut(strings.ReplaceAll(w, ":", "-"), "-")
		if !isRange {
			last = first
		}
		low, err := strconv.Atoi(first)
		high, err2 := strconv.Atoi(last)
		return err == nil && err2 == nil && low <= int(port) && int(port) <= high
	})
}

// inputPolicy checks that load balancers reach the health checks of Services. Modes that
// use iptables accept them there.
func (n *Node) inputPolicy(ctx context.Context) (doctor.Seen, error) {
	if n.all(Mode.xtables) {
		return doctor.NothingToSee("the rules of the mode accept health checks"), nil
	}
	chains, err := n.filters(ctx, Input)
	if err != nil {
		return doctor.Seen{}, err
	}
	if len(chains) == 0 {
		return doctor.Seen{Note: "no chain drops by its policy"}, nil
	}
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	if want == nil {
		return doctor.NothingToSee("a chain drops by its policy, and no Services are known"), nil
	}
	checks := healthChecks(want)
	if len(checks) == 0 {
		return doctor.Seen{Note: "a chain drops by its policy, and no Service has a health check node port"}, nil
	}
	seen := doctor.Seen{Note: fmt.Sprintf("%d health check node ports", len(checks))}
	for i := range chains {
		c := &chains[i]
		var closed []string
		for _, p := range checks {
			if !c.accepts(p) {
				closed = append(closed, strconv.Itoa(int(p)))
			}
		}
		if len(closed) > 0 {
			seen.Findings = append(seen.Findings, c.inputFinding(closed))
		}
	}
	return seen, nil
}

func (c *Chain) inputFinding(closed []string) doctor.Finding {
	f := doctor.Finding{
		Topic: doctor.InputPolicy, Subject: c.String(), Mode: "nftables",
		What: fmt.Sprintf("%s drops by its policy, and no rule accepts the health check node ports %s", c, strings.Join(closed, ", ")),
		Fix:  fmt.Sprintf("nft insert rule %s %s %s tcp dport '{ %s }' accept", c.Family, c.Table, c.Name, strings.Join(closed, ", ")),
	}
	if c.ofIPTables() {
		f.Fix = fmt.Sprintf("%s -I %s -p tcp -m multiport --dports %s -j ACCEPT", c.command(), c.Name, strings.Join(closed, ","))
	}
	return f
}

// healthChecks lists the health check node ports, sorted.
func healthChecks(s *service.Snapshot) []uint16 {
	var all []uint16
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			if p.HealthCheck != 0 {
				all = append(all, p.HealthCheck)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (n *Node) filters(ctx context.Context, h Hook) ([]Chain, error) {
	all, err := n.Kernel.FilterChains(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c Chain) bool { return c.Hook != h }), nil
}

// ownJumps are the prefixes of chains in which container runtimes accept only packets of
// their own networks.
var ownJumps = []string{"DOCKER", "br-", "docker0"}

// forwardPolicy checks that a chain which drops by its policy lets pods through. Mode
// nftables cannot accept in tables of others. The rules of network plugins do.
func (n *Node) forwardPolicy(ctx context.Context) (doctor.Seen, error) {
	if n.all(Mode.xtables) {
		return doctor.NothingToSee("the rules of the mode accept what they translated"), nil
	}
	chains, err := n.filters(ctx, Forward)
	if err != nil {
		return doctor.Seen{}, err
	}
	seen := doctor.Seen{Note: "no chain drops by its policy"}
	if len(chains) > 0 {
		seen.Note = fmt.Sprintf("%d chains that drop by their policy", len(chains))
	}
	for i := range chains {
		c := &chains[i]
		if slices.ContainsFunc(c.Rules, acceptsPods) {
			continue
		}
		f := doctor.Finding{Topic: doctor.ForwardPolicy, Subject: c.String(), Mode: "nftables",
			What:   fmt.Sprintf("%s drops by its policy, and no rule of a network plugin accepts pods", c),
			Fix:    fmt.Sprintf("nft add chain %s %s %s '{ policy accept; }'", c.Family, c.Table, c.Name),
			Advice: "or let the network plugin accept the addresses of pods there"}
		if c.ofIPTables() {
			f.Fix = fmt.Sprintf("%s -P %s ACCEPT", c.command(), c.Name)
		}
		seen.Findings = append(seen.Findings, f)
	}
	return seen, nil
}

// acceptsPods returns whether a rule accepts, or leads to a chain that may, and is not a
// container runtime's for its own networks.
func acceptsPods(rule string) bool {
	lower := strings.ToLower(rule)
	leads := strings.Contains(lower, "accept") || strings.Contains(lower, "jump ") || strings.Contains(lower, "goto ") || strings.Contains(rule, "-j ")
	if !leads || strings.HasPrefix(rule, "-P ") || strings.Contains(lower, "policy drop") {
		return false
	}
	return !slices.ContainsFunc(ownJumps, func(s string) bool { return strings.Contains(rule, s) })
}

// firewalls checks for firewall services. They are recognized by the names of their chains
// and tables.
func (n *Node) firewalls(ctx context.Context) (doctor.Seen, error) {
	names, err := n.Kernel.FirewallNames(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	var found []doctor.Finding
	if slices.ContainsFunc(names, func(s string) bool {
		return s == "firewalld" || strings.HasPrefix(s, "FWD") || strings.HasPrefix(s, "FWDI_")
	}) {
		found = append(found, doctor.Finding{Topic: doctor.Firewall, Subject: "firewalld", What: "firewalld filters on this node", Fix: "systemctl disable --now firewalld",
			Advice: "or keep it and admit the pods, with firewall-cmd --permanent --zone=trusted --add-source=CLUSTER-CIDR, and the NodePorts"})
	}
	if slices.ContainsFunc(names, func(s string) bool { return strings.HasPrefix(s, "ufw-") || strings.HasPrefix(s, "ufw6-") }) {
		found = append(found, doctor.Finding{Topic: doctor.Firewall, Subject: "ufw", What: "ufw filters on this node", Fix: "ufw disable",
			Advice: "or keep it and admit the pods, with ufw route allow from CLUSTER-CIDR and ufw allow 30000:32767/tcp"})
	}
	return doctor.Seen{Findings: found, Note: "firewalld and ufw"}, nil
}
