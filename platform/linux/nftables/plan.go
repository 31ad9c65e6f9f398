// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is a list of units. Each unit can fail on its own. It implements reconcile.Plan.
type plan struct {
	backend      *Backend
	units        []unit
	next         *installed // what the table holds after Apply
	sharedDelta  shared     // to add to next.shared after Apply
	staleClients []layout   // Ports whose clients maps may refer to a removed endpoint
	drift        []string
	incompatible []string // why the table is replaced
	removed      []*service.Port
	fullSync     bool // computed from the table, not from the changed Ports
}

// unit is a change that takes effect as a whole: of one Port, or of no Port.
type unit struct {
	from, to     layout
	ops          []op           // if not nil, the steps; to then only names the Port
	shared       []sharedChange // if not nil, the steps
	prerequisite bool           // the other units depend on this one
	joined       bool           // it shares a transaction with the unit before it, see joinMoves
}

func (u unit) steps(o Options) []op {
	switch {
	case u.ops != nil:
		return u.ops
	case u.shared != nil:
		return sharedOps(u.shared)
	}
	return portOps(u.from, u.to, o)
}

// port returns the Port of u, or nil if it has none.
func (u unit) port() *service.Port {
	if u.to.port != nil {
		return u.to.port
	}
	return u.from.port
}

func (p *plan) Empty() bool { return len(p.units) == 0 && len(p.staleClients) == 0 }

func (p *plan) Outcome() reconcile.Outcome {
	out := reconcile.Outcome{FullSync: p.fullSync, Drift: p.drift, Removed: p.removed}
	if len(p.drift) > 0 {
		out.Suspect = p.backend.driver.Suspect()
	}
	return out
}

func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	for _, u := range p.units {
		for _, o := range u.steps(p.backend.options) {
			c := reconcile.Change{Text: o.text(p.backend.family)}
			if of := u.port(); of != nil {
				c.Port, c.Named = of.Name, o.element.comment == of.Name.String()
			}
			all = append(all, c)
		}
	}
	return all
}

// chunk bounds the ops in one transaction. The kernel processes a transaction without a
// pause, and other users of nftables wait for it.
const chunk = 8192

// maxFailures bounds how many Ports are tried one by one after the kernel rejected a
// transaction. More failures mean that the table or the kernel is at fault.
const maxFailures = 64

// Apply implements reconcile.Plan. It splits a transaction that the kernel rejects until
// the Port at fault is alone, and commits the rest. It retries failed units once at the
// end, because a conflicting object may have been deleted by then.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	err := p.commit(ctx)
	out := p.Outcome()
	out.Err = err
	return out
}

// commit makes the changes of p.
func (p *plan) commit(ctx context.Context) error {
	a := &applier{plan: p, ctx: ctx}
	a.commitAll(joinMoves(p.units))
	if failed := a.failed; len(failed) > 0 && a.fatal == nil {
		a.failed, a.errs = nil, nil
		a.commitAll(failed)
	}
	b := p.backend
	if err := errors.Join(append(a.errs, a.fatal)...); err != nil {
		b.have = nil // the next Plan reads the table
		return err
	}
	b.have = p.next
	for k, n := range p.sharedDelta {
		if b.have.shared[k] += n; b.have.shared[k] == 0 {
			delete(b.have.shared, k)
		}
	}
	p.recordSlots()
	return a.pruneClients()
}

// recordSlots records the slots of the changed Ports.
func (p *plan) recordSlots() {
	for _, u := range p.units {
		switch {
		case u.ops != nil: // planFull has recorded them
		case u.to.port != nil && !u.to.slots.identity():
			p.next.slots[u.to.port.Name] = u.to.slots
		case u.port() != nil:
			delete(p.next.slots, u.port().Name)
		}
	}
}

// applier is one run of Apply.
type applier struct {
	plan   *plan
	ctx    context.Context
	failed []unit
	errs   []error
	fatal  error // ends the run
	ops    []op  // of the latest transaction; the next one reuses the memory
}

// commitAll commits units in transactions of about one chunk, prerequisites in their own.
func (a *applier) commitAll(units []unit) {
	var group []unit
	size := 0
	for i, u := range units {
		if a.fatal != nil {
			return
		}
		if u.prerequisite {
			a.prepare(u)
			continue
		}
		group = append(group, u)
		last := i == len(units)-1
		if size += u.size(); last || size >= chunk && !units[i+1].joined {
			a.commit(group)
			group, size = nil, 0
		}
	}
}

func (u unit) size() int {
	if u.ops != nil {
		return len(u.ops)
	}
	n := len(u.shared)
	if u.from.port != nil && u.to.port == nil {
		n = u.from.size()
	}
	if u.to.port != nil {
		n += u.to.size()
	}
	return n
}

// prepare commits a prerequisite unit. An error ends the run.
func (a *applier) prepare(u unit) {
	if err := a.plan.backend.commitOps(a.ctx, u.ops); err != nil {
		a.fatal = fmt.Errorf("prepare table %s: %w", a.plan.backend.name(), err)
	}
}

func (a *applier) commit(units []unit) {
	a.ops = a.ops[:0]
	for _, u := range units {
		a.ops = append(a.ops, u.steps(a.plan.backend.options)...)
	}
	err := a.plan.backend.commitOps(a.ctx, a.ops)
	if err == nil {
		return
	} else if a.ctx.Err() != nil {
		a.fatal = err
		return
	}
	parts := splitUnits(units)
	for _, part := range parts {
		if a.fatal == nil {
			a.commit(part)
		}
	}
	if parts == nil {
		for _, u := range units {
			a.recordFailure(u, err)
		}
	}
}

func (a *applier) recordFailure(u unit, err error) {
	if p := u.port(); p != nil {
		err = &reconcile.PortError{Family: p.Family, Name: p.Name, Err: err}
	} else {
		err = fmt.Errorf("table %s: %w", a.plan.backend.name(), err)
	}
	a.failed = append(a.failed, u)
	a.errs = append(a.errs, err)
	if len(a.errs) >= maxFailures {
		a.fatal = fmt.Errorf("table %s: gave up after %d refusals", a.plan.backend.name(), len(a.errs))
	}
}

// pruneClients deletes the client records of removed endpoints.
func (a *applier) pruneClients() error {
	var errs []error
	b := a.plan.backend
	for _, l := range a.plan.staleClients {
		for _, g := range append(l.groups(service.PolicyCluster), l.groups(service.PolicyLocal)...) {
			if err := b.driver.PruneClients(a.ctx, g.clients, g.members); err != nil {
				b.have = nil
				err = fmt.Errorf("forget clients of endpoints that left: %w", err)
				errs = append(errs, &reconcile.PortError{Family: b.family, Name: l.port.Name, Err: err})
			}
		}
	}
	return errors.Join(errs...)
}

// commitOps commits ops, sorted as a transaction needs them.
func (b *Backend) commitOps(ctx context.Context, ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	slices.SortStableFunc(ops, func(x, y op) int { return int(x.verb) - int(y.verb) })
	return b.driver.Commit(ctx, ops)
}

// verb is the kind of an op. The order of the constants is the order within a
// transaction: objects are created before others refer to them, and deleted after.
type verb uint8

const (
	delTable verb = iota
	addTable
	clearDormant // clears the flag dormant of the table
	addSet
	addChain
	acceptPolicy // of a base chain
	flushChain   // deletes the rules; a chain with rules cannot be deleted
	addRules
	delElement
	addElement
	delChain
	delSet
)

// op is one step of a transaction. The verb determines which fields it uses.
type op struct {
	verb    verb
	table   string // its name where the verb is about it, empty for TableName
	set     *set
	chain   *chain
	element element
}

// text describes o in one line of a plan.
func (o op) text(f service.Family) string { return o.describe(f, "+ ", "- ") }

// driftText describes the foreign change that makes o necessary.
func (o op) driftText(f service.Family) string { return o.describe(f, "missing: ", "foreign: ") }

// describe describes o after the word for what it does.
func (o op) describe(f service.Family, add, del string) string {
	switch o.verb {
	case delTable:
		return del + "table " + cmp.Or(o.table, TableName)
	case addTable:
		return add + "table " + cmp.Or(o.table, TableName)
	case clearDormant:
		return del + "flag dormant of table " + cmp.Or(o.table, TableName)
	case addSet:
		return add + "set " + o.set.name
	case delSet:
		return del + "set " + o.set.name
	case addChain:
		return add + "chain " + o.chain.name
	case acceptPolicy:
		return del + "policy drop of chain " + o.chain.name
	case delChain:
		return del + "chain " + o.chain.name
	case flushChain:
		return del + "rules of chain " + o.chain.name
	case addRules:
		return add + fmt.Sprintf("rules of chain %s (%d)", o.chain.name, len(o.chain.rules))
	case delElement:
		return del + fmt.Sprintf("%s: %s", o.element.in.name, o.element.text(f))
	}
	return add + fmt.Sprintf("%s: %s", o.element.in.name, o.element.text(f))
}

// appendChain appends the ops that create chains.
func appendChain(ops []op, chains ...*chain) []op {
	for _, c := range chains {
		ops = append(ops, op{verb: addChain, chain: c}, op{verb: addRules, chain: c})
	}
	return ops
}

func appendChainDelete(ops []op, c *chain) []op {
	return append(ops, op{verb: flushChain, chain: c}, op{verb: delChain, chain: c})
}

// appendElements appends the ops that change have into want. Both must be sorted.
func appendElements(ops []op, have, want []element) []op {
	for len(have) > 0 || len(want) > 0 {
		order := 0
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		default:
			order = have[0].compare(want[0])
		}
		switch {
		case order < 0:
			ops = append(ops, op{verb: delElement, element: have[0]})
			have = have[1:]
		case order > 0:
			ops = append(ops, op{verb: addElement, element: want[0]})
			want = want[1:]
		default:
			if !have[0].same(want[0]) {
				ops = append(ops, op{verb: delElement, element: have[0]}, op{verb: addElement, element: want[0]})
			}
			have, want = have[1:], want[1:]
		}
	}
	return ops
}

// portOps returns the ops from one layout of a Port to the next. Either port may be nil.
func portOps(from, to layout, o Options) []op {
	var have, want []element
	if sameRoutes(from.port, to.port) {
		have, want = from.changedElements(to), to.changedElements(from)
	} else {
		if from.port != nil {
			have = from.elements()
		}
		if to.port != nil {
			want = to.elements()
		}
	}
	ops := appendElements(nil, have, want)
	return appendAffinityChanges(ops, from.port, to.port, o)
}

// appendAffinityChanges appends the ops for the objects that only one Port uses.
func appendAffinityChanges(ops []op, from, to *service.Port, o Options) []op {
	old, next := ownChains(from, o), ownChains(to, o)
	if len(old) == 0 && len(next) == 0 {
		return ops
	}
	oldSets, nextSets := map[string]*set{}, map[string]*set{}
	for _, s := range ownSets(from) {
		oldSets[s.name] = s
	}
	for _, s := range ownSets(to) {
		nextSets[s.name] = s
		if oldSets[s.name] == nil {
			ops = append(ops, op{verb: addSet, set: s})
		}
	}
	for _, s := range ownSets(from) {
		if nextSets[s.name] == nil {
			ops = append(ops, op{verb: delSet, set: s})
		}
	}
	return appendChainChanges(ops, old, next)
}

// appendChainChanges appends the ops from chains old to next. The text of rules is complete.
func appendChainChanges(ops []op, old, next []*chain) []op {
	had := map[string]string{}
	for _, c := range old {
		had[c.name] = c.text(service.IPv4)
	}
	for _, c := range next {
		text, found := had[c.name]
		delete(had, c.name)
		switch {
		case !found:
			ops = appendChain(ops, c)
		case text != c.text(service.IPv4):
			ops = append(ops, op{verb: flushChain, chain: c}, op{verb: addRules, chain: c})
		}
	}
	for _, c := range old {
		if _, gone := had[c.name]; gone {
			ops = appendChainDelete(ops, c)
		}
	}
	return ops
}

// frontendsOnlyIn returns the frontends of p, which may be nil, that q does not have.
func frontendsOnlyIn(p, q *service.Port) []service.Address {
	if p == nil {
		return nil
	}
	var all []service.Address
	for _, f := range p.Frontends {
		if q == nil || !slices.ContainsFunc(q.Frontends, f.SameAddress) {
			all = append(all, p.Address(f))
		}
	}
	return all
}

// joinMoves orders units so that those between which a frontend moves, as when a Service port is
// renamed, share a transaction: one deletes the element that the other adds.
func joinMoves(units []unit) []unit {
	losing := map[service.Address]int{}
	for i, u := range units {
		if u.ops == nil {
			for _, d := range frontendsOnlyIn(u.from.port, u.to.port) {
				losing[d] = i
			}
		}
	}
	if len(losing) == 0 || len(units) < 2 {
		return units
	}
	joinedTo := map[int]int{} // unit -> an earlier unit that it shares a transaction with
	root := func(i int) int {
		for r, found := joinedTo[i]; found; r, found = joinedTo[i] {
			i = r
		}
		return i
	}
	for j, u := range units {
		if u.ops != nil {
			continue
		}
		for _, d := range frontendsOnlyIn(u.to.port, u.from.port) {
			if i, found := losing[d]; found && root(i) != root(j) {
				joinedTo[max(root(i), root(j))] = min(root(i), root(j))
			}
		}
	}
	if len(joinedTo) == 0 {
		return units
	}
	members := map[int][]unit{}
	for i, u := range units {
		if _, found := joinedTo[i]; found {
			u.joined = true
			members[root(i)] = append(members[root(i)], u)
		}
	}
	var all []unit
	for i, u := range units {
		if _, found := joinedTo[i]; !found {
			all = append(append(all, u), members[i]...)
		}
	}
	return all
}

// splitUnits splits units close to the middle. It returns nil if they must stay together.
func splitUnits(units []unit) [][]unit {
	middle := len(units) / 2
	for d := range len(units) {
		for _, at := range []int{middle - d, middle + d} {
			if at > 0 && at < len(units) && !units[at].joined {
				return [][]unit{units[:at], units[at:]}
			}
		}
	}
	return nil
}
