// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// ipsets is what rules need from the kernel, see ipset.Kernel.
type ipsets interface {
	Create(ipset.Set) error
	Destroy(name string) error
	Add(ipset.Set, []ipset.Member) error
	Del(ipset.Set, []ipset.Entry) error
	Members(ipset.Set) ([]ipset.Member, error)
	Headers() ([]ipset.Header, error)
	Close() error
}

// rules do what virtual servers cannot, for one family. Ipsets hold the addresses and ports that
// need special treatment, and chains of iptables match them: they reject, drop, mark for
// masquerading, and redirect to another server of the Service. The Driver fills virtualServerSet
// and nodeIPSet. It implements reconcile.Backend.
type rules struct {
	family service.Family
	chains *iptables.Backend
	sets   ipsets
	now    func() time.Time
	resync time.Duration
	// otherVariant are our chains in the other variant of iptables. They exist if the
	// node's command was that variant before. It is nil if there can be none.
	otherVariant takeover.Leftovers
	// installed is what the sets hold, nil if that is not known.
	installed *installedSets
}

// newRules returns the rules of one family, with chains that have the options of Options.chains.
func newRules(f service.Family, chains *iptables.Backend, sets ipsets, now func() time.Time) *rules {
	return &rules{family: f, chains: chains, sets: sets, now: now}
}

// installedSets describes sets that match a snapshot.
type installedSets struct {
	snapshot    *service.Snapshot
	localNode   localNode
	uses        map[element]use
	sizes       map[string]int // of sets, in elements
	sizesReadAt time.Time      // when sizes were read
	readAt      time.Time
}

func (r *rules) SetResync(d time.Duration) { r.resync = d }

func (r *rules) Forget() {
	r.installed = nil
	r.chains.Forget()
}

// sizesInterval is the least time between two reads of sizes, about as the poller asks for.
const sizesInterval = 2 * time.Second

// Plan implements reconcile.Backend. Its cost is proportional to the difference between
// want and the last snapshot. The kernel sends no notification when a set changes. So
// Plan reads all sets once per sync period, and when the size of one has changed.
func (r *rules) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	chains, err := r.chains.Plan(ctx, want)
	if err != nil {
		return nil, err
	}
	p := &rulesPlan{rules: r, chains: chains}
	h := r.installed
	r.installed = nil // until p has been applied
	sizes, asked, err := r.currentSizes(h, chains)
	if err != nil {
		return nil, err
	}
	switch {
	case h == nil, h.snapshot.Node != want.Node, h.snapshot.Incomplete != want.Incomplete,
		!maps.Equal(h.sizes, sizes), r.now().Sub(h.readAt) >= r.resync*9/10:
		err = p.compareAll(ctx, h, sizes, want)
	default:
		p.planChanges(h, want)
	}
	if err != nil {
		return nil, err
	}
	if p.next.sizes, p.next.sizesReadAt = sizes, asked; p.Empty() {
		p.recordInstalled()
	}
	return p, nil
}

// currentSizes returns the sizes of sets and when they were read: after sizesInterval, or if the
// chains have changed, they are read again.
func (r *rules) currentSizes(h *installedSets, chains reconcile.Plan) (map[string]int, time.Time, error) {
	now := r.now()
	if h != nil && chains.Empty() && now.Sub(h.sizesReadAt) < sizesInterval {
		return h.sizes, h.sizesReadAt, nil
	}
	sizes, err := r.readSizes()
	if err != nil {
		return nil, now, fmt.Errorf("ask for ipsets: %w", err)
	}
	return sizes, now, nil
}

// readSizes returns the number of elements of each of our sets. An altered set, with
// which another process has replaced ours, counts as missing.
func (r *rules) readSizes() (map[string]int, error) {
	heads, err := r.sets.Headers()
	if err != nil {
		return nil, err
	}
	sizes := map[string]int{}
	for _, h := range heads {
		if i := slices.IndexFunc(setNames, func(n string) bool { return setName(r.family, n) == h.Name }); i >= 0 && !h.Altered {
			sizes[setNames[i]] = h.Entries
		}
	}
	return sizes, nil
}

func (p *rulesPlan) planChanges(h *installedSets, want *service.Snapshot) {
	p.next = &installedSets{snapshot: want, localNode: h.localNode, uses: h.uses, readAt: h.readAt}
	if want == h.snapshot {
		return
	}
	changes := slices.Collect(service.Diff(h.snapshot, want, p.rules.family))
	if h.localNode.reservationsChange(changes) {
		p.next.localNode, p.next.uses = countUses(p.rules.family, want, h.uses)
		p.sets = diff(h.uses, p.next.uses)
		return
	}
	p.planDelta(h, changes)
}

// compareAll plans from the observed sets to want. Differences that do not come from
// changes since h are drift.
func (p *rulesPlan) compareAll(ctx context.Context, h *installedSets, sizes map[string]int, want *service.Snapshot) error {
	r := p.rules
	if h == nil && r.otherVariant != nil {
		var err error
		if p.otherVariant, err = r.otherVariant.Find(ctx); err != nil {
			return err
		}
	}
	held := map[element]use{}
	for _, name := range setNames {
		if _, there := sizes[name]; !there {
			p.create = append(p.create, name)
			continue
		}
		members, err := r.sets.Members(setOf(r.family, name))
		if errors.Is(err, ipset.ErrMissing) { // it was just destroyed
			p.create = append(p.create, name)
			continue
		}
		if err != nil {
			return fmt.Errorf("list ipset %s: %w", setName(r.family, name), err)
		}
		for _, m := range members {
			held[element{name, m.Entry}] = use{1, m.Comment}
		}
	}
	at, uses := countUses(r.family, want, held)
	p.next = &installedSets{snapshot: want, localNode: at, uses: uses, readAt: r.now()}
	p.sets = diff(held, uses)
	if want.Incomplete { // an unread Service may need it
		p.sets.del = slices.DeleteFunc(p.sets.del, func(e element) bool { return h == nil || h.uses[e].count == 0 })
	}
	if h != nil {
		for _, name := range p.create {
			p.drift = append(p.drift, "missing: ipset "+setName(r.family, name))
		}
		p.drift = append(p.drift, diff(held, h.uses).drift(r.family, p.create, h.snapshot.Incomplete)...)
	}
	return nil
}

// Cleanup implements reconcile.Backend. It removes our chains, then the sets they referred to.
func (r *rules) Cleanup(ctx context.Context) error {
	r.installed = nil
	if err := r.chains.Cleanup(ctx); err != nil {
		return err
	}
	return destroy(r.family, r.sets)
}

func destroy(f service.Family, d ipsets) error {
	heads, err := d.Headers()
	if err != nil {
		return fmt.Errorf("ask for ipsets: %w", err)
	}
	var errs []error
	for _, h := range heads {
		if isOwned(f, h) {
			errs = append(errs, d.Destroy(h.Name))
		}
	}
	return errors.Join(errs...)
}

// isOwned reports whether h is a set of ours for f, also of our type and family.
func isOwned(f service.Family, h ipset.Header) bool {
	return slices.ContainsFunc(allNames(), func(n string) bool {
		s := setOf(f, n)
		return s.Name == h.Name && s.Type == h.Type && s.Family == h.Family
	})
}

// Watch implements reconcile.Backend. It watches changes of chains.
func (r *rules) Watch(ctx context.Context, touched func()) error { return r.chains.Watch(ctx, touched) }

func (r *rules) Close() error { return errors.Join(r.sets.Close(), r.chains.Close()) }

// use says how often an element is needed and what its comment is.
type use struct {
	count   int
	comment string // names one of the Ports that need it
}

// commentOf returns the comment of p's elements.
func commentOf(p *service.Port) string { return ipset.Comment(p.Name.String()) }

// countUses returns the elements of want. A comment in held stays if its Port needs the element.
func countUses(f service.Family, want *service.Snapshot, held map[element]use) (localNode, map[element]use) {
	at, uses := newLocalNode(want, f), map[element]use{}
	for p := range want.Ports(f) {
		comment := commentOf(p)
		at.elements(p, func(e element) {
			u := uses[e]
			if u.count++; u.count == 1 || u.comment != held[e].comment {
				u.comment = comment
			}
			uses[e] = u
		})
	}
	return at, uses
}

// planDelta plans the differences that changes make to h.
func (p *rulesPlan) planDelta(h *installedSets, changes []service.Change) {
	p.delta, p.comments = map[element]int{}, map[element]string{}
	stale := map[element]bool{} // the comment names a Port that does not need it any more
	for _, c := range changes {
		if c.Old != nil {
			comment := commentOf(c.Old)
			h.localNode.elements(c.Old, func(e element) {
				p.delta[e]--
				stale[e] = stale[e] || h.uses[e].comment == comment
			})
		}
		if c.New != nil {
			comment := commentOf(c.New)
			h.localNode.elements(c.New, func(e element) {
				p.delta[e]++
				p.comments[e] = comment
				if h.uses[e].comment == comment {
					delete(stale, e)
				}
			})
		}
	}
	for e, n := range p.delta {
		switch has := h.uses[e].count; {
		case has == 0 && n > 0:
			p.sets.add = append(p.sets.add, e)
		case has > 0 && has+n <= 0:
			p.sets.del = append(p.sets.del, e)
		case has > 0 && stale[e]:
			p.sets.rename = append(p.sets.rename, e)
		}
	}
	p.findComments()
	p.sets.sort()
}

// findComments finds comments for renamed elements that no change adds, as other Ports share them.
func (p *rulesPlan) findComments() {
	missing := map[element]bool{}
	for _, e := range p.sets.rename {
		if p.comments[e] == "" {
			missing[e] = true
		}
	}
	if len(missing) == 0 {
		return
	}
	for port := range p.next.snapshot.Ports(p.rules.family) {
		p.next.localNode.elements(port, func(e element) {
			if missing[e] {
				p.comments[e] = commentOf(port)
			}
		})
	}
}

func (p *rulesPlan) comment(e element) string {
	if comment, found := p.comments[e]; found {
		return comment
	}
	return p.next.uses[e].comment
}

// recordInstalled records that the sets match p.
func (p *rulesPlan) recordInstalled() {
	h := p.next
	for e, n := range p.delta {
		u := h.uses[e]
		if u.count += n; u.count <= 0 {
			delete(h.uses, e)
			continue
		}
		h.uses[e] = u
	}
	for _, changed := range [][]element{p.sets.add, p.sets.rename} {
		for _, e := range changed {
			h.uses[e] = use{h.uses[e].count, p.comment(e)}
		}
	}
	p.rules.installed = h
}

// rulesPlan is the change from the observed sets and chains to a snapshot. It implements reconcile.Plan.
type rulesPlan struct {
	rules        *rules
	chains       reconcile.Plan
	create       []string // missing sets
	sets         difference
	comments     map[element]string // of the elements of changed Ports, if delta is set
	next         *installedSets
	delta        map[element]int // added to next.uses after Apply
	drift        []string
	otherVariant string // what the other variant of iptables contains, "" for nothing
}

// difference is what is added, deleted and renamed between two states of sets. A renamed
// element gets another comment.
type difference struct{ add, del, rename []element }

func (d *difference) empty() bool { return len(d.add)+len(d.del)+len(d.rename) == 0 }

func (d *difference) sort() {
	slices.SortFunc(d.add, element.compare)
	slices.SortFunc(d.del, element.compare)
	slices.SortFunc(d.rename, element.compare)
}

func diff(have, want map[element]use) difference {
	var d difference
	for e, u := range want {
		switch has := have[e]; {
		case has.count == 0:
			d.add = append(d.add, e)
		case has.comment != u.comment:
			d.rename = append(d.rename, e)
		}
	}
	for e := range have {
		if want[e].count == 0 {
			d.del = append(d.del, e)
		}
	}
	d.sort()
	return d
}

// drift describes the foreign changes that d undoes, without elements of missing sets. While the
// snapshot is partial, extra elements may be an earlier process's, and do not count.
func (d difference) drift(f service.Family, missing []string, partial bool) []string {
	var r reconcile.DriftReport
	report := func(what string, all []element) {
		for _, e := range all {
			if slices.Contains(missing, e.set) {
				continue
			}
			r.Add(func() string { return what + ": " + e.text(f) })
		}
	}
	report("missing", d.add)
	report("altered", d.rename)
	if !partial {
		report("foreign", d.del)
	}
	return r.Lines()
}

// text describes e.
func (e element) text(f service.Family) string {
	s := setOf(f, e.set)
	return fmt.Sprintf("element %s of ipset %s", s.Text(e.Entry), s.Name)
}

func (p *rulesPlan) Empty() bool {
	return len(p.create) == 0 && p.sets.empty() && p.otherVariant == "" && p.chains.Empty()
}

func (p *rulesPlan) Outcome() reconcile.Outcome { return p.outcome(p.chains.Outcome()) }

// outcome returns the outcome of p from that of the chains, without Err. It names nothing
// as removed: the plan of virtual servers reports the frontends of those it deletes.
func (p *rulesPlan) outcome(chains reconcile.Outcome) reconcile.Outcome {
	return reconcile.Outcome{Drift: slices.Concat(p.drift, chains.Drift), Suspect: chains.Suspect, Degraded: chains.Degraded, Rules: chains.Rules}
}

func (p *rulesPlan) Changes() reconcile.Changes {
	var all reconcile.Changes
	f := p.rules.family
	for _, name := range p.create {
		all.Add("+ ipset %s", setName(f, name))
	}
	for _, e := range p.sets.add {
		all.Add("+ %s", e.text(f))
	}
	for _, e := range p.sets.del {
		all.Add("- %s", e.text(f))
	}
	for _, e := range p.sets.rename {
		all.Add("~ %s has comment %q", e.text(f), p.comment(e))
	}
	all = append(all, p.chains.Changes()...)
	if p.otherVariant != "" {
		all.Add("- %s, of the other variant of iptables", p.otherVariant)
	}
	return all
}

// A set changes element by element, and independently of the chains. What is matched
// first is added first and deleted last, so that a client always meets either all old or
// all new rules. Policy Local begins when everything that it needs is present, and ends
// before any of that is deleted. All other sets are matched later, or decide alone, as
// those that drop and reject.
var (
	// addBeforeChains are filled before the chains change, in this order.
	addBeforeChains = []string{
		virtualIPSet, clusterIPSet, externalSet,
		internalDroppedSet, externalDroppedSet, droppedSet, refusedSet,
		sourcesSet, restrictedSet, healthCheckSet,
	}
	// addAfterChains are filled after the chains have changed.
	addAfterChains = []string{internalRedirectSet, externalRedirectSet, localSet}
	// deleteLast are emptied at the end.
	deleteLast = []string{
		internalRedirectSet, externalRedirectSet, externalSet,
		internalDroppedSet, externalDroppedSet, droppedSet, refusedSet,
		restrictedSet, sourcesSet, clusterIPSet, virtualIPSet, healthCheckSet,
	}
)

// Apply implements reconcile.Plan. If the kernel refuses the chains of a Port, nothing
// is redirected by them, and the error names the Port.
func (p *rulesPlan) Apply(ctx context.Context) reconcile.Outcome {
	chains := p.chains.Outcome()
	err := p.change(ctx, &chains)
	out := p.outcome(chains)
	out.Err = err
	return out
}

// change makes the changes of p, and sets the outcome of the chains.
func (p *rulesPlan) change(ctx context.Context, of *reconcile.Outcome) error {
	r := p.rules
	r.installed = nil // if anything fails, the next Plan reads the sets
	for _, name := range p.create {
		if err := r.sets.Create(setOf(r.family, name)); err != nil {
			return fmt.Errorf("make ipset %s: %w", setName(r.family, name), err)
		}
	}
	// A failure ends Apply: the next step depends on this one.
	if err := p.addElements(addBeforeChains, nil); err != nil {
		return err
	}
	narrows := func(e element) bool { return !p.liftsRestriction(e) }
	if err := p.deleteElements(narrows, sourcesSet); err != nil {
		return err
	}
	if err := p.deleteElements(anyElement, localSet); err != nil {
		return err
	}
	if !p.chains.Empty() {
		*of = p.chains.Apply(ctx)
	}
	chains := of.Err
	if !reconcile.OnlyPortErrors(chains) {
		return chains
	}
	but := p.refusedFrontends(chains)
	err := p.addElements(addAfterChains, but)
	if err == nil {
		err = p.deleteElements(func(e element) bool {
			return !but[e.frontend()] && (e.set != sourcesSet || p.liftsRestriction(e))
		}, deleteLast...)
	}
	if p.otherVariant != "" && chains == nil && err == nil {
		err = r.otherVariant.Remove(ctx)
	}
	if err = errors.Join(chains, err); err != nil {
		return err
	}
	if !p.sets.empty() || len(p.create) > 0 {
		p.next.sizes, p.next.sizesReadAt, err = r.currentSizes(nil, p.chains)
	}
	if err == nil {
		p.recordInstalled()
	}
	return err
}

// refusedFrontends returns the addresses and ports of the Ports that err is about: they stay.
func (p *rulesPlan) refusedFrontends(err error) map[ipset.Entry]bool {
	fronts := map[ipset.Entry]bool{}
	for _, e := range reconcile.PortErrors(err) {
		if port := p.next.snapshot.Port(p.rules.family, e.Name); port != nil {
			p.next.localNode.elements(port, func(e element) { fronts[e.frontend()] = true })
		}
	}
	return fronts
}

// frontend returns the address and port of e.
func (e element) frontend() ipset.Entry {
	e.Net = netip.Prefix{}
	return e.Entry
}

// addElements adds the planned elements of sets, except those of the frontends in but.
// It adds renamed elements again: the kernel replaces the comment of an element that
// exists (kernel: net/netfilter/ipset/ip_set_hash_gen.h, mtype_add).
func (p *rulesPlan) addElements(sets []string, but map[ipset.Entry]bool) error {
	r := p.rules
	for _, name := range sets {
		var members []ipset.Member
		for _, e := range slices.Concat(p.sets.add, p.sets.rename) {
			if e.set == name && !but[e.frontend()] {
				members = append(members, ipset.Member{Entry: e.Entry, Comment: p.comment(e)})
			}
		}
		if len(members) == 0 {
			continue
		}
		if err := r.sets.Add(setOf(r.family, name), members); err != nil {
			return err
		}
	}
	return nil
}

// liftsRestriction reports whether a source is deleted because all are allowed now. Other sources
// go before any new rule admits them.
func (p *rulesPlan) liftsRestriction(e element) bool {
	_, goes := slices.BinarySearchFunc(p.sets.del, element{restrictedSet, e.frontend()}, element.compare)
	return goes
}

func anyElement(element) bool { return true }

// deleteElements deletes the planned elements of sets that match.
func (p *rulesPlan) deleteElements(match func(element) bool, sets ...string) error {
	r := p.rules
	for _, name := range sets {
		var entries []ipset.Entry
		for _, e := range p.sets.del {
			if e.set == name && match(e) {
				entries = append(entries, e.Entry)
			}
		}
		if len(entries) == 0 {
			continue
		}
		if err := r.sets.Del(setOf(r.family, name), entries); err != nil {
			return err
		}
	}
	return nil
}
