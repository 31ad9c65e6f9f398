// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/test/backendtest"
	"kubeproxy/test/generate"
)

// fake is a kernel that checks existence, use and duplicates as strictly as the real one.
type fake struct {
	family  service.Family
	table   *fakeTable // nil if there is none
	touched bool
	liberal bool
	commits int
	ops     int
	reads   int
	done    []string // the ops of transactions, as text
	// refuse, if not nil, may reject a transaction before it changes anything.
	refuse func(ops []op) error
}

type fakeTable struct {
	chains map[string]*fakeChain
	sets   map[string]*fakeSet
}

type fakeChain struct {
	hook  *hook
	rules []rule
}

type fakeSet struct {
	*set
	elements map[string]element
}

var (
	errExist = errors.New("file exists")
	errNone  = errors.New("no such file or directory")
	errBusy  = errors.New("device or resource busy")
)

func (f *fake) Commit(_ context.Context, ops []op) error {
	if f.refuse != nil {
		if err := f.refuse(ops); err != nil {
			return err
		}
	}
	next := f.table.clone()
	for _, o := range ops {
		var err error
		if next, err = next.do(o); err != nil {
			return fmt.Errorf("%s: %w", o.text(f.family), err)
		}
	}
	if err := next.check(); err != nil {
		return err
	}
	f.table = next
	f.commits++
	f.ops += len(ops)
	for _, o := range ops {
		f.done = append(f.done, o.text(f.family))
	}
	return nil
}

func (t *fakeTable) clone() *fakeTable {
	if t == nil {
		return nil
	}
	c := &fakeTable{chains: map[string]*fakeChain{}, sets: map[string]*fakeSet{}}
	for n, x := range t.chains {
		c.chains[n] = &fakeChain{x.hook, slices.Clone(x.rules)}
	}
	for n, s := range t.sets {
		c.sets[n] = &fakeSet{s.set, maps.Clone(s.elements)}
	}
	return c
}

func (t *fakeTable) do(o op) (*fakeTable, error) {
	switch {
	case o.verb == addTable && t != nil:
		return t, errExist
	case o.verb == addTable:
		return &fakeTable{chains: map[string]*fakeChain{}, sets: map[string]*fakeSet{}}, nil
	case t == nil:
		return t, errNone
	case o.verb == delTable:
		return nil, nil
	case o.set != nil:
		return t, t.doSet(o)
	case o.chain != nil:
		return t, t.doChain(o)
	}
	return t, t.doElement(o)
}

func (t *fakeTable) doSet(o op) error {
	existing := t.sets[o.set.name]
	switch {
	case o.verb == addSet && existing != nil:
		return errExist
	case o.verb == addSet:
		t.sets[o.set.name] = &fakeSet{o.set, map[string]element{}}
	case existing == nil:
		return errNone
	default:
		delete(t.sets, o.set.name)
	}
	return nil
}

func (t *fakeTable) doChain(o op) error {
	existing := t.chains[o.chain.name]
	switch {
	case o.verb == addChain && existing != nil:
		return errExist
	case o.verb == addChain:
		t.chains[o.chain.name] = &fakeChain{hook: o.chain.hook}
	case existing == nil:
		return errNone
	case o.verb == flushChain:
		existing.rules = nil
	case o.verb == addRules:
		existing.rules = append(existing.rules, o.chain.rules...)
	case len(existing.rules) > 0:
		return errBusy
	default:
		delete(t.chains, o.chain.name)
	}
	return nil
}

func (t *fakeTable) doElement(o op) error {
	e := o.element
	s := t.sets[e.in.name]
	if s == nil {
		return errNone
	}
	existing, found := s.elements[elementKey(e)]
	switch {
	case len(e.key) != keySize(s.key, service.IPv4) && len(e.key) != keySize(s.key, service.IPv6):
		return fmt.Errorf("key of %d bytes", len(e.key))
	case o.verb == delElement && !found:
		return errNone
	case o.verb == delElement:
		delete(s.elements, elementKey(e))
	case found && !bytes.Equal(existing.value, e.value), found && existing.verdict != e.verdict:
		return errExist
	default:
		s.elements[elementKey(e)] = e
	}
	return nil
}

// check reports an error if an object refers to one that does not exist.
func (t *fakeTable) check() error {
	if t == nil {
		return nil
	}
	for n, c := range t.chains {
		for _, s := range slices.Concat(c.rules...) {
			if err := t.checkReferences(s); err != nil {
				return fmt.Errorf("chain %s: %w", n, err)
			}
		}
	}
	for n, s := range t.sets {
		for _, e := range s.elements {
			if v := e.verdict; v.chain != "" && t.chains[v.chain] == nil {
				return fmt.Errorf("set %s: no chain %s: %w", n, v.chain, errNone)
			}
		}
	}
	return nil
}

func (t *fakeTable) checkReferences(s statement) error {
	var in *set
	switch s := s.(type) {
	case lookup:
		in = s.in
	case dispatch:
		in = s.in
	case dnat:
		in = s.in
	case hashDNAT:
		in = s.in
	case affinityDNAT:
		in = s.in
	case recordClient:
		in = s.in
	case countConnection:
		in = s.in
	case verdict:
		if s.chain != "" && t.chains[s.chain] == nil {
			return fmt.Errorf("no chain %s: %w", s.chain, errNone)
		}
	}
	if in != nil && t.sets[in.name] == nil {
		return fmt.Errorf("no set %s: %w", in.name, errNone)
	}
	return nil
}

func (f *fake) Read(context.Context) (*table, error) {
	f.reads++
	f.touched = false
	if f.table == nil {
		return nil, nil
	}
	t := &table{chains: map[string]*observedChain{}, sets: map[string]*observedSet{}}
	for n, c := range f.table.chains {
		observed := &observedChain{hook: c.hook.spec()}
		for _, r := range c.rules {
			observed.fingerprints = append(observed.fingerprints, r.fingerprint(f.family))
		}
		t.chains[n] = observed
	}
	for n, s := range f.table.sets {
		t.sets[n] = newObservedSet(s.spec(f.family))
		for _, e := range s.elements {
			t.sets[n].put(e)
		}
	}
	return t, nil
}

func (f *fake) ReadChains(ctx context.Context) (*table, error) {
	t, err := f.Read(ctx)
	if t != nil {
		for _, s := range t.sets {
			clear(s.elements)
		}
	}
	return t, err
}

func (f *fake) Rules(chain string) ([]packet.Rule, error) {
	rules := f.table.chains[chain].rules
	all := compile(rules, f.family)
	for i, r := range rules {
		all[i].Text = r.fingerprint(f.family)
	}
	return all, nil
}

func (f *fake) Element(s *set, key []byte) (*element, error) {
	if e, found := f.table.element(s, key); found {
		return &e, nil
	}
	return nil, nil
}

func (f *fake) Liberal() bool                         { return f.liberal }
func (f *fake) Touched(context.Context) (bool, error) { return f.touched, nil }

func (f *fake) PruneClients(_ context.Context, clients *set, keep map[string]bool) error {
	s := f.table.sets[clients.name]
	if s == nil {
		return errNone
	}
	maps.DeleteFunc(s.elements, func(_ string, e element) bool { return !keep[string(e.value)] })
	return nil
}

func (f *fake) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

func (f *fake) Suspect() string { return "" }
func (f *fake) close()          {}

// world is a table with its family. It implements ruleset.
type world struct {
	*fakeTable
	family service.Family
}

func (w world) rules(chain string) []packet.Rule { return compile(w.chains[chain].rules, w.family) }
func (w world) name() string                     { return "" }
func (w world) set(name string) *set             { return w.sets[name].set }

// element implements ruleset.
func (t *fakeTable) element(s *set, key []byte) (element, bool) {
	observed := t.sets[s.name]
	if !observed.interval {
		e, found := observed.elements[string(key)]
		return e, found
	}
	for _, e := range observed.elements {
		if string(e.key) <= string(key) && string(key) <= string(e.end) {
			return e, true
		}
	}
	return element{}, false
}

var errInjected = backendtest.ErrInjected

// refusals are what a kernel says that does nothing.
var refusals = []error{errInjected, fmt.Errorf("%w: %w", errInjected, syscall.ENOMEM)}

func TestSuites(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(w generate.Cluster) backendtest.Node { return &node{&fake{family: w.Family}} },
		ReadBack: func(ctx context.Context, b reconcile.Backend, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
			return b.(*Backend).ReadBack(ctx, want)
		},
	})
}

// node is a fake kernel, for the suites.
type node struct{ *fake }

func (n *node) Start() reconcile.Backend {
	return &Backend{family: n.family, options: Options{MasqueradeBit: 14}, driver: n.fake}
}

func (n *node) Fresh() backendtest.Node { return &node{&fake{family: n.family}} }
func (n *node) Heal()                   { n.refuse = nil }

func (n *node) Inject(w generate.Cluster) func(error) bool {
	n.refuse = func([]op) error {
		if w.DrawBool("refuse") {
			return refusals[w.DrawInt("refusal", len(refusals))]
		}
		return nil
	}
	return nil
}

func (n *node) Tamper(w generate.Cluster) {
	n.touched = true
	if n.table == nil {
		return
	}
	chains := slices.Sorted(maps.Keys(n.table.chains))
	c := n.table.chains[chains[w.DrawInt("chain", len(chains))]]
	switch w.DrawInt("kind", 5) {
	case 0:
		n.table = nil
	case 1:
		c.rules = nil
	case 2:
		c.rules = append(c.rules, rule{verdict{code: verdictAccept}})
	case 3:
		for _, name := range slices.Sorted(maps.Keys(n.table.sets)) {
			if w.DrawBool("flush " + name) {
				clear(n.table.sets[name].elements)
			}
		}
	case 4:
		key := w.Pod(99).AsSlice()
		n.table.sets["cluster-ips"].elements[string(key)] = element{in: clusterIPs, key: key}
		n.table.chains["foreign"] = &fakeChain{}
		n.table.sets["foreign"] = &fakeSet{&set{name: "foreign"}, map[string]element{}}
	}
}

// State leaves out the order of slots, and the chains of classes, which stay when nobody
// needs them any more.
func (n *node) State() string {
	if n.table == nil {
		return ""
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(n.table.sets)) {
		fmt.Fprintf(&b, "set %s: %x\n", name, slices.Sorted(maps.Keys(n.table.sets[name].elements)))
	}
	for _, name := range slices.Sorted(maps.Keys(n.table.chains)) {
		if !strings.Contains(name, "pick-") && !strings.Contains(name, "cluster-") && !strings.Contains(name, "external-") {
			fmt.Fprintf(&b, "chain %s:\n", name)
			for _, r := range n.table.chains[name].rules {
				fmt.Fprintf(&b, "\t%v\n", r.fingerprint(n.family))
			}
		}
	}
	return b.String()
}

func (n *node) Changes() []string {
	all := n.done
	n.done = nil
	return all
}

func (n *node) Judge(t *rapid.T, want *service.Snapshot, c route.Conn) {
	v := route.Decide(want, c)
	expected := backendtest.Expect(v, func(e service.Endpoint) bool { return hairpins(want, c.From, e, n.family) })
	w := trace(world{n.table, n.family}, n.family, c, generate.IsNodeLocal)
	if _, may := expected.Masq[w.Remembered]; may { // no client is remembered here, but the hash of one may select
		for to := range expected.Masq {
			if to != w.Remembered {
				delete(expected.Masq, to)
			}
		}
		expected.Targets = []netip.AddrPort{w.Remembered}
	}
	got := backendtest.Outcome{Action: w.Action, Targets: slices.SortedFunc(maps.Keys(w.Targets), netip.AddrPort.Compare), Masq: w.Targets}
	if diff := backendtest.Diff(expected, got); diff != "" {
		t.Fatalf("%+v: %s (-decide +nftables):\n%s", c, v.Reason, diff)
	}
}

// hairpins accounts for an address that is local for one Port and remote for another.
// Only generated clusters have such addresses.
func hairpins(want *service.Snapshot, from netip.Addr, e service.Endpoint, f service.Family) bool {
	if e.Addr.Addr() != from {
		return false
	}
	s := newShared()
	for p := range want.Ports(f) {
		s.add(p, 1)
	}
	return s[sharedKey{hairpin, string(from.AsSlice())}] > 0
}

func (n *node) Check(*rapid.T, *service.Snapshot) {}

type fataler interface{ Fatalf(string, ...any) }

// apply runs one sync, which must succeed.
func apply(t fataler, b *Backend, want *service.Snapshot) { generate.Apply(t, b, want) }
func addrPort(s string) netip.AddrPort                    { return netip.MustParseAddrPort(s) }

// TestVerdictMapsDoNotNest follows every verdict of random tables. If one led to another
// verdict map, the validation in the kernel would take quadratic time.
func TestVerdictMapsDoNotNest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := &fake{family: w.Family}
		apply(t, &Backend{family: w.Family, options: Options{MasqueradeBit: 14}, driver: k}, service.New(1, w.Node(), w.Ports()))
		for name, s := range k.table.sets {
			for _, e := range s.elements {
				if asked := k.table.nestedVerdictMap(e.verdict.chain); asked != "" {
					t.Fatalf("map %s leads to chain %s, which asks map %s", name, e.verdict.chain, asked)
				}
			}
		}
	})
}

// nestedVerdictMap returns a verdict map that a chain, or one it leads to, looks up.
func (t *fakeTable) nestedVerdictMap(name string) string {
	c := t.chains[name]
	if c == nil {
		return ""
	}
	for _, s := range slices.Concat(c.rules...) {
		asked := ""
		switch s := s.(type) {
		case dispatch:
			asked = s.in.name
		case verdict:
			asked = t.nestedVerdictMap(s.chain)
		}
		if asked != "" {
			return asked
		}
	}
	return ""
}
