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

// Trace reads the table and says what it does with the first packet of c. want is the
// snapshot that the table is for. local reports whether an address belongs to the node.
//
// The kernel stores rules as expressions, not as text. So if all rules of a chain have
// our fingerprints, they count as the rules that we write. Any other rule is a fault of
// the Walk. Elements are those of the kernel.
func (b *Backend) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	t, err := b.driver.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read table %s: %w", b.name(), err)
	}
	if t == nil {
		return &explain.Walk{Faults: []string{fmt.Sprintf("there is no table %s", b.name())}}, nil
	}
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	r := &observedRuleset{backend: b, table: t, chains: b.knownChains(t, want)}
	if t.dormant {
		return &explain.Walk{Faults: []string{fmt.Sprintf("table %s has the flag dormant, so the kernel runs none of its chains", b.name())}}, nil
	}
	w := trace(r, b.family, c, local)
	w.Followed = []string{b.name()}
	plan := b.expectedRuleset(want, r.chains)
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
