// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is the change from the kernel state to a snapshot. It implements reconcile.Plan.
type plan struct {
	backend         *Backend
	rules           reconcile.Plan
	settings        []string // to be set
	setup           []op
	units           []unit
	deleteRoutes    []op // addresses that no Service has any more
	addRoutes       []op
	addrSetOps      []op                     // after everything else
	next            *installed               // the kernel state after Apply
	delta           map[netip.Addr]int       // added to next.addrRefs after Apply
	drainingDests   drainingDests            // after Apply
	knownToRules    map[service.Address]bool // virtual servers that the installed rules cover, in a comparison
	previousAddrs   map[netip.Addr]int       // addrRefs before, if fullSync
	drainedServers  map[service.Address]bool // virtual servers whose last destination has drained
	recheck         recheckSet               // empty if fullSync
	drift           []string
	alteredSettings []string // settings that others changed
	removed         []*service.Port
	fullSync        bool // made from the kernel state, not from a difference
}

// unit is the change of one Port, or of none in particular.
type unit struct {
	port        *service.Port
	beforeRules []op
	afterRules  []op  // after the change of the rules
	err         error // why more cannot be done
}

// add appends u unless it is empty.
func (p *plan) add(u unit) {
	if len(u.beforeRules) > 0 || len(u.afterRules) > 0 || u.err != nil {
		p.units = append(p.units, u)
	}
}

// ops yields all ops of p in order, with the Port that each is for, nil for none.
func (p *plan) ops() iter.Seq2[*service.Port, op] {
	return func(yield func(*service.Port, op) bool) {
		parts := []unit{{afterRules: p.setup}}
		for _, u := range p.units {
			parts = append(parts, unit{port: u.port, afterRules: u.beforeRules})
		}
		parts = append(parts, unit{afterRules: p.deleteRoutes})
		parts = append(parts, p.units...)
		parts = append(parts, unit{afterRules: p.addRoutes}, unit{afterRules: p.addrSetOps})
		for _, part := range parts {
			for _, o := range part.afterRules {
				if !yield(part.port, o) {
					return
				}
			}
		}
	}
}

func (p *plan) Empty() bool {
	routes := len(p.deleteRoutes) + len(p.addRoutes) + len(p.addrSetOps)
	return p.rules.Empty() && len(p.settings) == 0 && len(p.setup) == 0 && len(p.units) == 0 && routes == 0
}

func (p *plan) Outcome() reconcile.Outcome {
	rules := p.rules.Outcome()
	return reconcile.Outcome{
		FullSync: p.fullSync, Removed: p.removed,
		Drift: slices.Concat(p.alteredSettings, p.drift, rules.Drift), Suspect: rules.Suspect,
		Degraded: rules.Degraded, Rules: rules.Rules,
	}
}

func (p *plan) Changes() reconcile.Changes {
	var all reconcile.Changes
	for _, s := range p.settings {
		all.Add("+ setting %s", s)
	}
	for of, o := range p.ops() {
		c := reconcile.Change{Text: o.text()}
		if of != nil {
			c.Port = of.Name
		}
		all = append(all, c)
	}
	return append(all, p.rules.Changes()...)
}

// Apply implements reconcile.Plan. Servers and rules cannot change in one step: schedule decides
// what of each changes before the rules and what after, so that all connections are answered. An
// address has a route only while everything for it is in force.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	out := p.Outcome()
	out.Err = p.program(ctx, &out)
	return out
}

// program makes the changes of p, and sets in out the outcome of the rules.
func (p *plan) program(ctx context.Context, out *reconcile.Outcome) error {
	b := p.backend
	b.installed = nil // if more than single Ports fails, the next Plan reads the kernel state
	a := &applier{plan: p, ctx: ctx, undeleted: map[service.Address]bool{}}
	if err := a.prepare(); err != nil {
		return fmt.Errorf("prepare IPVS for %s: %w", b.family, err)
	}
	a.ports(func(u *unit) []op { return u.beforeRules })
	a.routes(p.deleteRoutes)
	rules := a.rules(out)
	if !reconcile.OnlyPortErrors(rules) {
		// Without rules, packets to an address would reach any local listener.
		return errors.Join(append(a.errs, rules)...)
	}
	refused := refusedPorts(rules)
	a.ports(func(u *unit) []op {
		if u.port != nil && refused[u.port.Name] {
			return nil // not without its rules
		}
		return u.afterRules
	})
	a.routes(p.routesWithout(refused))
	a.routes(p.addrSetOps)
	for i := range p.units {
		if u := &p.units[i]; u.err != nil {
			a.errs = append(a.errs, u.portError(u.err))
		}
	}
	p.logDraining(ctx)
	b.setDraining(p.drainingDests)
	err := errors.Join(append(a.errs, rules)...)
	if p.next.failedPorts = p.findFailedPorts(a.errs); rules == nil && len(p.next.failedPorts) <= maxFailedPorts && reconcile.OnlyPortErrors(err) {
		p.recordInstalled()
	}
	return err
}

// recordInstalled records that the kernel state is p.next, except for failed Ports.
func (p *plan) recordInstalled() {
	for a, n := range p.delta {
		if p.next.addrRefs[a] += n; p.next.addrRefs[a] == 0 {
			delete(p.next.addrRefs, a)
		}
	}
	b := p.backend
	b.installed, b.prepared = p.next, true
	b.setDraining(p.drainingDests)
}

// applier is one run of Apply.
type applier struct {
	plan *plan
	ctx  context.Context
	errs []error
	// undeleted are the virtual servers that could not be deleted before the rules change.
	undeleted map[service.Address]bool
}

// rules changes the rules, and sets in out the outcome.
func (a *applier) rules(out *reconcile.Outcome) error {
	plan, view, err := a.currentRules()
	if err == nil && !plan.Empty() {
		done := plan.Apply(a.ctx)
		err, out.Degraded, out.Rules = done.Err, done.Degraded, done.Rules
	}
	if reconcile.OnlyPortErrors(err) {
		a.plan.backend.rulesView = view
	}
	return err
}

// prepare applies what everything else depends on.
func (a *applier) prepare() error {
	b := a.plan.backend
	if len(a.plan.settings) > 0 {
		if err := b.driver.ApplySettings(a.ctx, b.currentScope()); err != nil {
			return err
		}
		b.prepared = true
	}
	return a.steps(a.plan.setup)
}

// routes executes ops about addresses.
func (a *applier) routes(ops []op) {
	if err := a.steps(ops); err != nil {
		a.errs = append(a.errs, fmt.Errorf("lead addresses of Services to the node: %w", err))
	}
}

// routesWithout returns p's routes except those for addresses of refused Ports alone.
func (p *plan) routesWithout(refused map[service.PortName]bool) []op {
	if len(refused) == 0 {
		return p.addRoutes
	}
	has := map[netip.Addr]int{}
	for port := range p.next.view.Ports(p.backend.family) {
		if !refused[port.Name] {
			countAddrs(has, port, p.next.view.Node, 1)
		}
	}
	var routes []op
	for _, o := range p.addRoutes {
		if has[o.route.addr] > 0 {
			routes = append(routes, o)
		}
	}
	return routes
}

// refusedPorts returns the Ports whose rules err is about.
func refusedPorts(err error) map[service.PortName]bool {
	refused := map[service.PortName]bool{}
	for _, e := range reconcile.PortErrors(err) {
		refused[e.Name] = true
	}
	return refused
}

// steps executes ops that do not belong to a Port.
func (a *applier) steps(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return joinFailures(ops, a.plan.backend.driver.Commit(a.ctx, ops))
}

func joinFailures(ops []op, failed map[int]error) error {
	var errs []error
	for i := range ops {
		if err := failed[i]; isFailure(ops[i], err) {
			errs = append(errs, fmt.Errorf("%s: %w", ops[i].text(), err))
		}
	}
	return limitErrors(errs)
}

// ports executes what pick returns for each unit, and records the first failure of each.
func (a *applier) ports(pick func(*unit) []op) {
	var ops []op
	var owner []int
	for i := range a.plan.units {
		for _, o := range pick(&a.plan.units[i]) {
			ops = append(ops, o)
			owner = append(owner, i)
		}
	}
	if len(ops) == 0 {
		return
	}
	failed := a.plan.backend.driver.Commit(a.ctx, ops)
	last := -1
	for i := range ops {
		if failed[i] == nil {
			a.plan.backend.recordOp(ops[i])
		}
		if errors.Is(failed[i], errNotInSet) { // a check of a single server would not detect this
			a.plan.backend.poller.requested.Store(true)
		}
		if ops[i].verb == delServer && isFailure(ops[i], failed[i]) {
			a.undeleted[ops[i].key] = true
		}
		if err := failed[i]; isFailure(ops[i], err) && owner[i] != last {
			last = owner[i]
			u := &a.plan.units[last]
			a.errs = append(a.errs, u.portError(fmt.Errorf("%s: %w", ops[i].text(), err)))
		}
	}
}

// isFailure reports whether err means that o was not done, and not that nothing was to delete.
func isFailure(o op, err error) bool {
	deletes := o.verb == delServer || o.verb == delDest || o.verb == delRoute || o.verb == delAddr
	return err != nil && !(deletes && errors.Is(err, errMissing))
}

// maxErrors limits the number of reported failures that do not belong to a Port.
const maxErrors = 20

func limitErrors(errs []error) error {
	if n := len(errs); n > maxErrors {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more", n-maxErrors))
	}
	return errors.Join(errs...)
}

// planChanges fills p with cs, the change from h to p.next, without reading the kernel.
func (p *plan) planChanges(ctx context.Context, h *installed, cs []service.Change) error {
	p.next.readAt, p.next.addrRefs, p.next.localNode = h.readAt, h.addrRefs, h.localNode
	p.delta = map[netip.Addr]int{}
	node := p.next.view.Node
	p.recheck = p.portsToRecheck(h, cs)
	if err := p.recheckFailed(ctx, h); err != nil {
		return fmt.Errorf("ask for virtual servers that could not be changed: %w", err)
	}
	held := p.handedOver(cs)
	for _, c := range cs {
		if !p.recheck.ports[c.Name()] {
			p.planPort(c, held)
		}
		countAddrs(p.delta, c.Old, node, -1)
		countAddrs(p.delta, c.New, node, 1)
	}
	source := p.backend.node.source(p.backend.family)
	for _, a := range sortedAddrs(p.delta) {
		switch before, n := h.addrRefs[a], p.delta[a]; {
		case before == 0 && n > 0:
			p.addRoutes = append(p.addRoutes, op{verb: addRoute, route: localRoute{a, source}})
		case before > 0 && before+n == 0:
			p.deleteRoutes = append(p.deleteRoutes, op{verb: delRoute, route: localRoute{addr: a}})
		}
	}
	return nil
}

// handedOver returns the servers that move from one Port to another, as the old one has them.
func (p *plan) handedOver(cs []service.Change) map[service.Address]desiredServer {
	left := map[service.Address]desiredServer{}
	for _, c := range cs {
		if c.Old != nil && (c.New == nil || !slices.EqualFunc(c.Old.Frontends, c.New.Frontends, service.Frontend.SameAddress)) {
			for _, w := range p.backend.options.servers(c.Old, p.next.localNode) {
				left[w.key] = w
			}
		}
	}
	moved := map[service.Address]desiredServer{}
	for _, c := range cs {
		if len(left) == 0 || c.New == nil {
			continue
		}
		for _, w := range p.backend.options.servers(c.New, p.next.localNode) {
			if had, found := left[w.key]; found {
				moved[w.key] = had
			}
		}
	}
	return moved
}

// countAddrs adds n to the counts of the addresses of p, which may be nil.
func countAddrs(counts map[netip.Addr]int, p *service.Port, node *service.Node, n int) {
	if p == nil {
		return
	}
	for _, a := range virtualAddrs(p, node) {
		if counts[a] += n; counts[a] == 0 {
			delete(counts, a)
		}
	}
}

// planPort plans the change of a Port. Servers that move to or from another are in handedOver.
func (p *plan) planPort(c service.Change, handedOver map[service.Address]desiredServer) {
	u := unit{port: c.New}
	old := map[service.Address]desiredServer{}
	if c.New == nil {
		u.port = c.Old
	}
	if c.Old != nil {
		for _, w := range p.backend.options.servers(c.Old, p.next.localNode) {
			old[w.key] = w
		}
	}
	if c.New != nil {
		for _, w := range p.backend.options.servers(c.New, p.next.localNode) {
			had, found := old[w.key]
			if !found {
				had, found = handedOver[w.key]
			}
			p.planServer(&u, had, w, found && !had.refused)
			delete(old, w.key)
		}
	}
	for _, k := range sortedKeys(old) {
		if _, found := handedOver[k]; !found && (len(old[k].endpoints) > 0 || len(p.drainingDests[k]) > 0) {
			u.beforeRules = append(u.beforeRules, op{verb: delServer, key: k})
			delete(p.drainingDests, k)
		}
	}
	p.add(u)
}

// planServer plans the change of one virtual server. known means that the installed rules
// already cover its address. Rules that reject do not count: for connections of the node
// itself, rejecting happens after IPVS (kernel: net/netfilter/ipvs/ip_vs_core.c,
// ip_vs_ops4). So the new rules must be in force before such a server gets destinations.
func (p *plan) planServer(u *unit, old, next desiredServer, known bool) {
	k := next.key
	drained := len(p.drainingDests[k]) > 0
	m := destChanges{knownToRules: known, preservesClientIP: next.preservesClientIP, emptied: len(next.endpoints) == 0, refused: next.refused}
	switch {
	case m.emptied && connectionless(k):
		if len(old.endpoints) > 0 {
			u.deleteServer(next)
		}
		return
	case m.emptied && len(old.endpoints) == 0 && !drained:
	case len(old.endpoints) == 0 && !drained:
		m.add = append(m.add, op{verb: addServer, key: k, server: next.server})
	case old.server != next.server:
		u.beforeRules = append(u.beforeRules, op{verb: setServer, key: k, server: next.server})
	}
	merge(old.endpoints, next.endpoints, func(had, wants bool, a netip.AddrPort) {
		switch {
		case had && !wants:
			m.del = append(m.del, p.removeDest(k, dest{addr: a, weight: 1}))
		case wants && !had && p.drainingDests.has(k, a):
			m.add = append(m.add, op{verb: setDest, key: k, dest: dest{addr: a, weight: 1}})
			p.drainingDests.remove(k, a)
		case wants && !had:
			m.add = append(m.add, op{verb: addDest, key: k, dest: dest{addr: a, weight: 1}})
		default:
			m.keepsDest = true
		}
	})
	u.schedule(m)
}

// destChanges are the changes of the destinations of one virtual server.
type destChanges struct {
	add, del          []op
	knownToRules      bool // the installed rules cover the address
	keepsDest         bool // some destination exists before and after
	emptied           bool // no destination exists after
	refused           bool // the new rules reject, but after IPVS
	preservesClientIP bool // the new rules do not masquerade
}

// schedule places m before or after the change of the rules. There is a destination at
// each moment if there is one before and after. No destination is reachable without
// masquerading if its replies would take another path.
func (u *unit) schedule(m destChanges) {
	switch {
	case m.refused:
		u.beforeRules = append(u.beforeRules, m.del...)
	case m.emptied:
		// The new rules know what to do with new clients.
		u.afterRules = append(u.afterRules, m.del...)
	case m.keepsDest || !m.knownToRules:
		u.beforeRules = append(u.beforeRules, m.del...)
		u.afterRules = append(u.afterRules, m.add...)
	case len(m.del) == 0 || m.preservesClientIP:
		// The old rules admit no client, or they masquerade and the new ones do not.
		u.beforeRules = append(append(u.beforeRules, m.add...), m.del...)
	default:
		u.afterRules = append(append(u.afterRules, m.add...), m.del...)
	}
}

// deleteServer deletes a virtual server without endpoints.
func (u *unit) deleteServer(w desiredServer) {
	o := op{verb: delServer, key: w.key}
	if w.refused {
		u.beforeRules = append(u.beforeRules, o)
		return
	}
	u.afterRules = append(u.afterRules, o)
}

// removeDest lets a destination drain, and deletes one of a connectionless protocol at once.
func (p *plan) removeDest(k service.Address, x dest) op {
	if connectionless(k) {
		return op{verb: delDest, key: k, dest: x}
	}
	p.drainingDests.add(k, x.addr, p.backend.now())
	return op{verb: setDest, key: k, dest: dest{addr: x.addr}}
}

// connectionless reports whether the connections of k have no end of their own.
func connectionless(k service.Address) bool { return k.Protocol == service.UDP }

// merge walks through two sorted lists at once.
func merge(old, next []service.Endpoint, each func(had, wants bool, a netip.AddrPort)) {
	for len(old) > 0 || len(next) > 0 {
		order := 0
		switch {
		case len(old) == 0:
			order = 1
		case len(next) == 0:
			order = -1
		default:
			order = old[0].Addr.Compare(next[0].Addr)
		}
		switch {
		case order < 0:
			each(true, false, old[0].Addr)
			old = old[1:]
		case order > 0:
			each(false, true, next[0].Addr)
			next = next[1:]
		default:
			each(true, true, next[0].Addr)
			old, next = old[1:], next[1:]
		}
	}
}

func sortedKeys[V any](m map[service.Address]V) []service.Address {
	return slices.SortedFunc(maps.Keys(m), service.Address.Compare)
}

func sortedAddrs[V any](m map[netip.Addr]V) []netip.Addr {
	return slices.SortedFunc(maps.Keys(m), netip.Addr.Compare)
}

// verb is the kind of an op.
type verb uint8

const (
	addDevice        verb = iota
	addSets               // virtualServerSet and nodeIPSet
	addServerToSet        // to the former
	delServerFromSet      // from the former
	addAddrToSet          // an address of the node, to the latter
	delAddrFromSet        // from the latter
	addServer
	setServer
	addDest
	setDest
	delDest
	delServer
	addRoute
	delRoute
	delAddr // an address that kube-proxy assigned to the interface
)

// op is one step. The verb determines which fields are used.
type op struct {
	verb   verb
	key    service.Address
	server server
	dest   dest
	route  localRoute
}

// localRoute is a route of type local, which delivers packets to the node itself.
type localRoute struct {
	addr netip.Addr
	// source is that of the node's own connections to addr, if invalid addr itself.
	source netip.Addr
}

// errServerNotCreated means that a destination was not added because its virtual server
// could not be created. A foreign one may exist in its place.
var errServerNotCreated = errors.New("its virtual server was not made")

// errNotInSet means that a virtual server exists but is not reachable.
var errNotInSet = errors.New("it cannot be put into the ipset of virtual servers")

// applyInOrder calls do for each op and returns the errors by index. It skips
// destinations of virtual servers that could not be created.
func applyInOrder(ops []op, do func(*op) error) map[int]error {
	failed := map[int]error{}
	notCreated := map[service.Address]bool{}
	for i := range ops {
		o := &ops[i]
		err := errServerNotCreated
		if o.verb != addDest || !notCreated[o.key] {
			err = do(o)
		}
		if err == nil {
			continue
		}
		failed[i] = err
		if o.verb == addServer {
			notCreated[o.key] = true
		}
	}
	return failed
}

// addsToSet reports whether a server exists after o had the result err, and must be in the set.
func (o op) addsToSet(err error) bool {
	switch o.verb {
	case addServerToSet, addServer, setServer:
		return err == nil
	case delServer: // it still exists
		return err != nil && !errors.Is(err, errMissing)
	}
	return false
}

// markNotInSet adds err to the failures of ops whose virtual server must be in the set.
func markNotInSet(ops []op, failed map[int]error, err error) {
	for i := range ops {
		if ops[i].addsToSet(failed[i]) {
			failed[i] = errors.Join(failed[i], fmt.Errorf("%w: %w", errNotInSet, err))
		}
	}
}

// removesFromSet reports whether o removes a virtual server from the set, before it is deleted.
func (o op) removesFromSet() bool { return o.verb == delServerFromSet || o.verb == delServer }

// text describes o in one line of a plan.
func (o op) text() string { return o.describe("+ ", "- ", "~ ") }

// driftText describes the foreign change that makes o necessary.
func (o op) driftText() string { return o.describe("missing: ", "foreign: ", "altered: ") }

// describe describes o after the word for what it does.
func (o op) describe(add, del, set string) string {
	at := nameOf(o.key)
	switch o.verb {
	case addDevice:
		return add + "interface " + Device
	case addSets:
		return add + "ipsets of virtual servers and of the node's addresses"
	case addServerToSet:
		return add + fmt.Sprintf("%s in the ipset of virtual servers", at)
	case delServerFromSet:
		return del + fmt.Sprintf("%s in the ipset of virtual servers", at)
	case addAddrToSet:
		return add + fmt.Sprintf("%s in the ipset of the node's addresses", o.route.addr)
	case delAddrFromSet:
		return del + fmt.Sprintf("%s in the ipset of the node's addresses", o.route.addr)
	case addServer:
		return add + fmt.Sprintf("virtual server %s%s", at, o.server.text())
	case setServer:
		return set + fmt.Sprintf("virtual server %s%s", at, o.server.text())
	case delServer:
		return del + fmt.Sprintf("virtual server %s", at)
	case addDest:
		return add + fmt.Sprintf("destination %s of %s", o.dest.addr, at)
	case delDest:
		return del + fmt.Sprintf("destination %s of %s", o.dest.addr, at)
	case addRoute:
		if o.route.source.IsValid() {
			return add + fmt.Sprintf("address %s, reached from %s", o.route.addr, o.route.source)
		}
		return add + fmt.Sprintf("address %s", o.route.addr)
	case delRoute:
		return del + fmt.Sprintf("address %s", o.route.addr)
	case delAddr:
		return del + fmt.Sprintf("address %s of interface %s", o.route.addr, Device)
	}
	if o.dest.weight == 0 {
		return set + fmt.Sprintf("destination %s of %s drains, for %s at most", o.dest.addr, at, DrainTimeout)
	}
	return set + fmt.Sprintf("destination %s of %s has weight %d", o.dest.addr, at, o.dest.weight)
}

func (s server) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, ", scheduler %s", s.scheduler)
	if s.flags&flagPersistent != 0 {
		fmt.Fprintf(&b, ", clients stay for %d s", s.timeout)
	}
	return b.String()
}
