// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
)

// ruleset is a table as packets meet it.
type ruleset interface {
	// rules returns the rules of a chain.
	rules(chain string) []rule
	// element returns the element of s with this key. For a set of intervals that is the
	// one that contains the key.
	element(s *set, key []byte) (element, bool)
}

// tracer walks the first packet of a connection through a ruleset and collects every
// possible result. For a random slot it follows all slots.
type tracer struct {
	ruleset
	family service.Family
	conn   route.Conn
	local  func(netip.Addr) bool // reports whether an address belongs to the node
	marks  uint32
	dnat   bool // the destination was translated
	masq   bool // the source is going to be translated
	out    *explain.Walk
	quiet  bool // record no hops
}

// result is the result of a chain or rule.
type result uint8

const (
	next     result = iota // no verdict
	returned               // return
	final                  // accepted, translated, rejected or dropped
	noMatch                // the rule does not match
)

// trace runs the chains of the hooks that c passes.
func trace(r ruleset, family service.Family, c route.Conn, local func(netip.Addr) bool) *explain.Walk {
	tr := &tracer{ruleset: r, family: family, conn: c, local: local, out: &explain.Walk{}}
	entry := "prerouting"
	if c.Interface == "" {
		entry = "output"
	}
	if tr.chain(entry) != final && !c.ToNode {
		tr.chain("postrouting")
	}
	for to := range tr.out.Targets {
		after := *tr
		after.conn.To, after.dnat, after.out, after.quiet = to, true, &explain.Walk{}, true
		after.chain("postrouting")
		tr.out.Targets[to] = after.masq
	}
	return tr.out
}

func (t *tracer) hop(object, format string, args ...any) {
	if !t.quiet {
		t.out.Hops = append(t.out.Hops, explain.Hop{Object: object, Does: fmt.Sprintf(format, args...)})
	}
}

func (t *tracer) chain(name string) result {
	for _, r := range t.rules(name) {
		switch res := t.rule(r); res {
		case final:
			return final
		case returned:
			return next
		}
	}
	return next
}

func (t *tracer) rule(r rule) result {
	for _, s := range r {
		switch res := t.statement(s); res {
		case final, returned:
			return res
		case noMatch:
			return next
		}
	}
	return next
}

func (t *tracer) statement(s statement) result {
	switch s := s.(type) {
	case dispatch:
		key := t.key(s.fields, 0)
		e, found := t.element(s.in, key)
		if !found {
			return noMatch
		}
		t.hop("map "+s.in.name, "%s : %s%s", keyText(s.fields, t.family, key, nil), e.verdict.text(t.family), commentText(e))
		return t.verdict(e.verdict)
	case dnat:
		return t.translate(s)
	case affinityDNAT:
		return t.recall(s)
	case verdict:
		return t.verdict(s)
	case reject:
		t.out.Action = route.Reject
		t.hop("rule", "%s", s.text(t.family))
		return final
	case mark:
		t.marks |= s.bits
	case unmark:
		t.marks &^= s.bits
	case masquerade:
		t.masq = true
		return final
	case recordClient, countConnection, counter:
	default:
		if !t.matches(s) {
			return noMatch
		}
	}
	return next
}

func (t *tracer) matches(s statement) bool {
	switch s := s.(type) {
	case lookup:
		return t.lookup(s)
	case within:
		return s.prefix.Contains(t.addr(s.field)) != s.not
	case fromInterface:
		if n := len(s.name) - 1; s.name[n] == '*' {
			return len(t.conn.Interface) >= n && t.conn.Interface[:n] == s.name[:n]
		}
		return t.conn.Interface == s.name
	case isProto:
		return t.conn.Protocol == s.proto
	case toPort:
		return t.conn.To.Port() == s.port
	case isLocal:
		return t.local(t.addr(s.field))
	case invalid:
		return false
	case translated:
		return t.dnat
	case marked:
		return t.marks&s.bits == s.bits
	}
	panic("unknown statement")
}

func (t *tracer) lookup(l lookup) bool {
	key := t.key(l.fields, 0)
	_, found := t.element(l.in, key)
	if found {
		t.hop("set "+l.in.name, "%s is in it", keyText(l.fields, t.family, key, nil))
	}
	return found != l.not
}

func (t *tracer) translate(tr dnat) result {
	missing := 0
	var found []netip.AddrPort
	for n := range max(tr.mod, 1) {
		e, ok := t.element(tr.in, t.key(tr.fields, n))
		if !ok {
			missing++
			continue
		}
		to := targetOf(e.value)
		if t.out.Targets == nil {
			t.out.Targets = map[netip.AddrPort]bool{}
		}
		t.out.Targets[to] = false
		t.out.Action = route.Forward
		found = append(found, to)
	}
	if missing == 0 || len(found) > 0 && t.firstDraw(tr.in) {
		t.hop("map "+tr.in.name, "%s", explain.OneOf("endpoints", found))
	}
	if missing == 0 {
		return final
	}
	return noMatch
}

// firstDraw reports whether no endpoint of in was shown yet.
func (t *tracer) firstDraw(in *set) bool {
	for _, h := range t.out.Hops {
		if h.Object == "map "+in.name {
			return false
		}
	}
	return true
}

// recall leads a client to the endpoint that it had before, if it is recorded.
func (t *tracer) recall(s affinityDNAT) result {
	key := t.key([]field{saddr}, 0)
	e, found := t.element(s.in, key)
	if !found {
		return noMatch
	}
	addr, _ := netip.AddrFromSlice(e.value)
	to := netip.AddrPortFrom(addr, s.port)
	t.hop("map "+s.in.name, "the client had %s before", to)
	t.out.Action, t.out.Remembered = route.Forward, to
	t.out.Targets = map[netip.AddrPort]bool{to: false}
	return final
}

func commentText(e element) string {
	if e.comment == "" {
		return ""
	}
	return ", of " + e.comment
}

func (t *tracer) verdict(v verdict) result {
	switch v.code {
	case verdictReturn:
		return returned
	case verdictDrop:
		t.out.Action = route.Drop
		t.hop("rule", "drop")
		return final
	case verdictAccept:
		return final
	case verdictJump:
		t.enter(v.chain)
		return t.chain(v.chain)
	}
	t.enter(v.chain)
	if t.chain(v.chain) == final {
		return final
	}
	return returned // a goto never returns to the chain it left
}

// enter records that the packet comes to a chain.
func (t *tracer) enter(chain string) { t.hop("chain "+chain, "%s", purpose(chain)) }

func (t *tracer) addr(f field) netip.Addr {
	if f == saddr || f == origSaddr {
		return t.conn.From
	}
	return t.conn.To.Addr()
}

func (t *tracer) key(fields []field, n uint32) []byte {
	var key []byte
	for _, f := range fields {
		switch {
		case f.isAddr():
			key = appendAddr(key, t.addr(f))
		case f == proto:
			key = appendProto(key, t.conn.Protocol)
		case f == slot:
			key = appendSlot(key, n)
		default:
			key = appendPort(key, t.conn.To.Port())
		}
	}
	return key
}

// Trace reads the table and says what it does with the first packet of c. want is the
// snapshot that the table is for. local reports whether an address belongs to the node.
//
// The kernel stores rules as expressions, not as text. So if all rules of a chain have
// our fingerprints, they count as the rules that we write. Any other rule is a fault of
// the Walk. Elements are those of the kernel.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	x, err := b.reading(ctx, want)
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

func (b *Backend) reading(ctx context.Context, want *service.Snapshot) (*reading, error) {
	if b.kept != nil && b.kept.of == want {
		return b.kept, nil
	}
	t, err := b.driver.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", b.name(), err)
	}
	x := &reading{of: want, observed: &observedRuleset{backend: b, table: t}}
	if t != nil {
		b.liberal = b.options.DropInvalid && b.driver.Liberal()
		x.observed.chains = b.knownChains(t, want)
		x.expected = b.expectedRuleset(want, x.observed.chains)
	}
	if b.readsOnce {
		b.kept = x
	}
	return x, nil
}

// knownChains returns the chains that t may have for want, by name.
func (b *Backend) knownChains(t *table, want *service.Snapshot) map[string]*chain {
	all := (&comparison{table: t}).observedClasses().union(baseClasses)
	known := map[string]*chain{}
	list := baseChains(b.family, want.Node, b.effectiveOptions())
	for p := range want.Ports(b.family) {
		list = append(list, affinityChains(p, b.options)...)
		all = all.union(layout{}.next(p).neededClasses())
	}
	for _, c := range append(list, all.chains(b.options)...) {
		known[c.name] = c
	}
	return known
}

// observedRuleset is a table of the kernel. It collects the faults of the objects that a
// packet meets.
type observedRuleset struct {
	backend *Backend
	table   *table
	chains  map[string]*chain // as we write them
	faults  []string
}

func (r *observedRuleset) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.faults, text) {
		r.faults = append(r.faults, text)
	}
}

// rules implements ruleset.
func (r *observedRuleset) rules(name string) []rule {
	observed, known := r.table.chains[name], r.chains[name]
	switch {
	case observed == nil:
		r.fault("chain %s is missing", name)
		return nil
	case known == nil:
		r.fault("chain %s is not one of kube-proxy's", name)
		return nil
	case observed.hook != known.hook.spec():
		r.fault("chain %s is at hook %q, and should be at %q", name, observed.hook, known.hook.spec())
	case observed.policyDrop:
		r.fault("chain %s has the policy drop, and should accept", name)
	}
	r.checkRules(observed, known)
	return known.rules
}

func (r *observedRuleset) checkRules(observed *observedChain, known *chain) {
	var want []string
	for _, x := range known.rules {
		want = append(want, x.fingerprint(r.backend.family))
	}
	foreign := 0
	for _, x := range observed.fingerprints {
		if !slices.Contains(want, x) {
			foreign++
		}
	}
	switch {
	case slices.Equal(want, observed.fingerprints):
	case foreign > 0:
		r.fault("chain %s has %d rules that are not kube-proxy's", known.name, foreign)
	default:
		r.fault("chain %s has %d rules in another order or number than the %d of kube-proxy", known.name, len(observed.fingerprints), len(want))
	}
}

// element implements ruleset.
func (r *observedRuleset) element(s *set, key []byte) (element, bool) {
	observed := r.table.sets[s.name]
	switch {
	case observed == nil:
		r.fault("set %s is missing", s.name)
		return element{}, false
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

// checkElement compares an expected element with the table. It does not compare the
// endpoints in slots, because any order is right; Compare of package explain compares them
// as a whole.
func (r *observedRuleset) checkElement(want element) {
	observed := r.table.sets[want.in.name]
	if observed == nil || want.in.kind == targetMap {
		return
	}
	k := elementKey(want)
	have, found := observed.get(k)
	have.in = want.in
	switch {
	case !found:
		r.fault("%s lacks the element %s", want.in.name, want.text(r.backend.family))
	case have.verdict != want.verdict:
		r.fault("%s has the element %s, and should have %s", want.in.name, have.text(r.backend.family), want.text(r.backend.family))
	}
}

// expectedRuleset is the table as it should be, with the elements that a packet met.
type expectedRuleset struct {
	chains   map[string]*chain
	elements map[string]map[string]element // by set and key
	met      []element
}

func (b *Backend) expectedRuleset(want *service.Snapshot, chains map[string]*chain) *expectedRuleset {
	r := &expectedRuleset{chains: chains, elements: map[string]map[string]element{}}
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
		add(layout{}.next(p).elements())
		shared.add(p, 1)
	}
	add(shared.elements())
	return r
}

// rules implements ruleset.
func (r *expectedRuleset) rules(name string) []rule {
	if c := r.chains[name]; c != nil {
		return c.rules
	}
	return nil
}

// element implements ruleset.
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
}

var prefixPurposes = []struct{ prefix, text string }{
	{"affinity", "session affinity: the endpoint that the client had, or a random one"},
	{"cluster-", "decide on masquerading, then choose an endpoint"},
	{"external-", "masquerade it later, then choose an endpoint"},
	{"nodeport-external-", "masquerade it later, then choose an endpoint"},
	{"pick-", "choose an endpoint at random"},
	{"nodeport-pick-", "choose an endpoint at random"},
	{"internal-pick-", "choose an endpoint at random"},
	{"nodeport-internal-pick-", "choose an endpoint at random"},
}
