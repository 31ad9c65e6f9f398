// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// jump is a rule in a built-in chain that leads to a chain of ours.
type jump struct {
	from id
	rule string
}

// jumps returns the rules from built-in chains to ours. Each is inserted at the head; their order
// does not matter: what has the masquerade mark was translated, so no rule rejects it.
func (l layout) jumps() []jump {
	if r := l.options.Role; r != nil {
		return r.jumps()
	}
	refuse := []jump{
		{id{filter, "INPUT"}, "-p tcp -j " + healthChain},
		{id{filter, "INPUT"}, newOnly + "-j " + servicesChain},
		{id{filter, "FORWARD"}, newOnly + "-j " + servicesChain},
		{id{filter, "OUTPUT"}, newOnly + "-j " + servicesChain},
	}
	if l.relays() {
		return append(l.relayJumps(), append(refuse, jump{id{filter, "FORWARD"}, "-j " + forwardChain})...)
	}
	return append([]jump{
		{id{nat, "PREROUTING"}, "-j " + servicesChain},
		{id{nat, "OUTPUT"}, "-j " + servicesChain},
		{id{nat, "POSTROUTING"}, "-j " + postroutingChain},
		{id{filter, "FORWARD"}, "-j " + forwardChain},
	}, refuse...)
}

const (
	newOnly   = "-m conntrack --ctstate NEW "
	localOnly = "-m addrtype --dst-type LOCAL "
)

// layout computes the chains of one family.
type layout struct {
	family  service.Family
	options Options
	// noLocalnet disables NodePorts on loopback addresses, and liberal disables
	// DropInvalid, both regardless of options.
	noLocalnet, liberal bool
}

// shared returns the chains that do not belong to a single Port: the trees with the
// entries of ports and of others, and the chains that every node has.
func (l layout) shared(node *service.Node, ports iter.Seq[*service.Port], others []entry) []chain {
	var all, lowPriority []entry
	for p := range ports {
		own := l.entries(p, node)
		lowPriority = append(lowPriority, slices.DeleteFunc(slices.Clone(own), func(e entry) bool { return !e.lowPriority })...)
		all = append(all, slices.DeleteFunc(own, func(e entry) bool { return e.lowPriority })...)
	}
	all = append(all, lowPriority...)
	// Of two entries with the same key the first counts, so desired ones come first.
	roots, branches := l.buildTrees(append(all, others...))
	if r := l.options.Role; r != nil {
		return append(chainsOf(r.Chains(node, roots[id{nat, r.Root}])), branches...)
	}
	if l.localhost(node) && !l.relays() {
		root := id{filter, servicesChain}
		roots[root] = append([]string{martianRule}, roots[root]...)
	}
	chains := l.base(node)
	for _, table := range tables {
		for _, r := range l.roots(table) {
			top := slices.Concat(r.before, roots[id{table, servicesChain}], l.nodePortRules(node, r.nodePorts))
			chains = append(chains,
				chain{id{table, r.nodePorts}, roots[id{table, nodePortsChain}]},
				chain{id{table, r.services}, top})
		}
	}
	return append(append(chains, l.healthChains(node, roots[id{filter, healthPortsChain}])...), branches...)
}

// MasqueradeRule selects the source port at random. With the client's own port, the kernel drops
// one of two packets that arrive for one endpoint at once (kubernetes/kubernetes#76699).
const MasqueradeRule = "-j MASQUERADE --random-fully"

// The rules whose counters are read. loopbackRule only counts. Connections to NodePorts of loopback
// addresses carry the masquerade mark, so few packets reach it.
const (
	invalidRule  = "-m conntrack --ctstate INVALID -j DROP"
	loopbackRule = "-m conntrack --ctorigdst 127.0.0.0/8"
)

// base returns the chains that do not depend on Services.
func (l layout) base(node *service.Node) []chain {
	if l.relays() {
		return l.relayBase()
	}
	mark := l.options.Marked()
	forward := []string{
		"-m mark --mark " + mark + " -j ACCEPT",
		"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	}
	if l.options.DropInvalid && !l.liberal {
		forward = append([]string{invalidRule}, forward...)
	}
	postrouting := append([]string{"-m conntrack --ctstate DNAT " + HairpinMatch(l.family) + MasqueradeRule}, l.masqueradeMarked()...)
	if l.localhost(node) {
		postrouting = slices.Insert(postrouting, 2, loopbackRule)
	}
	return []chain{
		{id{nat, markChain}, []string{"-j MARK --set-xmark " + mark}},
		{id{nat, markClusterChain}, MarkClusterRules(l.family, node, markChain)},
		{id{nat, postroutingChain}, postrouting},
		l.rejectChain(),
		{id{filter, forwardChain}, forward},
	}
}

// masqueradeMarked masquerades marked packets that were translated. Others may set the
// bit for purposes of their own: kubernetes/kubernetes#113659.
func (l layout) masqueradeMarked() []string {
	return []string{
		"-m mark ! --mark " + l.options.Marked() + " -j RETURN",
		"-m conntrack ! --ctstate DNAT -j RETURN",
		"-j MARK --set-xmark " + l.options.Unmark(),
		MasqueradeRule,
	}
}

func (l layout) rejectChain() chain { return chain{id{filter, refuseChain}, RejectRules(l.family)} }

// RejectRules tell the client that nothing listens.
func RejectRules(f service.Family) []string {
	unreachable := "icmp-port-unreachable"
	if f == service.IPv6 {
		unreachable = "icmp6-port-unreachable"
	}
	return []string{"-p tcp -j REJECT --reject-with tcp-reset", "-j REJECT --reject-with " + unreachable}
}

// healthChains accept packets to health checks, ahead of rules and a policy of INPUT that
// would drop them. ports are the rules at the root of their tree. The addresses of
// NodePorts answer health checks; the address of a relay never does.
func (l layout) healthChains(node *service.Node, ports []string) []chain {
	var rules []string
	if len(ports) > 0 {
		rules = l.nodePortRules(node, healthPortsChain)
	}
	if l.relays() && len(rules) > 0 {
		rules = append([]string{l.hidden()}, rules...)
	}
	return []chain{{id{filter, healthPortsChain}, ports}, {id{filter, healthChain}, rules}}
}

// MarkClusterRules send packets for a ClusterIP that need masquerading to chain.
func MarkClusterRules(f service.Family, node *service.Node, chain string) []string {
	mark := "-j " + chain
	switch {
	case node.MasqueradeAll:
		return []string{mark}
	case node.Pods.Known(f):
		return append(PodRules(f, node, "-j RETURN"), mark)
	}
	return nil
}

// HairpinMatch matches packets whose source is their destination. No other match compares two
// fields, so each endpoint would need a rule. The classic BPF program
// (docs.kernel.org/networking/filter.html) loads a word of the source into A, copies it to X, loads
// the same word of the destination, and goes on to the next while they are equal.
func HairpinMatch(f service.Family) string {
	source, words, size := 12, 1, 4
	if f == service.IPv6 {
		source, words, size = 8, 4, 16
	}
	var code []string
	for w := range words {
		at := source + 4*w
		failure := 4*(words-1-w) + 1
		code = append(code,
			fmt.Sprintf("32 0 0 %d", at), "7 0 0 0",
			fmt.Sprintf("32 0 0 %d", at+size),
			fmt.Sprintf("29 0 %d 0", failure))
	}
	code = append(code, "6 0 0 65535", "6 0 0 0")
	return fmt.Sprintf("-m bpf --bytecode \"%d,%s\" ", len(code), strings.Join(code, ","))
}

var loopback = [...]netip.Prefix{service.IPv4: netip.MustParsePrefix("127.0.0.0/8"), service.IPv6: netip.MustParsePrefix("::1/128")}

// martianRule protects loopback addresses: once the kernel routes them for NodePorts, it would
// accept packets to them from the network, too (kubernetes/kubernetes#92315).
const martianRule = "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"

// nonLocalSourceRule keeps other hosts from NodePorts on loopback addresses. The DNAT
// happens before the routing decision, so later rules cannot recognize such a packet.
const nonLocalSourceRule = "-d 127.0.0.0/8 -m addrtype ! --src-type LOCAL -j RETURN"

// localhost reports whether NodePorts answer on loopback addresses.
func (l layout) localhost(node *service.Node) bool { return l.wantsLocalhost(node) && !l.noLocalnet }

// wantsLocalhost reports whether the configuration requests that.
func (l layout) wantsLocalhost(node *service.Node) bool {
	if l.family != service.IPv4 || !l.options.LocalhostNodePorts {
		return false
	}
	return slices.ContainsFunc(node.NodePortPrefixes(l.family), loopback[l.family].Overlaps)
}

// nodePortRules jump to the NodePorts for packets to the addresses that answer them.
func (l layout) nodePortRules(node *service.Node, chain string) []string {
	rules := []string{"-d " + loopback[l.family].String() + " -j RETURN"}
	if l.localhost(node) {
		rules = []string{nonLocalSourceRule}
	}
	local := localOnly + "-j " + chain
	prefixes := node.NodePortPrefixes(l.family)
	if len(prefixes) == 0 {
		return nil
	}
	for _, p := range prefixes {
		switch {
		case p.Bits() == 0:
			return append(rules, local)
		case l.localhost(node) || !service.LoopbackOnly(p): // otherwise only listeners answer there
			rules = append(rules, "-d "+p.Masked().String()+" "+local)
		}
	}
	return rules
}

// portChains returns the chains that only p uses.
func (l layout) portChains(p *service.Port, node *service.Node) []chain {
	chains, _ := l.changedChains(p, nil, node)
	return chains
}

// portNames returns the names of the Ports that have chains of their own, by chain.
func (l layout) portNames(all ...*installed) map[id]service.PortName {
	names := map[id]service.PortName{}
	for _, of := range all {
		if of == nil || of.snapshot == nil {
			continue
		}
		for p := range of.snapshot.Ports(l.family) {
			for _, c := range l.portChains(p, of.snapshot.Node) {
				names[c.id] = p.Name
			}
		}
	}
	return names
}

// changedChains returns the chains that only p uses, except for those branches of lists
// that are the same as in old, which may be nil. same are these, without what is below.
func (l layout) changedChains(p, old *service.Port, node *service.Node) (all []chain, same []id) {
	if l.options.Role != nil {
		return nil, nil
	}
	for _, policy := range service.Policies {
		if UsesPolicy(p, policy) {
			chains, stay := l.listChains(p, old, policy)
			all, same = append(all, chains...), append(same, stay...)
		}
	}
	if !forwardsExternal(p) {
		return all, same
	}
	add := func(name string, rules []string) { all = append(all, chain{id{nat, name}, rules}) }
	add(portChainName(externalPrefix, p), l.externalRules(p, node))
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Sources != nil {
			add(firewallName(p, f), firewallRules(p, f))
		}
	}
	return all, same
}

func frontendKinds(p *service.Port) (internal, external bool) {
	for i := range p.Frontends {
		if p.Frontends[i].Kind.External() {
			external = true
		} else {
			internal = true
		}
	}
	return internal, external
}

// forwardsExternal reports whether an external frontend of p leads any client to an endpoint.
func forwardsExternal(p *service.Port) bool {
	_, external := frontendKinds(p)
	return external && (len(p.Cluster) > 0 || p.External == service.PolicyLocal && len(p.Local) > 0)
}

// hostPrefix returns the prefix that contains only a.
func hostPrefix(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// jumpAccept ends table nat for a connection that will be rejected: neither a NodePort
// rule nor another component may translate it before table filter sees it.
const jumpAccept = "-j ACCEPT"

// externalRules are for an external frontend. With policy Local, pods and the node itself reach
// every endpoint, external clients only those of this node.
func (l layout) externalRules(p *service.Port, node *service.Node) []string {
	anywhere := jumpAccept
	if len(p.Cluster) > 0 {
		anywhere = "-j " + portChainName(clusterPrefix, p)
	}
	if p.External == service.PolicyCluster {
		return l.markRules("", anywhere)
	}
	rules := PodRules(p.Family, node, anywhere)
	const own = "-m addrtype --src-type LOCAL "
	rules = append(rules, l.markRules(own, anywhere)...)
	if len(p.Local) == 0 {
		return append(rules, jumpAccept)
	}
	return append(rules, "-j "+portChainName(localPrefix, p))
}

// markRules mark matching packets for masquerading and continue with then. With a relay
// nothing is marked here: the relay has an address of its own, and with Bypass all
// packets are marked elsewhere.
func (l layout) markRules(match, then string) []string {
	if l.relays() {
		return []string{match + then}
	}
	return []string{match + "-j " + markChain, match + then}
}

func firewallName(p *service.Port, f *service.Frontend) string {
	return hashedName(firewallPrefix, p.Name.String(), p.Name.Protocol.String(), f.Addr.String())
}

// firewallRules admit the allowed sources of f.
func firewallRules(p *service.Port, f *service.Frontend) []string {
	return append(sourceRules(f.Sources, "-j "+portChainName(externalPrefix, p)), jumpAccept)
}

// sourceRules apply then to packets from one of the sources.
func sourceRules(sources []netip.Prefix, then string) []string {
	var rules []string
	for _, s := range sources {
		if s.Bits() == 0 {
			return []string{then}
		}
		rules = append(rules, "-s "+s.Masked().String()+" "+then)
	}
	return rules
}

// PodRules apply then to packets from pods, a rule for each way in which node detects them.
func PodRules(f service.Family, node *service.Node, then string) []string {
	switch pods := node.Pods; {
	case pods.Interface != "":
		return []string{"-i " + pods.Interface + " " + then}
	case pods.InterfacePrefix != "":
		return []string{"-i " + pods.InterfacePrefix + "+ " + then}
	default:
		return sourceRules(slices.Clone(service.InFamily(pods.Prefixes, f)), then)
	}
}

// comment returns the rule comment that names p.
func comment(p *service.Port) string { return commentOf(p.Name.String()) }

// commentOf returns the match for a rule comment. It replaces characters that iptables
// would quote or escape, and truncates text to 200 bytes.
func commentOf(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' {
			return '_'
		}
		return r
	}, text)
	return "-m comment --comment \"" + text[:min(len(text), 200)] + "\" "
}

// localnetMark is an empty chain that records that this proxy enabled route_localnet, so that a
// later process can disable it: without martianRule, loopback addresses would be reachable from the
// network. What others set is never changed.
var localnetMark = id{filter, "KUBE-LOCALNET"}

// readSettings reads the kernel settings that rules depend on, and reports whether any changed.
func (b *Backend) readSettings() (changed bool) {
	was := b.liberal
	b.liberal = b.options.DropInvalid && !b.relays() && b.driver.Liberal()
	return b.readLocalnet() || b.liberal != was
}

// readLocalnet checks whether loopback addresses are or can be routed, and reports whether that has
// changed. If they cannot, rules for them would let clients run into timeouts.
func (b *Backend) readLocalnet() (changed bool) {
	if b.family != service.IPv4 || !b.options.LocalhostNodePorts || b.relays() {
		return false
	}
	b.localnetRouted, b.localnetErr = b.driver.RouteLocalnetEnabled()
	was := b.noLocalnet
	b.noLocalnet = b.localnetErr != nil
	return b.noLocalnet != was
}

// NeedListeners reports whether listeners must answer NodePorts on loopback addresses, because this
// process may not let the kernel route these.
func (b *Backend) NeedListeners() bool {
	b.readLocalnet()
	b.listeners = b.noLocalnet
	return b.listeners
}

// planLocalnet sets in p whether route_localnet is to be enabled or disabled.
func (b *Backend) planLocalnet(p *plan) {
	want := p.next.snapshot
	b.degradedReason = ""
	switch {
	case b.relays() || !b.localhost(want.Node):
		p.enableLocalnet, p.disableLocalnet = false, b.localnetMarked && !want.Incomplete
		listens := b.listeners && want.Node.LocalhostNodePorts(b.family)
		if b.noLocalnet && !listens && b.wantsLocalhost(want.Node) && hasNodePort(want, b.family) {
			b.degradedReason = fmt.Sprintf("NodePorts do not answer on 127.0.0.1, because loopback addresses cannot be routed: %v: "+
				"set net.ipv4.conf.all.route_localnet to 1, iptables.localhostNodePorts to false, or let nodePortAddresses have localhost, "+
				"for which the process itself listens", b.localnetErr)
		}
	case hasNodePort(want, b.family):
		p.enableLocalnet = p.enableLocalnet || !b.localnetRouted
	}
}

// readLocalnetMark looks for the mark in t. If others removed it, the plan adds it again.
func (b *Backend) readLocalnetMark(p *plan, t *observed) {
	_, there := t.chains[localnetMark]
	if b.localnetMarked && !there {
		p.enableLocalnet = true
		return
	}
	b.localnetMarked = there
}

func hasNodePort(s *service.Snapshot, f service.Family) bool {
	for p := range s.Ports(f) {
		for i := range p.Frontends {
			if p.Frontends[i].Kind == service.NodePort {
				return true
			}
		}
	}
	return false
}

// routeLocalnet enables route_localnet, when the rule that protects loopback addresses exists.
func (p *plan) routeLocalnet(ctx context.Context) error {
	if !p.enableLocalnet {
		return nil
	}
	b := p.backend
	mark := change{writes: []chain{{id: localnetMark}}}
	if err := b.restore(ctx, &mark); err != nil {
		return fmt.Errorf("note that loopback addresses are routed: %w", err)
	}
	b.localnetMarked = true
	if err := b.driver.EnableRouteLocalnet(); err != nil {
		return fmt.Errorf("route loopback addresses for NodePorts: %w", err)
	}
	return nil
}

// stopRoutingLocalnet disables route_localnet, before the rule is removed.
func (p *plan) stopRoutingLocalnet(ctx context.Context) error {
	if !p.disableLocalnet {
		return nil
	}
	b := p.backend
	if err := b.driver.DisableRouteLocalnet(); err != nil {
		return fmt.Errorf("stop to route loopback addresses: %w", err)
	}
	mark := change{deletes: []id{localnetMark}}
	if err := b.restore(ctx, &mark); err != nil {
		return fmt.Errorf("note that loopback addresses are not routed: %w", err)
	}
	b.localnetMarked = false
	return nil
}

// relays reports whether the endpoints are listeners of a relay on this node.
func (l layout) relays() bool { return l.options.Relay[l.family].IsValid() }

// bypasses reports whether new connections bypass the relay.
func (l layout) bypasses() bool { return l.relays() && l.options.Bypass }

// root names the chains that are the roots of the trees of a table.
type root struct {
	services, nodePorts string
	before              []string // rules ahead of the tree
}

// roots returns those of table. With a relay, table nat has two: packets of the relay must not come
// back to it. What was redirected to a listener does not enter the tree of refusals, as the
// listener may have the port number of a NodePort that is refused.
func (l layout) roots(table string) []root {
	if table == filter && l.bound() {
		return []root{{servicesChain, nodePortsChain, []string{"-m conntrack --ctstate DNAT -j RETURN"}}}
	}
	if table != nat || !l.relays() {
		return []root{{services: servicesChain, nodePorts: nodePortsChain}}
	}
	return []root{
		{services: portalsInChain, nodePorts: nodePortsInChain},
		{portalsOutChain, nodePortsOutChain, []string{"-m mark --mark " + l.options.Marked() + " -j RETURN"}},
	}
}

// relayBase returns the chains that do not depend on Services. A relay forwards no
// packets. But connections that present or earlier rules led past it are forwarded, so
// chain FORWARD accepts them against other rules. With Bypass it accepts them before
// table nat redirects any, because tables change one after the other.
func (l layout) relayBase() []chain {
	mark := l.options.Marked()
	chains := []chain{l.rejectChain(), l.guard(), {id{filter, forwardChain}, []string{
		"-m mark --mark " + mark + " -j ACCEPT",
		"-m conntrack --ctstate NEW -j RETURN",
		"-m conntrack --ctstate DNAT -j ACCEPT",
	}}}
	if !l.bypasses() {
		return chains
	}
	return append(chains,
		chain{id{nat, markChain}, []string{"-j MARK --set-xmark " + mark}},
		chain{id{nat, postroutingChain}, l.masqueradeMarked()})
}

func (l layout) relayJumps() []jump {
	jumps := append([]jump{
		{id{nat, "PREROUTING"}, "-j " + portalsInChain},
		{id{nat, "OUTPUT"}, "-j " + portalsOutChain},
	}, l.guardJumps()...)
	if l.bypasses() {
		jumps = append(jumps, jump{id{nat, "POSTROUTING"}, "-j " + postroutingChain})
	}
	return jumps
}

// NewWith returns the Backend for one family that uses d.
func NewWith(f service.Family, o Options, d Driver) *Backend {
	return &Backend{layout: layout{family: f, options: o}, driver: d, rules: reconcile.Rules{Written: perTable()}}
}

// Replace changes all chains of b to those of want, whatever is there, or none.
func (b *Backend) Replace(ctx context.Context, want *service.Snapshot) error {
	b.installed = nil
	t, err := b.read(ctx)
	if err != nil {
		return err
	}
	p := b.planAll(t, nil, want)
	if p.Empty() {
		return nil
	}
	return b.program(ctx, p.text())
}

// program gives a text to iptables-restore.
func (b *Backend) program(ctx context.Context, text string) error {
	if err := b.driver.Restore(ctx, text); err != nil {
		return fmt.Errorf("program the tables of %s: %w", command(b.family), err)
	}
	return nil
}

// IsBusy reports whether err means that iptables did not run, and so refused no rules.
func IsBusy(err error) bool { return errors.Is(err, ErrBusy) }

// Destinations returns the translation targets of the chains in the tables, by chain
// name. It returns one endpoint per chain; with a relay there is only one.
func (b *Backend) Destinations(ctx context.Context) (map[string]netip.AddrPort, error) {
	h, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]netip.AddrPort{}
	for i, rules := range h.chains {
		for _, r := range rules {
			if to, err := netip.ParseAddrPort(packet.Argument(packet.Split(r), "--to-destination")); err == nil {
				all[i.name] = to
			}
		}
	}
	return all, nil
}

// ChainOf returns the name of the chain that translates to the endpoints of p for policy.
func ChainOf(p *service.Port, policy service.Policy) string {
	if policy == service.PolicyLocal {
		return portChainName(localPrefix, p)
	}
	return portChainName(clusterPrefix, p)
}

// UsesPolicy reports whether some frontend of p uses its endpoints for policy.
func UsesPolicy(p *service.Port, policy service.Policy) bool {
	internal, external := frontendKinds(p)
	if policy == service.PolicyLocal {
		return len(p.Local) > 0 && (external && p.External == policy || internal && p.Internal == policy)
	}
	return len(p.Cluster) > 0 && (external || internal && p.Internal == policy)
}
