// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/crc32"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// A chain with many endpoints would be written whole for each one that comes or goes, as one
// endpoint changes the probability of every rule before it, and a connection would be compared with
// half of the rules. So the endpoints are split into branches by four bits of their checksums,
// again and again where a branch is too large. The shape depends only on the endpoints: one of them
// changes one branch, and the rules that lead there.
const (
	listSize = 64 // a list or branch with more endpoints is split
	listBits = 4
	// A branch with this part of listSize, or less, gets no chain of its own.
	listInline = 32
)

// list builds the chains that hold the endpoints of a port for one policy.
type list struct {
	layout
	port   *service.Port
	prefix string  // of the names of the chains
	chains []chain // the branches
	same   []id    // branches that are the same as before, which are left out
	known  bool    // what was before is known
}

// member is an endpoint of a list.
type member struct {
	addr netip.AddrPort
	sum  uint32
}

// listChains returns the chain that sends a connection to one of the endpoints of p for policy,
// each as likely, and its branches. With session affinity, a client returns to its endpoint.
// Branches that are the same as in old, which may be nil, are left out with all below them and
// returned as same.
func (l layout) listChains(p, old *service.Port, policy service.Policy) (chains []chain, same []id) {
	t := &list{layout: l, port: p, prefix: clusterPrefix}
	if policy == service.PolicyLocal {
		t.prefix = localPrefix
	}
	members := t.members(p.EndpointsFor(policy))
	var was []member
	if t.known = old != nil && old.Affinity == p.Affinity && UsesPolicy(old, policy); t.known {
		was = t.members(old.EndpointsFor(policy))
	}
	rules := l.listMarks(p, policy)
	if p.Affinity > 0 {
		rules = append(rules, t.returning(members, was, 0, "")...)
	}
	rules = append(rules, t.drawing(members, was, 0, "")...)
	return append([]chain{{id{nat, portChainName(t.prefix, p)}, rules}}, t.chains...), t.same
}

// listMarks are the rules at the head of a list.
func (l layout) listMarks(p *service.Port, policy service.Policy) []string {
	var rules []string
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Kind == service.ClusterIP && p.Internal == policy && !l.relays() {
			rules = append(rules, "-d "+hostPrefix(f.Addr)+" -j "+markClusterChain)
		}
	}
	if l.bypasses() {
		rules = append(rules, "-j "+markChain)
	}
	return rules
}

// listSize is how many endpoints a chain may have.
func (l layout) listSize() int { return cmp.Or(l.options.ListSize, listSize) }

// members returns endpoints in the order of the tree. A list that is not split keeps its order.
func (l *list) members(endpoints []service.Endpoint) []member {
	all := make([]member, len(endpoints))
	if len(endpoints) <= l.listSize() {
		for i, e := range endpoints {
			all[i].addr = e.Addr
		}
		return all
	}
	keys := make([]uint64, len(endpoints)) // the checksum, then the position
	for i, e := range endpoints {
		keys[i] = uint64(checksum(e.Addr))<<32 | uint64(i)
	}
	slices.Sort(keys)
	for i, k := range keys {
		all[i] = member{endpoints[uint32(k)].Addr, uint32(k >> 32)}
	}
	return all
}

// checksum spreads endpoints with similar addresses.
func checksum(a netip.AddrPort) uint32 {
	ip := a.Addr().As16()
	return crc32.ChecksumIEEE(append(ip[:], byte(a.Port()>>8), byte(a.Port())))
}

// isLeaf reports whether members need no branches below depth, in bits.
func (l *list) isLeaf(members []member, depth int) bool {
	return len(members) <= l.listSize() || depth == 32
}

// branch is a part of a list.
type branch struct {
	members, was []member // now and before
	path         string   // from the root, a digit for each level
}

// branches splits members by the bits that follow depth.
func branches(members, was []member, depth int, path string) []branch {
	digit := func(m member) uint32 { return m.sum >> (32 - listBits - depth) & (1<<listBits - 1) }
	// cut cuts off the members with digit n.
	cut := func(all *[]member, n uint32) []member {
		end := 0
		for end < len(*all) && digit((*all)[end]) == n {
			end++
		}
		part := (*all)[:end]
		*all = (*all)[end:]
		return part
	}
	var all []branch
	for n := range uint32(1 << listBits) {
		old := cut(&was, n)
		if part := cut(&members, n); len(part) > 0 {
			all = append(all, branch{part, old, fmt.Sprintf("%s%x", path, n)})
		}
	}
	return all
}

// stays reports whether the chains of b are the same as before.
func (l *list) stays(b branch) bool { return l.known && slices.Equal(b.members, b.was) }

// drawing returns the rules that send a connection to one of members, and adds the chains below.
func (l *list) drawing(members, was []member, depth int, path string) []string {
	if l.isLeaf(members, depth) {
		return l.draw(nil, members, len(members))
	}
	var rules []string
	left := len(members)
	for _, b := range branches(members, l.split(was, depth), depth, path) {
		if n := len(b.members); n <= l.listSize()/listInline {
			rules = l.draw(rules, b.members, left)
		} else {
			name := l.add("/", b, func() []string { return l.drawing(b.members, b.was, depth+listBits, b.path) })
			rules = append(rules, randomMatch(n, left)+"-j "+name)
		}
		left -= len(b.members)
	}
	return rules
}

// split returns was if it had branches, too.
func (l *list) split(was []member, depth int) []member {
	if l.isLeaf(was, depth) {
		return nil
	}
	return was
}

// draw appends rules for members, which are among the left ones that may still be drawn.
func (l *list) draw(rules []string, members []member, left int) []string {
	for i, m := range members {
		match := randomMatch(1, left-i)
		if l.port.Affinity > 0 {
			match += recentMatch(l.port, m.addr, "--set")
		}
		rules = append(rules, dnat(l.port, m.addr, match))
	}
	return rules
}

// returning returns the rules that send a client back to one of members, and adds the chains below.
func (l *list) returning(members, was []member, depth int, path string) []string {
	var rules []string
	if l.isLeaf(members, depth) {
		again := fmt.Sprintf("--update --seconds %d --reap", l.port.Affinity/time.Second)
		for _, m := range members {
			rules = append(rules, dnat(l.port, m.addr, recentMatch(l.port, m.addr, again)))
		}
		return rules
	}
	for _, b := range branches(members, l.split(was, depth), depth, path) {
		below := func() []string { return l.returning(b.members, b.was, depth+listBits, b.path) }
		if len(b.members) <= l.listSize()/listInline {
			rules = append(rules, below()...)
		} else {
			rules = append(rules, "-j "+l.add("/again/", b, below))
		}
	}
	return rules
}

// add adds the chain of a branch, and returns its name. kube-proxy removes chains with such names.
func (l *list) add(kind string, b branch, rules func() []string) string {
	i := id{nat, hashedName(l.prefix, l.port.Name.String(), l.port.Name.Protocol.String(), kind+b.path)}
	if l.stays(b) {
		l.same = append(l.same, i)
	} else {
		l.chains = append(l.chains, chain{i, rules()})
	}
	return i.name
}

func dnat(p *service.Port, to netip.AddrPort, match string) string {
	return "-p " + p.Name.Protocol.String() + " " + match + "-j DNAT --to-destination " + to.String()
}

// randomMatch matches n of all connections. The kernel compares probabilities in units
// of 2^-31 (kernel: net/netfilter/xt_statistic.c, statistic_mt).
func randomMatch(n, all int) string {
	if n == all {
		return ""
	}
	const one = 1 << 31
	return fmt.Sprintf("-m statistic --mode random --probability %.11f ", math.Round(one*float64(n)/float64(all))/one)
}

// recentMatch applies action to the list of clients that use an endpoint. The list exists while a
// rule refers to it (kernel: net/netfilter/xt_recent.c, recent_mt_destroy).
func recentMatch(p *service.Port, to netip.AddrPort, action string) string {
	return "-m recent " + action + " --name " + recentList(p, to) + " --mask " + fullMask(p.Family) + " --rsource "
}

func recentList(p *service.Port, to netip.AddrPort) string {
	return hashedName(recentPrefix, p.Name.String(), p.Name.Protocol.String(), to.String())
}

func fullMask(f service.Family) string {
	if f == service.IPv6 {
		return "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
	}
	return "255.255.255.255"
}

// entry is an element of a tree: the rules for an address and port, a NodePort, or any port.
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

// compare groups the entries of a tree. Of one address, that for all ports comes last.
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

// standaloneEntries returns the entries of p, maybe several for all ports of one address.
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

// rejectRules returns the rules for untranslated packets to f, nil if all get an endpoint.
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

// The tables that hold our chains.
const (
	nat      = "nat"
	filter   = "filter"
	mangle   = "mangle"
	rawTable = "raw"
)

var tables = []string{nat, filter}

// id identifies a chain.
type id struct{ table, name string }

func (i id) compare(j id) int {
	return cmp.Or(-cmp.Compare(i.table, j.table), cmp.Compare(i.name, j.name))
}

// chain is a chain with its rules, each as iptables-save prints it behind the name of the chain.
type chain struct {
	id
	rules []string
}

// sum is a checksum of the rules of a chain.
type sum struct {
	hash  [16]byte
	rules int
}

// sum is equal for chains that are equal to iptables, whatever their quotation marks are.
func (c chain) sum() sum {
	h := sha256.New()
	for _, r := range c.rules {
		h.Write([]byte(unquoted(r)))
		h.Write([]byte{'\n'})
	}
	return sum{[16]byte(h.Sum(nil)), len(c.rules)}
}

// unquoted returns r without quotation marks, with a separator that no argument contains.
func unquoted(r string) string {
	if !strings.Contains(r, "\"") {
		return strings.ReplaceAll(r, " ", "\x00")
	}
	return strings.Join(packet.Split(r), "\x00")
}

// Names of chains. Prefixes end with a dash.
const (
	servicesChain    = "KUBE-SERVICES"
	nodePortsChain   = "KUBE-NODEPORTS"
	postroutingChain = "KUBE-POSTROUTING"
	markChain        = "KUBE-MARK-MASQ"
	markClusterChain = "KUBE-MARK-CLUSTER"
	forwardChain     = "KUBE-FORWARD"
	refuseChain      = "KUBE-REFUSE"
	relayChain       = "KUBE-PORTALS" // protects the address of a relay
	healthChain      = "KUBE-HEALTH-CHECKS"
	healthPortsChain = "KUBE-HEALTH-PORTS"

	// With a relay, these are the roots in table nat, as in mode userspace of
	// kube-proxy: for incoming packets and for packets of the node itself.
	portalsInChain    = "KUBE-PORTALS-CONTAINER"
	portalsOutChain   = "KUBE-PORTALS-HOST"
	nodePortsInChain  = "KUBE-NODEPORT-CONTAINER"
	nodePortsOutChain = "KUBE-NODEPORT-HOST"

	clusterPrefix  = "KUBE-SVC-" // the endpoints for policy Cluster
	localPrefix    = "KUBE-SVL-" // the endpoints for policy Local
	externalPrefix = "KUBE-EXT-" // packets to an external address
	firewallPrefix = "KUBE-FW-"  // the same, with allowed sources
	recentPrefix   = "KUBE-SEP-" // not a chain but a list of clients
	addrPrefix     = "KUBE-IP-"  // a branch of the tree of addresses
	portPrefix     = "KUBE-NP-"  // a branch of the tree of NodePorts
	healthPrefix   = "KUBE-HC-"  // a branch of the tree of healthCheckNodePorts
)

// proxyChainNames and proxyChainPrefixes are the names that only a service proxy gives
// to its chains. Some of them are not used by this proxy. Chains of kubelet, such as
// KUBE-MARK-DROP, KUBE-FIREWALL and KUBE-KUBELET-CANARY, are not among them.
var (
	proxyChainNames = map[string][]string{
		nat: {servicesChain, nodePortsChain, postroutingChain, markChain, markClusterChain,
			portalsInChain, portalsOutChain, nodePortsInChain, nodePortsOutChain},
		filter: {servicesChain, nodePortsChain, forwardChain, refuseChain, "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL",
			relayChain, healthChain, healthPortsChain, localnetMark.name, "KUBE-NODEPORT-NON-LOCAL"},
	}
	proxyChainPrefixes = []string{
		clusterPrefix, localPrefix, externalPrefix, firewallPrefix, recentPrefix, "KUBE-XLB-",
	}
)

// entryChains are those to which some version of a service proxy jumps from built-in chains.
var entryChains = []string{
	servicesChain, nodePortsChain, postroutingChain, forwardChain,
	portalsInChain, portalsOutChain, nodePortsInChain, nodePortsOutChain, healthChain,
}

const (
	hashLen      = 16
	base32Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// hashedName returns prefix with hashLen characters of a hash of parts.
func hashedName(prefix string, parts ...string) string {
	s := sha256.Sum256([]byte(strings.Join(parts, "")))
	return prefix + base32.StdEncoding.EncodeToString(s[:])[:hashLen]
}

func portChainName(prefix string, p *service.Port) string {
	return hashedName(prefix, p.Name.String(), p.Name.Protocol.String())
}

// addrBranch returns the name of the branch for the addresses in p, which begins with prefix.
func addrBranch(prefix string, p netip.Prefix) string {
	if p.Addr().Is4() {
		return prefix + p.String()
	}
	return hashedName(prefix, p.String())
}

// portBranch returns the name of the branch for the ports from low to high.
func portBranch(prefix string, proto service.Protocol, low, high uint16) string {
	name := prefix + strings.ToUpper(proto.String())
	if low == 0 && high == 1<<16-1 {
		return name
	}
	return fmt.Sprintf("%s-%d-%d", name, low, high)
}
