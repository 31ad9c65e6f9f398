// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package companion programs the rules that mode ipvs needs in addition to virtual servers,
// one family per Backend. A service.Snapshot goes in. Ipsets come out, which contain the
// addresses and ports of Services that need special treatment, and iptables chains that
// match them. The chains reject, drop, mark for masquerading, and redirect clients to
// another virtual server of the same Service. Package ipvs makes the virtual servers and
// fills the sets VirtualServerSet and NodeIPSet. Only files with the suffix _linux.go use
// kernel interfaces.
package companion

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Options are the settings of sets and chains.
type Options struct {
	// MasqueradeBit is the bit of the packet mark, 0 to 31, that selects packets for
	// masquerading.
	MasqueradeBit int
}

// setNames lists the sets whose elements depend only on a snapshot.
var setNames = []string{
	clusterIPSet, virtualIPSet, refusedSet, droppedSet,
	externalSet, localSet, internalDroppedSet, externalDroppedSet,
	internalRedirectSet, externalRedirectSet, restrictedSet, sourcesSet,
	healthCheckSet,
}

// VirtualServerSet is the set of all virtual servers, including foreign ones. Chains see
// packets before IPVS does, and reject packets to an address of a Service that are not
// in this set. Package ipvs maintains its elements.
func VirtualServerSet(f service.Family) ipset.Set { return setOf(f, virtualServerSet) }

// NodeIPSet is the set of the node's own addresses. Package ipvs adds an address after
// it has made all virtual servers there.
func NodeIPSet(f service.Family) ipset.Set { return setOf(f, nodeIPSet) }

// allNames lists all sets.
func allNames() []string {
	return append(setNames[:len(setNames):len(setNames)], virtualServerSet, nodeIPSet)
}

func setOf(f service.Family, name string) ipset.Set {
	s := ipset.Set{Name: setName(f, name), Type: ipset.HashIPPort, Family: f}
	switch name {
	case clusterIPSet, virtualIPSet, nodeIPSet:
		s.Type = ipset.HashIP
	case sourcesSet:
		s.Type = ipset.HashIPPortNet
	}
	return s
}

// Driver is what Backend needs from ipsets, see ipset.Kernel.
type Driver interface {
	Create(ipset.Set) error
	Destroy(name string) error
	Add(ipset.Set, []ipset.Member) error
	Del(ipset.Set, []ipset.Entry) error
	Members(ipset.Set) ([]ipset.Member, error)
	Headers() ([]ipset.Header, error)
	Close() error
}

// Backend keeps the sets and chains of one family in the desired state. It implements
// reconcile.Backend.
type Backend struct {
	family service.Family
	chains *iptables.Backend
	sets   Driver
	now    func() time.Time
	resync time.Duration
	// otherVariant are our chains in the other variant of iptables. They exist if the
	// node's command was that variant before. It is nil if there can be none.
	otherVariant leftoverChains
	// installed is what the sets hold, nil if that is not known.
	installed *installed
}

// leftoverChains are chains of an earlier process, see iptables.Leftovers.
type leftoverChains interface {
	Find(context.Context) (string, error)
	Remove(context.Context) error
}

// NewWith returns the Backend for one family. chains must have the options of
// Options.Chains. It changes nothing yet.
func NewWith(f service.Family, chains *iptables.Backend, sets Driver, now func() time.Time) *Backend {
	return &Backend{family: f, chains: chains, sets: sets, now: now}
}

// installed describes sets that match a snapshot.
type installed struct {
	snapshot    *service.Snapshot
	localNode   LocalNode
	uses        map[element]use
	sizes       map[string]int // of sets, in elements
	sizesReadAt time.Time      // when sizes were read
	readAt      time.Time
}

// SetResync implements reconcile.Backend.
func (b *Backend) SetResync(d time.Duration) { b.resync = d }

// Forget implements reconcile.Backend.
func (b *Backend) Forget() {
	b.installed = nil
	b.chains.Forget()
}

// sizesInterval is the minimum interval between two reads of sizes. Package ipvs polls
// virtual servers about as often and requests a sync then.
const sizesInterval = 2 * time.Second

// Plan implements reconcile.Backend. Its cost is proportional to the difference between
// want and the last snapshot. The kernel sends no notification when a set changes. So
// Plan reads all sets once per sync period, and when the size of one has changed.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	chains, err := b.chains.Plan(ctx, want)
	if err != nil {
		return nil, err
	}
	p := &plan{backend: b, chains: chains}
	h := b.installed
	b.installed = nil // until p has been applied
	sizes, asked, err := b.currentSizes(h, chains)
	if err != nil {
		return nil, err
	}
	switch {
	case h == nil, h.snapshot.Node != want.Node, h.snapshot.Incomplete != want.Incomplete,
		!maps.Equal(h.sizes, sizes), b.now().Sub(h.readAt) >= b.resync*9/10:
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

// currentSizes returns the sizes of sets and when they were read. It reads them again
// after sizesInterval, or if the chains have changed: then the sets may have changed,
// too.
func (b *Backend) currentSizes(h *installed, chains reconcile.Plan) (map[string]int, time.Time, error) {
	now := b.now()
	if h != nil && chains.Empty() && now.Sub(h.sizesReadAt) < sizesInterval {
		return h.sizes, h.sizesReadAt, nil
	}
	sizes, err := b.readSizes()
	if err != nil {
		return nil, now, fmt.Errorf("ask for ipsets: %w", err)
	}
	return sizes, now, nil
}

// readSizes returns the number of elements of each of our sets. An altered set, with
// which another process has replaced ours, counts as missing.
func (b *Backend) readSizes() (map[string]int, error) {
	heads, err := b.sets.Headers()
	if err != nil {
		return nil, err
	}
	sizes := map[string]int{}
	for _, h := range heads {
		if i := slices.IndexFunc(setNames, func(n string) bool { return setName(b.family, n) == h.Name }); i >= 0 && !h.Altered {
			sizes[setNames[i]] = h.Entries
		}
	}
	return sizes, nil
}

// planChanges plans from one snapshot to the next.
func (p *plan) planChanges(h *installed, want *service.Snapshot) {
	p.next = &installed{snapshot: want, localNode: h.localNode, uses: h.uses, readAt: h.readAt}
	if want == h.snapshot {
		return
	}
	changes := slices.Collect(service.Diff(h.snapshot, want, p.backend.family))
	if slices.ContainsFunc(changes, func(c service.Change) bool {
		return !slices.Equal(h.localNode.reservedBy(c.Old), h.localNode.reservedBy(c.New))
	}) {
		p.next.localNode, p.next.uses = p.backend.countUses(want, h.uses)
		p.sets = diff(h.uses, p.next.uses)
		return
	}
	p.planDelta(h, changes)
}

// compareAll plans from the observed sets to want. Differences that do not come from
// changes since h are drift.
func (p *plan) compareAll(ctx context.Context, h *installed, sizes map[string]int, want *service.Snapshot) error {
	b := p.backend
	if h == nil && b.otherVariant != nil {
		var err error
		if p.otherVariant, err = b.otherVariant.Find(ctx); err != nil {
			return err
		}
	}
	held := map[element]use{}
	for _, name := range setNames {
		if _, there := sizes[name]; !there {
			p.create = append(p.create, name)
			continue
		}
		members, err := b.sets.Members(setOf(b.family, name))
		if errors.Is(err, ipset.ErrMissing) { // it was just destroyed
			p.create = append(p.create, name)
			continue
		}
		if err != nil {
			return fmt.Errorf("list ipset %s: %w", setName(b.family, name), err)
		}
		for _, m := range members {
			held[element{name, m.Entry}] = use{1, m.Comment}
		}
	}
	at, uses := b.countUses(want, held)
	p.next = &installed{snapshot: want, localNode: at, uses: uses, readAt: b.now()}
	p.sets = diff(held, uses)
	if want.Incomplete { // an unread Service may need it
		p.sets.del = slices.DeleteFunc(p.sets.del, func(e element) bool { return h == nil || h.uses[e].count == 0 })
	}
	if h != nil {
		for _, name := range p.create {
			p.drift = append(p.drift, "missing: ipset "+setName(b.family, name))
		}
		p.drift = append(p.drift, diff(held, h.uses).drift(b.family, p.create, h.snapshot.Incomplete)...)
	}
	return nil
}

// Cleanup implements reconcile.Backend. It removes our chains, and then the sets that
// they referred to.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.installed = nil
	if err := b.chains.Cleanup(ctx); err != nil {
		return err
	}
	return destroy(b.family, b.sets)
}

// destroy destroys the sets of f.
func destroy(f service.Family, d Driver) error {
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

// isOwned reports whether h is one of our sets for f. A set with the same name but
// another type or family is foreign.
func isOwned(f service.Family, h ipset.Header) bool {
	return slices.ContainsFunc(allNames(), func(n string) bool {
		s := setOf(f, n)
		return s.Name == h.Name && s.Type == h.Type && s.Family == h.Family
	})
}

// Watch implements reconcile.Backend. It watches changes of chains.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.chains.Watch(ctx, touched)
}

// Close implements reconcile.Backend.
func (b *Backend) Close() error { return errors.Join(b.sets.Close(), b.chains.Close()) }

// use says how often an element is needed and what its comment is.
type use struct {
	count   int
	comment string // names one of the Ports that need it
}

// commentOf returns the comment of p's elements.
func commentOf(p *service.Port) string { return ipset.Comment(p.Name.String()) }

// countUses returns the set elements of want. A comment in held stays if it names a Port
// that needs the element.
func (b *Backend) countUses(want *service.Snapshot, held map[element]use) (LocalNode, map[element]use) {
	at, uses := NewLocalNode(want, b.family), map[element]use{}
	for p := range want.Ports(b.family) {
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
func (p *plan) planDelta(h *installed, changes []service.Change) {
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

// findComments finds comments for renamed elements that no change adds: they are shared
// with a Port that stays as it is.
func (p *plan) findComments() {
	missing := map[element]bool{}
	for _, e := range p.sets.rename {
		if p.comments[e] == "" {
			missing[e] = true
		}
	}
	if len(missing) == 0 {
		return
	}
	for port := range p.next.snapshot.Ports(p.backend.family) {
		p.next.localNode.elements(port, func(e element) {
			if missing[e] {
				p.comments[e] = commentOf(port)
			}
		})
	}
}

// comment returns the comment of an element that p adds or renames.
func (p *plan) comment(e element) string {
	if comment, found := p.comments[e]; found {
		return comment
	}
	return p.next.uses[e].comment
}

// recordInstalled records that the sets match p.
func (p *plan) recordInstalled() {
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
	p.backend.installed = h
}
