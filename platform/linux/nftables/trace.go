// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
)

// ruleset is a table as packets meet it.
type ruleset interface {
	// name is that of the table.
	name() string
	// rules returns the rules of a chain.
	rules(chain string) []packet.Rule
	// set returns one of our sets, nil if it is none.
	set(name string) *set
	// element returns the element of s with this key, or the interval that contains it.
	element(s *set, key []byte) (element, bool)
}

// tracer follows the first packet of a connection through a ruleset and says what it meets. It
// implements packet.Tables for package packet, which follows all slots of a random number.
type tracer struct {
	ruleset
	family service.Family
	base   string // the base chain
	out    *explain.Walk
	quiet  bool     // record no hops
	chosen *set     // the map that had the destination
	values [][]byte // that maps had
}

// localNode implements packet.Node. Its addresses are all that our rules ask for.
type localNode func(netip.Addr) bool

func (l localNode) Local(a netip.Addr) bool { return l(a) }

// Route implements packet.Node. Every address has one.
func (l localNode) Route(netip.Addr) (packet.Link, uint8) { return packet.Link{}, packet.Unicast }

// trace runs the chains of the hooks that c passes.
func trace(r ruleset, family service.Family, c route.Conn, local func(netip.Addr) bool) *explain.Walk {
	t := &tracer{ruleset: r, family: family, out: &explain.Walk{}}
	p := packet.New(localNode(local), c)
	p.In, p.Seen = packet.Link{Name: c.Interface}, true
	entry := "prerouting"
	if c.Interface == "" {
		entry = "output"
	}
	f := t.run(p, entry)
	if len(f.Targets) == 0 && f.Does == explain.Passes && !c.ToNode {
		f = t.run(p, "postrouting")
	}
	switch {
	case len(f.Targets) > 0:
		t.forward(p, f)
	case f.Does == explain.Drops:
		t.out.Action = route.Drop
		t.end(f, "drop")
	case f.Does == explain.Refuses:
		t.out.Action = route.Reject
		t.end(f, f.By.Text)
	case f.Does == explain.Translates: // by a rule of others
		t.end(f, "")
	}
	return t.out
}

// end records the rule that ends the packet. Those of others have no text.
func (t *tracer) end(f packet.Finding, text string) {
	if f.By.Text == "" {
		text = string(f.Does) + ", by " + f.By.String()
	}
	t.hop("rule", "%s", text)
}

// forward follows p to each endpoint that the rules may choose.
func (t *tracer) forward(p *packet.Packet, f packet.Finding) {
	t.out.Action, t.out.Targets = route.Forward, map[netip.AddrPort]bool{}
	switch {
	case t.chosen == nil || f.Does == explain.Translates && f.By.Text == "":
		t.end(f, "")
	case t.chosen.kind == addrMap:
		t.out.Remembered = f.To
		t.hop("map "+t.chosen.name, "the client had %s before", f.To)
	default:
		t.hop("map "+t.chosen.name, "%s", explain.OneOf("endpoints", f.Targets))
		if len(t.chosen.key) == 1 { // a Port's own, where a hash of the client may be the key
			t.out.Remembered = f.To
		}
	}
	t.quiet = true
	for _, to := range f.Targets {
		after := *p
		after.To, after.Translated = to, true
		t.out.Targets[to] = t.run(&after, "postrouting").Does == explain.Masquerades
	}
}

// run runs a base chain. All chains are ours, so what could be otherwise by chance alone counts.
func (t *tracer) run(p *packet.Packet, base string) packet.Finding {
	t.base = base
	w := packet.Walk{Tables: t, Packet: p, Owns: func(packet.Chain) bool { return true }}
	f, _ := w.Run(packet.Base{Chain: packet.Chain{Table: t.name(), Name: base}}) // Rules and Set return no error
	return f
}

func (t *tracer) hop(object, format string, args ...any) {
	if !t.quiet {
		t.out.Hops = append(t.out.Hops, explain.Hop{Object: object, Does: fmt.Sprintf(format, args...)})
	}
}

// Rules implements packet.Tables. It is called when the packet enters the chain.
func (t *tracer) Rules(c packet.Chain) ([]packet.Rule, error) {
	if c.Name != t.base {
		t.hop("chain "+c.Name, "%s", purpose(c.Name))
	}
	all := slices.Clone(t.rules(c.Name))
	for i := range all {
		all[i].Expressions = t.withSets(all[i].Expressions)
	}
	return all, nil
}

// withSets adds our sets to lookups. What is in those of others is not known.
func (t *tracer) withSets(all []packet.Expression) []packet.Expression {
	if !slices.ContainsFunc(all, func(x packet.Expression) bool { _, is := x.(packet.Lookup); return is }) {
		return all
	}
	all = slices.Clone(all)
	for i, x := range all {
		l, ok := x.(packet.Lookup)
		if !ok {
			continue
		}
		if in := t.set(l.Set); in != nil {
			l.In = &packet.Set{KeySize: keySize(in.key, t.family), Get: func(key []byte) (packet.Element, bool) { return t.find(in, key) }}
			all[i] = l
		} else {
			all[i] = packet.Chance{Name: "set or map " + l.Set, To: l.To}
		}
	}
	return all
}

// compile returns rules as package packet evaluates them. The text is that of the last statement.
func compile(rules []rule, f service.Family) []packet.Rule {
	var all []packet.Rule
	for _, r := range rules {
		x := packet.Rule{Text: r[len(r)-1].text(f)}
		for _, s := range r {
			x.Expressions = append(x.Expressions, s.expressions(f)...)
		}
		all = append(all, x)
	}
	return all
}

func (t *tracer) find(in *set, key []byte) (packet.Element, bool) {
	e, found := t.element(in, key)
	if !found {
		return packet.Element{}, false
	}
	switch text := keyText(in.key, t.family, key, nil); in.kind {
	case plainSet:
		t.hop("set "+in.name, "%s is in it", text)
	case verdictMap:
		t.hop("map "+in.name, "%s : %s%s", text, e.verdict.text(t.family), commentText(e))
	default:
		t.chosen, t.values = in, append(t.values, e.value)
	}
	return packet.Element{Key: key, Data: e.value, Verdict: &packet.Verdict{Code: verdictCodes[e.verdict.code], Chain: e.verdict.chain}}, true
}

// Set implements packet.Tables. Lookups have their sets.
func (t *tracer) Set(packet.Chain, string) (*packet.Set, error) { return &packet.Set{}, nil }
func (t *tracer) Bases() []packet.Base                          { return nil }

func commentText(e element) string {
	if e.comment == "" {
		return ""
	}
	return ", of " + e.comment
}

// Trace reads the table and says what it does with the first packet of c, for the snapshot want.
// local reports whether an address belongs to the node. If all rules of a chain have our
// fingerprints, they count as we write them. Otherwise the kernel's are followed, and are a fault
// of the Walk. Elements are always the kernel's.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	x, err := b.reading(ctx, want, c)
	if err != nil {
		return nil, err
	}
	r, plan := x.observed, x.expected
	switch {
	case r.table == nil:
		return &explain.Walk{Faults: []string{fmt.Sprintf("there is no table %s", b.name())}}, nil
	case r.table.dormant:
		return &explain.Walk{Faults: []string{fmt.Sprintf("table %s has the flag dormant, so the kernel runs none of its chains", b.name())}}, nil
	}
	r.faults, plan.met = nil, nil
	w := trace(r, b.family, c, local)
	w.Followed = []string{b.name()}
	trace(plan, b.family, c, local)
	for _, e := range plan.met {
		r.checkElement(e)
	}
	if r.err != nil {
		return nil, fmt.Errorf("read table %s: %w", b.name(), r.err)
	}
	w.Faults = append(w.Faults, r.faults...)
	if w.Action == route.Reject && c.To.Addr().IsLoopback() {
		w.ByDesign = fmt.Sprintf("kube-proxy does not relay %s on loopback addresses, so mode nftables refuses it there", c.Protocol)
	}
	return w, nil
}

// reading is what Trace reads for a snapshot, and what should be there.
type reading struct {
	of       *service.Snapshot
	observed *observedRuleset
	expected *expectedRuleset // nil if there is no table
}

// ReadOnce makes Trace read the table once for a snapshot, for many connections.
func (b *Backend) ReadOnce() { b.readsOnce = true }

// reading reads the table: for a single connection the chains, then element by element.
func (b *Backend) reading(ctx context.Context, want *service.Snapshot, c route.Conn) (*reading, error) {
	if b.kept != nil && b.kept.of == want {
		return b.kept, nil
	}
	read, concerned := b.driver.ReadChains, func(p *service.Port) bool { return mayConcern(p, c) }
	if b.readsOnce {
		read, concerned = b.driver.Read, func(*service.Port) bool { return true }
	}
	t, err := read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", b.name(), err)
	}
	x := &reading{of: want, observed: &observedRuleset{table: t}}
	if t != nil {
		b.liberal = b.options.DropInvalid && b.driver.Liberal()
		x.observed.known = known{b, b.knownChains(t, want), b.knownSets(want), map[string]*compiled{}}
		x.expected = b.expectedRuleset(want, x.observed.known, concerned)
	}
	if !b.readsOnce {
		x.observed.asked = map[string]*element{}
	}
	if b.readsOnce {
		b.kept = x
	}
	return x, nil
}

// mayConcern reports whether the packets of c may meet elements of p.
func mayConcern(p *service.Port, c route.Conn) bool {
	for _, f := range p.Frontends {
		if f.Addr == c.To.Addr() || f.Kind == service.NodePort && f.Port == c.To.Port() {
			return true
		}
	}
	sends := func(e service.Endpoint) bool { return e.Addr.Addr() == c.From }
	return slices.ContainsFunc(p.Cluster, sends) || slices.ContainsFunc(p.Local, sends)
}

// knownChains returns the chains that t may have for want, by name.
func (b *Backend) knownChains(t *table, want *service.Snapshot) map[string]*chain {
	all := (&comparison{table: t}).observedClasses().union(baseClasses)
	known := map[string]*chain{}
	list := baseChains(b.family, want.Node, b.effectiveOptions())
	for p := range want.Ports(b.family) {
		list = append(list, ownChains(p, b.options)...)
		all = all.union(layout{}.next(p).neededClasses())
	}
	for _, c := range append(list, all.chains(b.options)...) {
		known[c.name] = c
	}
	return known
}

// knownSets returns the sets that a table may have for want, by name.
func (b *Backend) knownSets(want *service.Snapshot) map[string]*set {
	known := map[string]*set{}
	all := b.options.sets()
	for p := range want.Ports(b.family) {
		all = append(all[:len(all):len(all)], ownSets(p)...)
	}
	for _, s := range all {
		known[s.name] = s
	}
	return known
}

// known are our chains and sets as we write them, by name. It implements ruleset.
type known struct {
	backend *Backend
	chains  map[string]*chain
	sets    map[string]*set
	done    map[string]*compiled // chains by name
}

// compiled are the rules of a chain as package packet evaluates them, with their fingerprints.
type compiled struct {
	rules        []packet.Rule
	fingerprints []string
}

// compiled compiles a chain once.
func (k known) compiled(c *chain) *compiled {
	x := k.done[c.name]
	if x == nil {
		x = &compiled{rules: compile(c.rules, k.backend.family)}
		for _, r := range c.rules {
			x.fingerprints = append(x.fingerprints, r.fingerprint(k.backend.family))
		}
		k.done[c.name] = x
	}
	return x
}

func (k known) name() string         { return k.backend.name() }
func (k known) set(name string) *set { return k.sets[name] }

// observedRuleset is a table of the kernel. It collects the faults of the objects that a
// packet meets. It implements ruleset.
type observedRuleset struct {
	known
	table  *table
	faults []string
	// asked are elements by set and key, nil for others, or nil itself if the table has all.
	asked map[string]*element
	err   error
}

func (r *observedRuleset) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.faults, text) {
		r.faults = append(r.faults, text)
	}
}

func (r *observedRuleset) rules(name string) []packet.Rule {
	observed, known := r.table.chains[name], r.chains[name]
	switch {
	case observed == nil:
		r.fault("chain %s is missing", name)
		return nil
	case known == nil:
		r.fault("chain %s is not one of kube-proxy's", name)
		return r.read(name, nil, nil)
	case observed.hook != known.hook.spec():
		r.fault("chain %s is at hook %q, and should be at %q", name, observed.hook, known.hook.spec())
	case observed.policyDrop:
		r.fault("chain %s has the policy drop, and should accept", name)
	}
	want := r.compiled(known)
	if slices.Equal(want.fingerprints, observed.fingerprints) {
		return want.rules
	}
	r.nameRules(known, want.fingerprints, observed)
	return r.read(name, want.fingerprints, want.rules)
}

// read reads the rules of a chain. ours, which we write, have fingerprints; others have no text.
func (r *observedRuleset) read(chain string, fingerprints []string, ours []packet.Rule) []packet.Rule {
	all, err := r.backend.driver.Rules(chain)
	r.err = errors.Join(r.err, err)
	for i := range all {
		at := slices.Index(fingerprints, all[i].Text)
		if all[i].Text = ""; at >= 0 {
			all[i].Text = ours[at].Text
		}
	}
	return all
}

// nameRules names what is wrong with the rules of a chain.
func (r *observedRuleset) nameRules(known *chain, want []string, observed *observedChain) {
	foreign := 0
	for _, x := range observed.fingerprints {
		if !slices.Contains(want, x) {
			foreign++
		}
	}
	if foreign > 0 {
		r.fault("chain %s has %d rules that are not kube-proxy's", known.name, foreign)
		return
	}
	r.fault("chain %s has %d rules in another order or number than the %d of kube-proxy", known.name, len(observed.fingerprints), len(want))
}

func (r *observedRuleset) element(s *set, key []byte) (element, bool) {
	observed := r.table.sets[s.name]
	switch {
	case observed == nil:
		r.fault("set %s is missing", s.name)
		return element{}, false
	case r.asked != nil:
		return r.ask(s, key)
	case !s.interval:
		return observed.get(string(key))
	}
	for k, x := range observed.elements {
		if x.more == nil {
			continue
		}
		n := len(k) - len(x.more.end)
		if from, to := k[:n], string(x.more.end); from <= string(key) && string(key) <= to {
			return observed.get(k)
		}
	}
	return element{}, false
}

// ask asks the kernel for an element, once.
func (r *observedRuleset) ask(s *set, key []byte) (element, bool) {
	id := s.name + " " + string(key)
	e, asked := r.asked[id]
	if !asked {
		var err error
		e, err = r.backend.driver.Element(s, key)
		r.asked[id], r.err = e, errors.Join(r.err, err)
	}
	if e == nil {
		return element{}, false
	}
	return *e, true
}

// checkElement compares an expected element with the table, not endpoints in slots of any order,
// which Compare of package explain compares as a whole.
func (r *observedRuleset) checkElement(want element) {
	if r.table.sets[want.in.name] == nil || want.in.kind == targetMap && !want.in.fixed {
		return
	}
	have, found := r.element(want.in, want.key)
	have.in = want.in
	switch {
	case !found, !bytes.Equal(have.end, want.end):
		r.fault("%s lacks the element %s", want.in.name, want.text(r.backend.family))
	case have.verdict != want.verdict, want.in.fixed && !bytes.Equal(have.value, want.value):
		r.fault("%s has the element %s, and should have %s", want.in.name, have.text(r.backend.family), want.text(r.backend.family))
	}
}

// expectedRuleset is the table as it should be, with the elements that a packet met. It implements ruleset.
type expectedRuleset struct {
	known
	elements map[string]map[string]element // by set and key
	met      []element
}

// expectedRuleset has the elements of the ports that are concerned.
func (b *Backend) expectedRuleset(want *service.Snapshot, k known, concerned func(*service.Port) bool) *expectedRuleset {
	r := &expectedRuleset{known: k, elements: map[string]map[string]element{}}
	shared := newShared()
	add := func(list []element) {
		for _, e := range list {
			if r.elements[e.in.name] == nil {
				r.elements[e.in.name] = map[string]element{}
			}
			r.elements[e.in.name][elementKey(e)] = e
		}
	}
	for p := range want.Ports(b.family) {
		if concerned(p) {
			add(layout{}.next(p).elements())
			shared.add(p, 1)
		}
	}
	add(shared.elements())
	return r
}

func (r *expectedRuleset) rules(name string) []packet.Rule {
	if c := r.chains[name]; c != nil {
		return r.compiled(c).rules
	}
	return nil
}

func (r *expectedRuleset) element(s *set, key []byte) (element, bool) {
	e, found := r.elements[s.name][string(key)]
	if s.interval {
		for _, x := range r.elements[s.name] {
			if string(x.key) <= string(key) && string(key) <= string(x.end) {
				e, found = x, true
			}
		}
	}
	if found {
		r.met = append(r.met, e)
	}
	return e, found
}

// purpose says what the rules of a chain do.
func purpose(chain string) string {
	if text, ok := purposes[chain]; ok {
		return text
	}
	for _, x := range prefixPurposes {
		if strings.HasPrefix(chain, x.prefix) {
			return x.text
		}
	}
	return "go on there"
}

var purposes = map[string]string{
	refuseChain:        "refuse it",
	localChain:         "policy Local: distinguish clients outside of the cluster",
	nodePortLocalChain: "policy Local: distinguish clients outside of the cluster",
	markChain:          "masquerade it later, unless it comes from a pod",
	dispatchChain:      "look for the Service of the address",
	nodePortChain:      "the address is the node's: look for the NodePort",
	unallocatedChain:   "drop what no Service has",
	countChain:         "count the connection",
	"lead":             "lead it to the node of its endpoint, unless the client is a pod or was translated before",
	"arrived":          "it comes from another node: accept what is for a Service with an endpoint here",
}

var prefixPurposes = []struct{ prefix, text string }{
	{"affinity", "session affinity: the endpoint that the client had, or a random one"},
	{"consistent", "consistent selection: the endpoint follows from the client's address and port"},
	{"cluster-", "decide on masquerading, then choose an endpoint"},
	{"external-", "masquerade it later, then choose an endpoint"},
	{"nodeport-external-", "masquerade it later, then choose an endpoint"},
	{"pick-", "choose an endpoint at random"},
	{"nodeport-pick-", "choose an endpoint at random"},
	{"internal-pick-", "choose an endpoint at random"},
	{"nodeport-internal-pick-", "choose an endpoint at random"},
}
