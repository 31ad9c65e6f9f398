// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
)

// Question is a connection to follow through the tables.
type Question struct {
	// Want is the snapshot that the chains are for.
	Want *service.Snapshot
	Conn route.Conn
	// Local reports whether an address belongs to the node.
	Local func(netip.Addr) bool
	// Observed and Expected are mode ipvs' objects beside the chains: as they are, and should be.
	Observed, Expected Companion
}

// Companion is what IPVS and ipsets do with packets.
type Companion interface {
	// Local reports whether packets to an address are delivered to the node.
	Local(netip.Addr) bool
	// InSet reports whether fields of p, such as dst,src, are in a set.
	InSet(set, fields string, p packet.Packet) packet.Match
	// Server returns the destinations that take new connections of the virtual server
	// for p. found is false if there is none.
	Server(p packet.Packet) (to []netip.AddrPort, found bool)
}

// Trace reads the tables and returns what they do with the first packet of c. want is the
// snapshot that they are for. local reports whether an address belongs to the node.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	return b.Follow(ctx, Question{Want: want, Conn: c, Local: local})
}

// Follow is Trace for modes with more than chains. Every chain of ours that the packet meets, or
// should meet, is compared with the one that we write, as far as it concerns such packets. Rules of
// others are followed, too, and are a fault if they decide what happens.
func (b *Backend) Follow(ctx context.Context, q Question) (*explain.Walk, error) {
	if x := b.readingOfChains(ctx, q.Want); x != nil {
		if w := b.follow(q, x); x.chains.complete() {
			return w, nil
		}
	}
	x, err := b.reading(ctx, q.Want)
	if err != nil {
		return nil, err
	}
	return b.follow(q, x), nil
}

func (b *Backend) follow(q Question, x *reading) *explain.Walk {
	have := newPath(b.layout, x.observed, b.node(q, q.Observed))
	have.follow(q.Conn)
	plan := have
	if !x.asPlanned(have) {
		plan = newPath(b.layout, x.expected, b.node(q, q.Expected))
		plan.lists = have.lists
		plan.follow(q.Conn)
	}
	c := &traceComparison{layout: b.layout, reading: x, have: have, plan: plan}
	w := have.walk()
	w.Followed, w.Served = b.driver.SavedTables(), b.options.Role != nil && have.served
	w.Faults = c.faults()
	w.ByDesign = b.byDesign(q.Conn, x.want, w.Action)
	if b.needsLocalnet(q, x.want.Node, plan) {
		w.Faults = append(w.Faults, "net.ipv4.conf.all.route_localnet is 0, so the kernel routes no packet to a loopback address")
	}
	return w
}

// reading is what Follow reads for a snapshot, and what should be there.
type reading struct {
	of, want           *service.Snapshot // want has the NodePorts that are pending
	tables             *observed
	observed, expected *packet.Saved
	// same are the chains that were compared: whether they are as they should be. jumpFaults are the
	// faults of the jumps of built-in chains.
	same       map[id]bool
	jumpFaults map[id][]string
	chains     *chainsRead // nil if all were read at once
}

// chainLister is a Driver that can read chains one by one, for a packet that meets few of many.
type chainLister interface {
	// Chains returns what reads them, nil where all of a table are always read.
	Chains(context.Context) oneByOne
}

// oneByOne reads chains. It keeps the first error.
type oneByOne interface {
	Has(table, chain string) bool
	// Read returns a chain in the format of iptables-save.
	Read(table, chain string) string
	// Close returns an error if something could not be read, or changed since the beginning.
	Close() error
}

// chainsRead implements packet.Later with what the kernel has.
type chainsRead struct {
	oneByOne
	dormant []string // tables, whose chains do not count
	text    strings.Builder
}

func (r *chainsRead) Has(c packet.Chain) bool {
	return !slices.Contains(r.dormant, c.Table) && r.oneByOne.Has(c.Table, c.Name)
}

func (r *chainsRead) Load(c packet.Chain, to *packet.Saved) {
	text := r.Read(c.Table, c.Name)
	r.text.WriteString(text)
	to.Add(text)
}

// complete ends r. It reports whether all was read from the same tables.
func (r *chainsRead) complete() bool { return r.Close() == nil }

// readingOfChains reads chains when a packet comes there. It returns nil if all are to be read.
func (b *Backend) readingOfChains(ctx context.Context, of *service.Snapshot) *reading {
	l, can := b.driver.(chainLister)
	if !can || b.readsOnce || of.Node.NodePortsPending[b.family] {
		return nil
	}
	b.readSettings()
	dormant, err := b.driver.Dormant()
	if err != nil {
		return nil
	}
	from := l.Chains(ctx)
	if from == nil {
		return nil
	}
	r := &chainsRead{oneByOne: from, dormant: dormant}
	want := b.withPendingNodePorts(of, nil)
	return &reading{of, want, &observed{dormant: dormant}, packet.NewSaved(r), b.expectedTables(want), map[id]bool{}, map[id][]string{}, r}
}

// asPlanned reports whether a packet met nothing but chains that are as they should be. Then what
// should be there does the same with it.
func (x *reading) asPlanned(have *path) bool {
	if !have.alone || have.companion != nil || len(x.tables.dormant) > 0 {
		return false
	}
	for i := range have.visits {
		if !i.isSystem() && !x.isSame(i) {
			return false
		}
	}
	return true
}

func (x *reading) isSame(i id) bool {
	same, known := x.same[i]
	if !known {
		at := packet.Chain{Table: i.table, Name: i.name}
		same = x.expected.Has(at) && slices.EqualFunc(x.observed.List(at), x.expected.Texts(at), func(a packet.Rule, b string) bool {
			return a.Text == b || unquoted(a.Text) == unquoted(b)
		})
		x.same[i] = same
	}
	return same
}

// ReadOnce makes Follow and Trace read the tables once for a snapshot, for many connections.
func (b *Backend) ReadOnce() { b.readsOnce = true }

func (b *Backend) reading(ctx context.Context, of *service.Snapshot) (*reading, error) {
	if b.kept != nil && b.kept.of == of {
		return b.kept, nil
	}
	b.readSettings()
	text, t, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	want := b.withPendingNodePorts(of, t)
	x := &reading{of, want, t, packet.Parse(text), b.expectedTables(want), map[id]bool{}, map[id][]string{}, nil}
	for _, table := range t.dormant {
		x.observed.Remove(table)
	}
	if b.readsOnce {
		b.kept = x
	}
	return x, nil
}

// Differences returns what the mode does with c otherwise than Kubernetes says, once all of want is in force.
func Differences(want *service.Snapshot, c route.Conn, o Options) []string {
	does := route.Decide(want, c).Action
	if does == route.Drop {
		does = route.Pass
	}
	if text := (layout{family: service.FamilyOf(c.To.Addr()), options: o}).byDesign(c, want, does); text != "" {
		return []string{text}
	}
	return nil
}

// byDesign returns why the chains differ from what package route decides, "" if they should not.
func (l layout) byDesign(c route.Conn, want *service.Snapshot, does route.Action) string {
	if does != route.Pass && !c.To.Addr().IsLoopback() {
		return ""
	}
	v := route.Decide(want, c)
	switch {
	case l.options.Role != nil || v.Port != nil:
		return ""
	case v.Action == route.Drop && does == route.Pass:
		return "rules of iptables do not concern addresses of the Service range that no Service has"
	case v.Action == route.Pass && c.To.Addr().IsLoopback() && l.localhost(want.Node):
		return "on loopback addresses NodePorts answer programs of the node, see iptables.localhostNodePorts; explain node:PORT says what the Service does"
	}
	return ""
}

// needsLocalnet reports whether the connection needs route_localnet, which is off.
func (b *Backend) needsLocalnet(q Question, node *service.Node, plan *path) bool {
	return q.Conn.To.Addr().Is4() && q.Conn.To.Addr().IsLoopback() && !b.relays() &&
		b.localhost(node) && !b.localnetRouted && len(plan.targets) > 0
}

// expectedTables returns the tables as they should be. They get a chain when it is asked for.
func (b *Backend) expectedTables(want *service.Snapshot) *packet.Saved {
	chains := map[id][]string{}
	add := func(all []chain) {
		for _, c := range all {
			chains[c.id] = c.rules
		}
	}
	add(b.shared(want.Node, want.Ports(b.family), nil))
	for _, j := range b.jumps() {
		chains[j.from] = append(chains[j.from], j.rule)
	}
	ofPorts := sync.OnceFunc(func() {
		for p := range want.Ports(b.family) {
			add(b.portChains(p, want.Node))
		}
	})
	return packet.NewSaved(&chainsExpected{chains, func(i id) {
		if b.options.Role.owns(i) {
			ofPorts()
		}
	}})
}

// chainsExpected implements packet.Later with what should be there.
type chainsExpected struct {
	chains map[id][]string
	more   func(id) // adds chains, if one is missing
}

func (e *chainsExpected) Has(c packet.Chain) bool {
	if _, has := e.chains[idOf(c)]; has {
		return true
	}
	e.more(idOf(c))
	_, has := e.chains[idOf(c)]
	return has
}

func (e *chainsExpected) Load(c packet.Chain, to *packet.Saved) { to.Append(c, e.chains[idOf(c)]...) }

// node answers for rules that depend on more than the headers of a packet.
func (b *Backend) node(q Question, c Companion) *traceNode {
	hairpin := packet.Argument(packet.Split(HairpinMatch(b.family)+"-j"), "--bytecode")
	return &traceNode{companion: c, local: q.Local, hairpin: hairpin, recent: b.driver.Recent, lists: map[string]map[netip.Addr]time.Duration{}}
}

// traceNode implements packet.Node and packet.Lists.
type traceNode struct {
	companion Companion // nil in other modes than ipvs
	local     func(netip.Addr) bool
	hairpin   string
	recent    func(list string) (map[netip.Addr]time.Duration, error)
	lists     map[string]map[netip.Addr]time.Duration // those that were read
}

func (n *traceNode) Local(a netip.Addr) bool {
	if n.companion != nil {
		return n.companion.Local(a)
	}
	return n.local(a)
}

// Route implements packet.Node. It knows addresses of the node only.
func (n *traceNode) Route(a netip.Addr) (packet.Link, uint8) {
	if n.Local(a) {
		return packet.Loopback(), packet.Local
	}
	return packet.Link{Unknown: true}, 0
}

func (n *traceNode) InSet(name, fields string, p packet.Packet) packet.Match {
	if n.companion == nil {
		return packet.Maybe
	}
	return n.companion.InSet(name, fields, p)
}

// Bytecode implements packet.Lists. It knows the program that we write.
func (n *traceNode) Bytecode(code string, p packet.Packet) packet.Match {
	switch {
	case code != n.hairpin:
		return packet.Maybe
	case p.From == p.To.Addr():
		return packet.Yes
	}
	return packet.No
}

// Listed implements packet.Lists. It reads each list once.
func (n *traceNode) Listed(list, seconds string, client netip.Addr) packet.Match {
	clients, asked := n.lists[list]
	if !asked {
		var err error
		if clients, err = n.recent(list); err == nil && clients == nil {
			clients = map[netip.Addr]time.Duration{}
		}
		n.lists[list] = clients // nil if they cannot be read
	}
	age, found := clients[client]
	limit, err := strconv.Atoi(seconds)
	switch {
	case clients == nil, err != nil && seconds != "":
		return packet.Maybe
	case found && (seconds == "" || age < time.Duration(limit)*time.Second):
		return packet.Yes
	}
	return packet.No
}

// traceComparison compares what a packet meets in the tables with what it should meet.
type traceComparison struct {
	layout
	*reading
	have, plan *path
	list       []string
}

// faults lists the differences. Rules that concern other packets only are left out.
func (c *traceComparison) faults() []string {
	for _, table := range c.tables.dormant {
		c.fault("table %s %s has the flag dormant, so the kernel runs none of its chains", netlink.FamilyName(c.family), table)
	}
	visits := maps.Clone(c.plan.visits)
	for i, all := range c.have.visits {
		if c.plan != c.have {
			all = slices.Concat(visits[i], all)
		}
		visits[i] = all
	}
	all := slices.SortedFunc(maps.Keys(visits), id.compare)
	if c.chains != nil {
		for _, i := range all {
			c.observed.List(packet.Chain{Table: i.table, Name: i.name})
		}
		c.tables = parse(c.chains.text.String(), c.options.Role)
		c.tables.dormant = c.chains.dormant
	}
	for _, i := range all {
		switch {
		case slices.Contains(c.tables.dormant, i.table):
		case c.options.Role.owns(i) && !c.isSame(i):
			c.compareChain(i, visits[i])
		case i.isSystem():
			if _, compared := c.jumpFaults[i]; !compared {
				c.jumpFaults[i] = c.compareJumps(i)
			}
			for _, text := range c.jumpFaults[i] {
				c.fault("%s", text)
			}
		}
	}
	c.foreign()
	return c.list
}

func (c *traceComparison) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.list, text) {
		c.list = append(c.list, text)
	}
}

// compareChain compares the rules of a chain that concern one of the packets.
func (c *traceComparison) compareChain(i id, packets []packet.Packet) {
	at := packet.Chain{Table: i.table, Name: i.name}
	switch {
	case !c.have.tables.Has(at):
		c.fault("chain %s of table %s is missing", i.name, i.table)
		return
	case !c.plan.tables.Has(at):
		c.fault("chain %s of table %s is not one of kube-proxy's now", i.name, i.table)
		return
	}
	have := concerning(c.have.tables.List(at), packets)
	want := concerning(c.plan.tables.List(at), packets)
	c.compareRules(i, have, want)
}

func concerning(rules []packet.Rule, packets []packet.Packet) []string {
	var all []string
	for i := range rules {
		if slices.ContainsFunc(packets, func(p packet.Packet) bool { return packet.Concerns(&rules[i], p) }) {
			all = append(all, rules[i].Text)
		}
	}
	return all
}

// mostRules bounds how many rules of a chain are named.
const mostRules = 3

func (c *traceComparison) compareRules(in id, have, want []string) {
	same := func(a, b string) bool { return unquoted(a) == unquoted(b) }
	if slices.EqualFunc(have, want, same) {
		return
	}
	missing, extra := without(want, have), without(have, want)
	for _, r := range missing[:min(mostRules, len(missing))] {
		c.fault("chain %s of table %s lacks the rule %q", in.name, in.table, r)
	}
	if n := len(missing) - mostRules; n > 0 {
		c.fault("chain %s of table %s lacks %d more rules", in.name, in.table, n)
	}
	for _, r := range extra[:min(mostRules, len(extra))] {
		c.fault("chain %s of table %s has the rule %q, which is not kube-proxy's", in.name, in.table, r)
	}
	if n := len(extra) - mostRules; n > 0 {
		c.fault("chain %s of table %s has %d more rules that are not kube-proxy's", in.name, in.table, n)
	}
	if len(missing)+len(extra) == 0 {
		c.fault("chain %s of table %s has its rules in another order", in.name, in.table)
	}
}

// without returns those of rules that others lacks, each as often as it occurs more.
func without(rules, others []string) []string {
	left := map[string]int{}
	for _, r := range others {
		left[unquoted(r)]++
	}
	var all []string
	for _, r := range rules {
		if left[unquoted(r)]--; left[unquoted(r)] < 0 {
			all = append(all, r)
		}
	}
	return all
}

// compareJumps returns what is wrong with the rules of a built-in chain that lead to our chains.
func (c *traceComparison) compareJumps(from id) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	jumps := slices.DeleteFunc(c.layout.jumps(), func(j jump) bool { return j.from != from })
	for _, j := range c.tables.missingJumps(jumps) {
		fault("chain %s of table %s lacks the rule %q", from.name, from.table, j.rule)
	}
	for _, m := range c.tables.misplaced(jumps) {
		fault("%s", m)
	}
	stay := map[id]bool{}
	for _, j := range jumps {
		stay[id{from.table, targetOf(packet.Split(j.rule))}] = true
	}
	for _, j := range c.tables.extraJumps(stay, jumps) {
		if j.from == from {
			fault("chain %s of table %s has the rule %q, which kube-proxy did not make", from.name, from.table, j.rule)
		}
	}
	return faults
}

// foreign names rules and policies of others that decide what happens to the connection.
func (c *traceComparison) foreign() {
	if c.have.action() == c.plan.action() && sameTargets(c.have, c.plan) {
		return
	}
	for _, s := range c.have.accepted {
		c.fault("%s lets the packet pass, so that later rules do not see it, and is not kube-proxy's", s)
	}
	for to := range c.have.targets {
		if _, planned := c.plan.targets[to]; !planned && !c.translates(to.String()) {
			c.fault("a rule that is not kube-proxy's leads to %s", to)
		}
	}
}

func sameTargets(a, b *path) bool { return maps.Equal(a.targets, b.targets) }

// translates reports whether a chain of ours that a packet met leads to an address. Then
// the comparison of that chain has named the rule.
func (c *traceComparison) translates(to string) bool {
	for i := range c.have.visits {
		if !c.options.Role.owns(i) {
			continue
		}
		for _, r := range c.have.tables.List(packet.Chain{Table: i.table, Name: i.name}) {
			if strings.Contains(r.Text, "--to-destination "+to) {
				return true
			}
		}
	}
	return false
}

// purpose says what the rules of a chain do.
func (p *path) purpose(c packet.Chain) string {
	if p.relays() && !p.bypasses() && strings.HasPrefix(c.Name, "KUBE-SV") {
		return "redirect it to a listener of kube-proxy"
	}
	if text, ok := purposes[idOf(c)]; ok {
		return text
	}
	prefixes := prefixPurposes
	if r := p.options.Role; r != nil {
		if text, ok := r.Purposes[c.Name]; ok {
			return text
		}
		prefixes = []prefixPurpose{{r.Branches, addrPurpose}}
	}
	for _, x := range prefixes {
		if strings.HasPrefix(c.Name, x.prefix) {
			return x.text
		}
	}
	return "go on there"
}

var purposes = map[id]string{
	{nat, servicesChain}:       "look for the Service of the address",
	{nat, portalsInChain}:      "look for the Service of the address",
	{nat, portalsOutChain}:     "look for the Service of the address, unless the relay sends it",
	{nat, nodePortsChain}:      "the address is the node's: look for the NodePort",
	{nat, nodePortsInChain}:    "the address is the node's: look for the NodePort",
	{nat, nodePortsOutChain}:   "the address is the node's: look for the NodePort",
	{nat, markChain}:           "masquerade it later",
	{nat, markClusterChain}:    "masquerade it later, unless it comes from a pod",
	{nat, postroutingChain}:    "masquerade it if it is to be",
	{filter, servicesChain}:    "refuse or drop what no rule translated, for Services without endpoints",
	{filter, nodePortsChain}:   "the same for NodePorts",
	{filter, forwardChain}:     "accept Service traffic",
	{filter, refuseChain}:      "refuse it",
	{filter, relayChain}:       "keep other clients from the listeners of the relay",
	{filter, healthChain}:      "accept health checks",
	{filter, healthPortsChain}: "the ports of health checks",
}

type prefixPurpose struct{ prefix, text string }

const addrPurpose = "go on with this part of the addresses"

var prefixPurposes = []prefixPurpose{
	{clusterPrefix, "choose an endpoint at random"},
	{localPrefix, "choose an endpoint on this node at random"},
	{externalPrefix, "an external address: masquerade it later if that is needed"},
	{firewallPrefix, "admit the allowed sources"},
	{addrPrefix, addrPurpose},
	{portPrefix, "go on with this part of the ports"},
	{healthPrefix, "go on with this part of the ports"},
}
