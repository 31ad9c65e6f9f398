// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/service"
)

// With IPVS, chains are the same for all Services, and ipsets contain the Services that
// they apply to. A redirected connection needs a rule per Service, because an ipset has
// no values.

// The names of the chains of mode ipvs all have this prefix. kube-vip uses KUBE-VIP-.
const (
	ipvsPrefix     = "KUBE-VS-"
	ipvsAddrPrefix = "KUBE-VA-" // a branch of the tree of addresses

	ipvsServicesChain    = ipvsPrefix + "SERVICES"
	ipvsFrontendChain    = ipvsPrefix + "FRONT"
	ipvsMarkChain        = ipvsPrefix + "MARK"
	ipvsMarkClusterChain = ipvsPrefix + "MARK-CLUSTER"
	ipvsLocalChain       = ipvsPrefix + "LOCAL"
	ipvsInternalChain    = ipvsPrefix + "INTERNAL"
	ipvsTargetsChain     = ipvsPrefix + "TARGETS"
	ipvsPostroutingChain = ipvsPrefix + "POSTROUTING"

	ipvsDropChain         = ipvsPrefix + "DROP"
	ipvsDropLocalChain    = ipvsPrefix + "DROP-LOCAL"
	ipvsDropInternalChain = ipvsPrefix + "DROP-INTERNAL"

	ipvsInputChain       = ipvsPrefix + "INPUT"
	ipvsRefuseChain      = ipvsPrefix + "REFUSE"
	ipvsForwardChain     = ipvsPrefix + "FORWARD"
	ipvsUnallocatedChain = ipvsPrefix + "UNALLOCATED"
)

// The ipsets that the chains refer to, see SetName. Sets of addresses have type hash:ip,
// SetSources has hash:ip,port,net and the others have hash:ip,port.
const (
	SetClusterIPs       = "CLUSTER-IPS"
	SetVirtualIPs       = "VIRTUAL-IPS"       // on the node for Services only
	SetNodeIPs          = "NODE-IPS"          // the node's own, once they are served
	SetVirtualServers   = "VIRTUAL-SERVERS"   // a virtual server exists, whoever made it
	SetRefused          = "REFUSED"           // there are no endpoints
	SetDropped          = "DROPPED"           // there are endpoints, but the policy leaves none
	SetExternal         = "EXTERNAL"          // policy Cluster: masqueraded
	SetLocal            = "LOCAL"             // policy Local: internal and external clients differ
	SetInternalDropped  = "INTERNAL-DROPPED"  // no endpoint is left for pods and the node
	SetExternalDropped  = "EXTERNAL-DROPPED"  // no endpoint is left for external clients
	SetInternalRedirect = "INTERNAL-REDIRECT" // pods and the node are redirected
	SetExternalRedirect = "EXTERNAL-REDIRECT" // external clients are redirected
	SetRestricted       = "RESTRICTED"        // only some sources are allowed
	SetSources          = "SOURCES"           // the allowed sources
	SetHealthChecks     = "HEALTH-CHECKS"     // where health checks are answered
)

// SetName returns the name of a set in family f. Sets of both families share one
// namespace.
func SetName(f service.Family, set string) string {
	if f == service.IPv6 {
		return "KUBE-VS6-" + set
	}
	return ipvsPrefix + set
}

func ipvsJumps() []jump {
	return []jump{
		{id{nat, "PREROUTING"}, "-j " + ipvsServicesChain},
		{id{nat, "OUTPUT"}, "-j " + ipvsServicesChain},
		{id{nat, "POSTROUTING"}, "-j " + ipvsPostroutingChain},
		{id{mangle, "PREROUTING"}, newOnly + "-j " + ipvsDropChain},
		{id{mangle, "OUTPUT"}, newOnly + "-j " + ipvsDropChain},
		{id{filter, "INPUT"}, "-j " + ipvsInputChain},
		{id{filter, "FORWARD"}, "-j " + ipvsForwardChain},
		{id{filter, "OUTPUT"}, newOnly + "-j " + ipvsUnallocatedChain},
	}
}

// inSet matches packets whose fields are in a set. An example is "dst,dst" for
// destination address and port. notInSet matches packets whose fields are not.
func (l layout) inSet(set, fields string) string {
	return "-m set --match-set " + SetName(l.family, set) + " " + fields + " "
}

func (l layout) notInSet(set, fields string) string {
	return "-m set ! --match-set " + SetName(l.family, set) + " " + fields + " "
}

const (
	toPort   = "dst,dst"
	fromNode = "-m addrtype --src-type LOCAL "
)

// ipvsChains returns all chains except the branches of the tree.
func (l layout) ipvsChains(node *service.Node, targets []string) []chain {
	return slices.Concat(l.ipvsNATChains(node, targets), l.ipvsMangleChains(node), l.ipvsFilterChains(node))
}

// ipvsNATChains mark packets for masquerading and redirect to the virtual server with
// the right endpoints, before IPVS handles the connection. After that no other rule may
// translate it: an address of a Service never leads to a port that the node uses for
// other purposes. There is one exception: while an address is not routed to the node
// yet, or has no virtual servers although it is the node's own, another mode continues
// to translate.
func (l layout) ipvsNATChains(node *service.Node, targets []string) []chain {
	mark := l.options.marked()
	return []chain{
		{id{nat, ipvsMarkChain}, []string{"-j MARK --set-xmark " + mark}},
		{id{nat, ipvsMarkClusterChain}, l.markClusterRules(node, ipvsMarkChain)},
		{id{nat, ipvsTargetsChain}, targets},
		{id{nat, ipvsInternalChain}, []string{l.inSet(SetInternalRedirect, toPort) + "-j " + ipvsTargetsChain, jumpAccept}},
		{id{nat, ipvsLocalChain}, append(podRules(l.family, node, "-g "+ipvsInternalChain),
			fromNode+"-j "+ipvsMarkChain,
			fromNode+"-g "+ipvsInternalChain,
			l.inSet(SetExternalRedirect, toPort)+"-j "+ipvsTargetsChain,
			jumpAccept,
		)},
		{id{nat, ipvsFrontendChain}, []string{
			l.inSet(SetClusterIPs, "dst") + "-j " + ipvsMarkClusterChain,
			l.inSet(SetLocal, toPort) + "-g " + ipvsLocalChain,
			l.inSet(SetExternal, toPort) + "-j " + ipvsMarkChain,
			l.inSet(SetVirtualServers, toPort) + jumpAccept,
			l.inSet(SetVirtualIPs, "dst") + jumpAccept,
		}},
		{id{nat, ipvsServicesChain}, []string{
			l.inSet(SetNodeIPs, "dst") + "-g " + ipvsFrontendChain,
			l.inSet(SetVirtualIPs, "dst") + localOnly + "-g " + ipvsFrontendChain,
		}},
		{id{nat, ipvsPostroutingChain}, []string{
			// The node needs no masquerading to reach itself.
			"! -o lo " + l.hairpinMatch() + masqueradeRule,
			"-m mark ! --mark " + mark + " -j RETURN",
			"-j MARK --set-xmark " + l.options.unmark(),
			masqueradeRule,
		}},
	}
}

// ipvsMangleChains drop connections without a permitted endpoint before IPVS handles
// them.
func (l layout) ipvsMangleChains(node *service.Node) []chain {
	return []chain{
		{id{mangle, ipvsDropInternalChain}, []string{l.inSet(SetInternalDropped, toPort) + "-j DROP"}},
		{id{mangle, ipvsDropLocalChain}, append(podRules(l.family, node, "-g "+ipvsDropInternalChain),
			fromNode+"-g "+ipvsDropInternalChain,
			l.inSet(SetExternalDropped, toPort)+"-j DROP",
		)},
		{id{mangle, ipvsDropChain}, []string{
			l.inSet(SetRestricted, toPort) + l.notInSet(SetSources, "dst,dst,src") + "-j DROP",
			l.inSet(SetDropped, toPort) + "-j DROP",
			l.inSet(SetLocal, toPort) + "-j " + ipvsDropLocalChain,
		}},
	}
}

// ipvsFilterChains reject connections to Services without endpoints, and packets that no
// virtual server accepts: an address that the node has for Services only never leads to
// another listener. Replies pass: with kube-proxy, connections of the node to Services
// have the address of the Service as source, and they outlive its rules. All packets of
// health checks are accepted, whatever the policy of INPUT is.
func (l layout) ipvsFilterChains(node *service.Node) []chain {
	refuse := "-j " + ipvsRefuseChain
	input := []string{
		l.inSet(SetHealthChecks, toPort) + "-j ACCEPT",
		newOnly + l.inSet(SetRefused, toPort) + refuse,
		l.inSet(SetVirtualServers, toPort) + "-j RETURN",
		l.notInSet(SetVirtualIPs, "dst") + "-j RETURN",
		"-m conntrack --ctdir REPLY -j RETURN",
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		input = append(input, "-p "+p.String()+" "+refuse)
	}
	return []chain{
		{id{filter, ipvsRefuseChain}, l.rejectChain().rules},
		{id{filter, ipvsInputChain}, input},
		{id{filter, ipvsUnallocatedChain}, l.unallocatedRules(node)},
		{id{filter, ipvsForwardChain}, []string{
			"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			"-j " + ipvsUnallocatedChain,
		}},
	}
}

// unallocatedRules drop packets to an address of the Service range that no Service has.
// With a default route they would leave the node for nothing, or loop. Endpoints may be
// in the range.
func (l layout) unallocatedRules(node *service.Node) []string {
	var rules []string
	for _, a := range node.EndpointsInServiceCIDRs {
		if service.FamilyOf(a) == l.family {
			rules = append(rules, "-d "+netip.PrefixFrom(a, a.BitLen()).String()+" -j RETURN")
		}
	}
	for _, p := range service.InFamily(node.ServiceCIDRs, l.family) {
		rules = append(rules, "-d "+p.Masked().String()+" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -m addrtype ! --dst-type LOCAL -j DROP")
	}
	return rules
}

// FrontendAddrs returns the addresses and ports of frontend f of p on node: its own, or
// for a NodePort the node addresses that answer it.
func FrontendAddrs(p *service.Port, f *service.Frontend, node *service.Node) []netip.AddrPort {
	if f.Kind != service.NodePort {
		return []netip.AddrPort{netip.AddrPortFrom(f.Addr, f.Port)}
	}
	var all []netip.AddrPort
	for _, a := range node.Addrs {
		if service.FamilyOf(a) == p.Family && node.AnswersNodePorts(a) {
			all = append(all, netip.AddrPortFrom(a, f.Port))
		}
	}
	return all
}

// ipvsKeys returns the keys of ipvsEntries.
func ipvsKeys(p *service.Port, node *service.Node) []key {
	var all []key
	for i := range p.Frontends {
		all = append(all, frontendKeys(p, &p.Frontends[i], node)...)
	}
	return all
}

// frontendKeys returns the keys of one frontend.
func frontendKeys(p *service.Port, f *service.Frontend, node *service.Node) []key {
	if !f.Kind.External() {
		return nil
	}
	var all []key
	for _, a := range FrontendAddrs(p, f, node) {
		all = append(all, key{table: nat, addr: a.Addr(), port: a.Port(), proto: p.Name.Protocol})
	}
	return all
}

// ipvsEntries redirect from external frontends to the ClusterIP, whose virtual server
// has another list of endpoints. Sets decide which clients are redirected. An external
// address that the node owns takes precedence over NodePorts.
func ipvsEntries(p *service.Port, node *service.Node) []entry {
	i := slices.IndexFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == service.ClusterIP })
	if p.External != service.PolicyLocal || i < 0 {
		return nil
	}
	to := netip.AddrPortFrom(p.Frontends[i].Addr, p.Frontends[i].Port)
	var all []entry
	for i := range p.Frontends {
		f := &p.Frontends[i]
		for _, k := range frontendKeys(p, f, node) {
			rule := fmt.Sprintf("%s%s-j DNAT --to-destination %s", k.match(), comment(p), to)
			all = append(all, entry{key: k, rules: []string{rule}, lowPriority: f.Kind == service.NodePort})
		}
	}
	return all
}

// Packets are the counters of rules since the rules were created.
type Packets struct {
	// Invalid counts dropped packets that connection tracking could not assign.
	Invalid uint64
	// Loopback counts connections to NodePorts on loopback addresses.
	Loopback uint64
}

// lister is a Driver that can read counters.
type lister interface {
	// List returns the rules of a chain in the format of iptables -S -v. It is safe for
	// concurrent use.
	List(ctx context.Context, table, chain string) (string, error)
}

// counts caches the counters.
type counts struct {
	mu     sync.Mutex
	latest Packets
	err    error
	next   time.Time
}

// countShare limits the time for reading counters to one part in countShare.
// iptables-legacy reads the whole table to list one chain.
const countShare = 100

// Packets reads the counters of the rules. If reading takes long, it returns the cached
// result of an earlier call. It is safe for concurrent use. With a relay it returns
// errors.ErrUnsupported.
func (b *Backend) Packets(ctx context.Context) (Packets, error) {
	l, ok := b.driver.(lister)
	if !ok || b.relays() {
		return Packets{}, errors.ErrUnsupported
	}
	c := &b.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	start := time.Now()
	if start.Before(c.next) {
		return c.latest, c.err
	}
	now := Packets{}
	var errs []error
	for _, x := range []struct {
		table, chain, rule string
		to                 *uint64
	}{
		{filter, forwardChain, invalidRule, &now.Invalid},
		{nat, postroutingChain, loopbackRule, &now.Loopback},
	} {
		text, err := l.List(ctx, x.table, x.chain)
		errs = append(errs, err)
		*x.to = parseCount(text, x.rule)
	}
	c.err = errors.Join(errs...)
	if c.err != nil {
		c.err = fmt.Errorf("ask %s what its rules have counted: %w", command(b.family), c.err)
	} else {
		c.latest = now
	}
	c.next = start.Add(countShare * time.Since(start))
	return c.latest, c.err
}

// parseCount returns the number of packets that a rule has matched, 0 if the rule is not
// in text.
func parseCount(text, rule string) uint64 {
	for line := range strings.Lines(text) {
		_, line, _ = strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "-A ")), " ")
		before, after, found := strings.Cut(line, "-c ")
		w := strings.Fields(after)
		if !found || len(w) < 2 || strings.Join(append(strings.Fields(before), w[2:]...), " ") != rule {
			continue
		}
		n, _ := strconv.ParseUint(w[0], 10, 64)
		return n
	}
	return 0
}
