// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftables programs one nftables table per IP family. A service.Snapshot goes in.
// A plan comes out. Its transactions make the kernel's table match the snapshot. The
// package decides nothing about Services: the snapshot already names the endpoints of
// each frontend. It leaves conntrack entries and sysctls to other packages. Only files
// with the suffix _linux.go access the kernel. All other files build, and are tested, on
// any system.
package nftables

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/platform/linux/sysctl"
)

// TableName is the name of the table in both families. A table with this name is ours,
// even if another process created it. The package changes nothing outside of it.
const TableName = "kube-services"

// TableOf returns the name of the table of the proxy that serves the Services
// labelled with name, TableName if name is empty.
func TableOf(name string) string {
	if name == "" {
		return TableName
	}
	return TableName + "-" + name
}

// Options are the choices that concern nftables alone.
type Options struct {
	// Table is the table's name, TableName if it is empty.
	Table string
	// MasqueradeBit is the bit of the packet mark, 0 to 31, for which postrouting
	// masquerades. It is cleared again there.
	MasqueradeBit int
	// DropInvalid drops forwarded TCP packets in connection tracking state INVALID. It
	// has no effect while net.netfilter.nf_conntrack_tcp_be_liberal makes the kernel
	// accept packets outside of the window as valid, apart from resets, see
	// https://docs.kernel.org/networking/nf_conntrack-sysctl.html.
	DropInvalid bool
	// CountConnections counts connections, see Counters.
	CountConnections bool
}

func (o Options) table() string { return cmp.Or(o.Table, TableName) }

func (o Options) mark() uint32 { return 1 << o.MasqueradeBit }

// Driver is the access to the kernel that Backend needs, for one family. Its methods are
// called from one goroutine at a time, except Watch.
type Driver interface {
	// Commit applies ops in one transaction. On error nothing was applied.
	Commit(ctx context.Context, ops []op) error
	// Read returns our table, or nil if it does not exist.
	Read(ctx context.Context) (*table, error)
	// ReadChains is Read without elements.
	ReadChains(ctx context.Context) (*table, error)
	// Rules returns the rules of a chain, with their fingerprints as texts.
	Rules(chain string) ([]packet.Rule, error)
	// Element returns the element of s that has a key or, in a set of intervals, contains it. It
	// returns nil if there is none.
	Element(s *set, key []byte) (*element, error)
	// Touched reports whether another process may have changed our table since the last
	// call of Read. Commits do not count. It is cheap.
	Touched(ctx context.Context) (bool, error)
	// PruneClients deletes elements of a clients map whose endpoint address is not in keep.
	PruneClients(ctx context.Context, clients *set, keep map[string]bool) error
	// Liberal reports whether the kernel treats packets outside of the TCP window as
	// valid (net.netfilter.nf_conntrack_tcp_be_liberal).
	Liberal() bool
	// Watch calls touched whenever another process changes our table, until ctx ends.
	Watch(ctx context.Context, touched func()) error
	// Suspect names the process that changed our table last, empty if unknown.
	Suspect() string
	// close releases the kernel resources of the Driver.
	close()
}

// Backend programs the table of one family. It implements reconcile.Backend.
type Backend struct {
	reconcile.Base
	family  service.Family
	options Options
	driver  Driver
	// have describes what the table holds. It is nil while that is unknown.
	have    *installed
	liberal bool // the latest result of Driver.Liberal
	// readsOnce is as ReadOnce says, and kept what Trace has read then.
	readsOnce bool
	kept      *reading
}

// effectiveOptions leaves out options without effect with the kernel's present settings.
func (b *Backend) effectiveOptions() Options {
	o := b.options
	o.DropInvalid = o.DropInvalid && !b.liberal
	return o
}

// installed describes a table that matches the desired state, by the inputs that produced
// it. Only the kernel holds the elements themselves.
type installed struct {
	snapshot *service.Snapshot
	options  Options
	// slots holds the Ports whose endpoints are not simply in order.
	slots   map[service.PortName]slots
	classes classes
	shared  shared
}

func (i *installed) layout(p *service.Port) layout {
	if p == nil {
		return layout{}
	}
	return layout{p, i.slots[p.Name]}
}

// Plan implements reconcile.Backend. The cost follows the difference between want and the last
// snapshot. If another process changed the table, Plan reads it.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	touched := true
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	if b.have != nil {
		var err error
		if touched, err = b.driver.Touched(ctx); err != nil {
			return nil, fmt.Errorf("ask for changes to table %s: %w", b.name(), err)
		}
		// An incomplete snapshot kept elements in place. They may be deleted now, or a new
		// Port may need them with other values.
		touched = touched || b.have.snapshot.Incomplete && want != b.have.snapshot ||
			b.have.snapshot.Node.NodePortsPending[b.family] && !want.Node.NodePortsPending[b.family]
	}
	var p *plan
	if touched {
		// The driver reports a change once, so the table is unknown until a plan was applied.
		have := b.have
		b.have = nil
		t, err := b.driver.Read(ctx)
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", b.name(), err)
		}
		p = b.planFull(t, have, want)
	} else {
		p = b.planIncremental(want)
	}
	if p.Empty() {
		b.have = p.next
	}
	return p, nil
}

// Cleanup implements reconcile.Backend. It deletes the table.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.have = nil
	t, err := b.driver.Read(ctx)
	if err != nil {
		return fmt.Errorf("read table %s: %w", b.name(), err)
	}
	if t == nil {
		return nil
	}
	if err := b.driver.Commit(ctx, []op{{verb: delTable, table: b.options.table()}}); err != nil {
		return fmt.Errorf("delete table %s: %w", b.name(), err)
	}
	return nil
}

// Watch implements reconcile.Backend.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.driver.Watch(ctx, touched)
}

// Forget implements reconcile.Backend.
func (b *Backend) Forget() { b.have = nil }

// Close implements reconcile.Backend.
func (b *Backend) Close() error {
	b.driver.close()
	return nil
}

func (b *Backend) name() string { return netlink.FamilyName(b.family) + " " + b.options.table() }

// planIncremental plans the step from the installed snapshot to want without a read.
func (b *Backend) planIncremental(want *service.Snapshot) *plan {
	p := &plan{backend: b, next: &installed{snapshot: want, options: b.effectiveOptions(), slots: b.have.slots, shared: b.have.shared}}
	h := b.have
	if want == h.snapshot && h.options == b.effectiveOptions() {
		p.next = h
		return p
	}
	need := h.classes
	for c := range service.Diff(h.snapshot, want, b.family) {
		from := h.layout(c.Old)
		to := layout{}
		if c.New != nil {
			to = from.next(c.New)
			need = need.union(to.neededClasses())
		}
		if c.Old != nil && c.New != nil && c.New.Affinity > 0 {
			p.staleClients = append(p.staleClients, to)
		}
		p.units = append(p.units, unit{from: from, to: to})
	}
	p.next.classes = need
	var base []op
	if h.snapshot.Node != want.Node || h.options != p.next.options {
		base = appendChainChanges(base, baseChains(b.family, h.snapshot.Node, h.options), baseChains(b.family, want.Node, p.next.options))
	}
	base = appendChain(base, need.without(h.classes).chains(b.options)...)
	if len(base) > 0 {
		p.units = append([]unit{{ops: base, prerequisite: true}}, p.units...)
	}
	p.planSharedChanges()
	return p
}

// planSharedChanges adds units for elements that Ports share, from the other units of p.
func (p *plan) planSharedChanges() {
	p.sharedDelta = newShared()
	for _, u := range p.units {
		p.sharedDelta.replace(u.from.port, u.to.port)
	}
	var changes []sharedChange
	for k, n := range p.sharedDelta {
		have := p.next.shared[k]
		switch {
		case have == 0 && n > 0:
			changes = append(changes, sharedChange{k, addElement})
		case have > 0 && have+n == 0:
			changes = append(changes, sharedChange{k, delElement})
		}
	}
	p.units = appendShared(p.units, changes)
}

// drift describes what others changed in a table that held h, by the steps to restore it.
func (b *Backend) drift(t *table, h *installed) []string {
	p := b.compare(t, h.snapshot)
	var r reconcile.DriftReport
	for _, m := range p.incompatible {
		r.Add(func() string { return "altered: " + m })
	}
	if len(p.incompatible) > 0 {
		return r.Lines()
	}
	for _, u := range p.units {
		for _, o := range u.ops {
			r.Add(func() string { return o.driftText(b.family) })
		}
		for _, c := range u.shared {
			r.Add(func() string { return c.op().driftText(b.family) })
		}
	}
	return r.Lines()
}

// observedSet is a set with its elements, by elementKey. A table has two elements for each
// endpoint, so they are kept in little memory.
type observedSet struct {
	spec     setSpec
	elements map[string]observedElement
}

// observedElement is an element without its key.
type observedElement struct {
	value string
	more  *element // nil if there is nothing but a key and a value
}

func newObservedSet(spec setSpec) *observedSet {
	return &observedSet{spec, map[string]observedElement{}}
}

// put adds a copy of e. It reports false if there is an element with the same key.
func (s *observedSet) put(e element) bool {
	k := elementKey(e)
	if _, found := s.elements[k]; found {
		return false
	}
	x := observedElement{value: string(e.value)}
	if e.end != nil || e.verdict != (verdict{}) || e.comment != "" || e.catchAll || e.expressions {
		x.more = &element{end: slices.Clone(e.end), verdict: e.verdict, comment: e.comment, catchAll: e.catchAll, expressions: e.expressions}
	}
	s.elements[k] = x
	return true
}

// same reports whether x and e, which have the same key, are equal.
func (o observedElement) same(e element) bool {
	old := element{}
	if o.more != nil {
		old = *o.more
	}
	old.value = e.value
	return o.value == string(e.value) && old.same(e)
}

// get returns the element with an elementKey. It does not contain the set.
func (s *observedSet) get(k string) (element, bool) {
	x, found := s.elements[k]
	if !found {
		return element{}, false
	}
	e := element{}
	if x.more != nil {
		e = *x.more
	}
	if !e.catchAll {
		e.key = []byte(k[:len(k)-len(e.end)])
	}
	if x.value != "" {
		e.value = []byte(x.value)
	}
	return e, true
}

// probeTable is the name of the table in dry runs. It is never created.
const probeTable = "kube-services-probe"

// kernelFeature is a feature of the kernel that the table needs.
type kernelFeature struct {
	name    string
	modules []string // that usually provide it
	since   string   // with which version of the kernel, if that is not as old as all
	ops     []op
	// dependsOn is a module without which the probe has no result.
	dependsOn string
}

// kernelFeatures lists what a table for f needs, dependencies first.
func kernelFeatures(f service.Family) []kernelFeature {
	clients := &set{name: "clients", kind: addrMap, key: clientKey, timeout: time.Hour, limit: clientLimit}
	nat := func(rules ...rule) *chain {
		return &chain{name: "prerouting", hook: &hook{name: "prerouting", priority: dstNAT}, rules: rules}
	}
	post := &chain{name: "postrouting", hook: &hook{name: "postrouting", priority: srcNAT}, rules: []rule{{masquerade{}}}}
	plain := &chain{name: "plain", rules: []rule{{recordClient{clients}}}}
	const chains = "nft_chain_nat"
	return []kernelFeature{
		{"tables for " + f.String(), []string{"nf_tables"}, "", nil, ""},
		{"chains of type nat", []string{chains}, "", appendChain(nil, nat()), ""},
		{"the type of an address in rules", []string{"nft_fib_" + strings.ToLower(f.String())}, "", appendChain(nil, nat(rule{isLocal{daddr}})), chains},
		{"connection tracking in rules", []string{"nft_ct"}, "", appendChain(nil, nat(rule{translated{}})), chains},
		{"random numbers and translation in rules", []string{"nft_numgen", "nft_nat"}, "", appendChain([]op{{verb: addSet, set: endpoints}}, nat(dnatRule)), chains},
		{"masquerading in rules", []string{"nft_masq"}, "", appendChain(nil, post), chains},
		{"rejecting in rules", []string{"nft_reject_" + strings.ToLower(f.String())}, "", appendChain(nil, nat(rule{reject{}})), chains},
		{"sets of ranges in several fields", []string{"nf_tables"}, " of Linux 5.6", []op{{verb: addSet, set: sources}}, ""},
		{"maps that rules write", []string{"nf_tables"}, " of Linux 5.6", appendChain([]op{{verb: addSet, set: clients}}, plain), "nft_ct"},
	}
}

// dnatRule is a rule that selects an endpoint.
var dnatRule = rule{dnat{endpoints.key, 1, endpoints}}

// completeTable returns the ops for a table without Services, and for the parts of a Port.
func completeTable(f service.Family) []op {
	ops := []op{{verb: addTable}}
	for _, s := range baseSets {
		ops = append(ops, op{verb: addSet, set: s})
	}
	ops = appendChain(ops, baseChains(f, &service.Node{NodePorts: service.AnyAddress()}, Options{DropInvalid: true})...)
	ops = appendChain(ops, &chain{name: "draw", rules: []rule{dnatRule}})
	return append(ops, kernelFeatures(f)[len(kernelFeatures(f))-1].ops...)
}

// probeFeatures reports which of the features for f the kernel lacks. try makes the
// kernel check a transaction without applying it.
func probeFeatures(f service.Family, try func([]op) error) error {
	first := try(completeTable(f))
	if first == nil {
		return nil
	}
	var missing, modules []string
	for _, n := range kernelFeatures(f) {
		if slices.Contains(modules, n.dependsOn) {
			continue
		}
		err := try(append([]op{{verb: addTable}}, n.ops...))
		if err == nil {
			continue
		}
		modules = append(modules, n.modules...)
		missing = append(missing, fmt.Sprintf("%s (module %s%s)", n.name, strings.Join(n.modules, " and "), n.since))
		if n.ops == nil { // without tables nothing else can work
			break
		}
	}
	if len(missing) == 0 {
		return fmt.Errorf("the kernel refuses the rules: %w", first)
	}
	return sysctl.Missing(fmt.Errorf("the kernel lacks %s: %w", strings.Join(missing, ", "), first), modules...)
}
