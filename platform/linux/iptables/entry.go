// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/service"
)

// entry is an element of a tree: the rules for packets to one address and port, to a
// NodePort, or to any port of an address.
type entry struct {
	key
	rules []string
	// lowPriority means that another entry with the same key takes precedence.
	lowPriority bool
}

// key identifies an entry.
type key struct {
	table string
	addr  netip.Addr // invalid for a port of the node
	port  uint16     // 0 for all ports of addr without an entry of their own
	proto service.Protocol
	check bool // port is a healthCheckNodePort, not a NodePort
}

// healthKey returns the key for the health check of p.
func healthKey(p *service.Port) key {
	return key{table: filter, port: p.HealthCheck, proto: service.TCP, check: true}
}

// healthRule accepts health checks of p. It does not match a connection state. So with
// policy DROP in INPUT no other rule is needed for the following packets.
func healthRule(p *service.Port) string {
	return healthKey(p).match() + commentOf(p.Name.Namespace+"/"+p.Name.Name+" health check") + "-j ACCEPT"
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compare groups the entries of one tree. Of one address, the entry for all ports comes
// last.
func (k key) compare(l key) int {
	return cmp.Or(
		cmp.Compare(k.table, l.table),
		k.addr.Compare(l.addr),
		cmp.Compare(boolToInt(k.check), boolToInt(l.check)),
		cmp.Compare(k.port-1, l.port-1),
		cmp.Compare(k.proto, l.proto),
	)
}

// match returns the first part of a rule for k.
func (k key) match() string {
	var s string
	if k.addr.IsValid() {
		s = "-d " + hostPrefix(k.addr) + " "
	}
	if k.port != 0 {
		proto := k.proto.String()
		s += "-p " + proto + " -m " + proto + " --dport " + strconv.Itoa(int(k.port)) + " "
	}
	return s
}

// frontend returns the frontend that k stands for.
func (k key) frontend() service.Frontend {
	f := service.Frontend{Kind: service.NodePort, Port: k.port}
	if k.addr.IsValid() {
		f.Kind, f.Addr = service.ExternalIP, k.addr // or another kind with address
	}
	return f
}

// standaloneEntries returns the entries of p. Entries for all ports of an address may
// occur more than once.
func standaloneEntries(p *service.Port) []entry {
	var all []entry
	about := comment(p)
	add := func(k key, rules ...string) {
		start := k.match()
		if k.port != 0 {
			start += about
		}
		e := entry{key: k}
		for _, r := range rules {
			// iptables prints the source first.
			source, then, found := strings.Cut(r, " -j ")
			if !found {
				source, then = "", strings.TrimPrefix(r, "-j ")
			} else {
				source += " "
			}
			e.rules = append(e.rules, source+start+"-j "+then)
		}
		all = append(all, e)
	}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		k := key{table: nat, addr: f.Addr, port: f.Port, proto: p.Name.Protocol}
		if to := targetChain(p, f); to != "" {
			add(k, "-j "+to)
		} else if f.Addr.IsValid() { // the node may own the address and the port
			add(k, jumpAccept)
		}
		k.table = filter
		if rules := rejectRules(p, f); len(rules) > 0 {
			add(k, rules...)
		}
		if f.Kind == service.ClusterIP {
			add(key{table: filter, addr: f.Addr}, "-j "+refuseChain)
		}
	}
	if p.HealthCheck != 0 {
		all = append(all, entry{key: healthKey(p), rules: []string{healthRule(p)}})
	}
	return all
}

// standaloneKeys returns the keys for which p may have entries, now or in another state.
func standaloneKeys(p *service.Port) []key {
	var all []key
	for i := range p.Frontends {
		f := &p.Frontends[i]
		for _, table := range tables {
			all = append(all, key{table: table, addr: f.Addr, port: f.Port, proto: p.Name.Protocol})
		}
		if f.Kind == service.ClusterIP {
			all = append(all, key{table: filter, addr: f.Addr})
		}
	}
	if p.HealthCheck != 0 {
		all = append(all, healthKey(p))
	}
	return all
}

// targetChain returns the chain that translates packets to f, "" if there is none.
func targetChain(p *service.Port, f *service.Frontend) string {
	switch {
	case f.Kind.External() && !forwardsExternal(p):
		return ""
	case f.Kind.External() && f.Sources != nil:
		return firewallName(p, f)
	case f.Kind.External():
		return portChainName(externalPrefix, p)
	case len(p.Endpoints(f.Kind)) == 0:
		return ""
	case p.Internal == service.PolicyLocal:
		return portChainName(localPrefix, p)
	}
	return portChainName(clusterPrefix, p)
}

// rejectRules returns the rules for untranslated packets to f, nil if every client is
// sent to an endpoint.
func rejectRules(p *service.Port, f *service.Frontend) []string {
	refuse := "-j " + refuseChain
	const drop = "-j DROP"
	switch {
	case !p.HasEndpoints() && f.Sources != nil:
		return append(sourceRules(f.Sources, refuse), drop)
	case !p.HasEndpoints() && f.Kind == service.ClusterIP: // treated as any port of a ClusterIP
		return nil
	case !p.HasEndpoints():
		return []string{refuse}
	case f.Sources != nil, len(p.Endpoints(f.Kind)) == 0,
		f.Kind.External() && len(p.Cluster) == 0:
		return []string{drop}
	}
	return nil
}

// sameEntries reports whether a change leaves the trees as they are.
func (l layout) sameEntries(c service.Change, node *service.Node) bool {
	return slices.EqualFunc(l.entries(c.Old, node), l.entries(c.New, node), func(a, b entry) bool {
		return a.key == b.key && slices.Equal(a.rules, b.rules)
	})
}
