// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package beside

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

// Driver is what Backend asks of ipsets, see ipset.Kernel.
type Driver interface {
	Create(ipset.Set) error
	Destroy(name string) error
	Add(ipset.Set, []ipset.Member) error
	Del(ipset.Set, []ipset.Entry) error
	List(ipset.Set) ([]ipset.Entry, error)
	Heads() ([]ipset.Head, error)
	Close() error
}

// Backend keeps one family's sets and chains. It implements reconcile.Backend.
type Backend struct {
	family service.Family
	chains reconcile.Watcher
	sets   Driver
	now    func() time.Time
	resync time.Duration
	// astray are chains of ours in the variant of iptables that chains are not
	// in: the node's command was another one. Nil for none that there could be.
	astray remains
	// have is what sets hold, nil while that is not known.
	have *installed
}

var (
	_ reconcile.Watcher = (*Backend)(nil)
	_ reconcile.Paced   = (*Backend)(nil)
)

// remains are what may have been left somewhere, see Remains.
type remains interface {
	Find(context.Context) (string, error)
	Remove(context.Context) error
}

// NewWith returns the Backend for one family, with chains that are in the role
// beside IPVS. It changes nothing yet.
func NewWith(f service.Family, chains reconcile.Watcher, sets Driver, now func() time.Time) *Backend {
	return &Backend{family: f, chains: chains, sets: sets, now: now}
}

// installed describes sets that are as we want them.
type installed struct {
	snapshot *service.Snapshot
	at       Site
	// counts says how often each element is wanted.
	counts map[element]int
	sizes  map[string]int // of sets, in elements
	asked  time.Time      // for sizes
	read   time.Time
}

// Tally returns what was done to the chains since it was last asked. It is called
// between two rounds.
func (b *Backend) Tally() iptables.Tally {
	if c, ok := b.chains.(interface{ Tally() iptables.Tally }); ok {
		return c.Tally()
	}
	return iptables.Tally{}
}

// SetResync implements reconcile.Paced.
func (b *Backend) SetResync(d time.Duration) { b.resync = d }

// Forget implements reconcile.Forgetter.
func (b *Backend) Forget() {
	b.have = nil
	if c, ok := b.chains.(reconcile.Forgetter); ok {
		c.Forget()
	}
}

// askEvery is how often sizes are asked for at most. Who makes virtual servers
// asks for rounds about as often, where nothing else does.
const askEvery = 2 * time.Second

// Plan implements reconcile.Backend. Its cost follows the difference between
// want and the last snapshot. Sets are read once in a sync period, and when one
// has another size than it had: nobody is told of changes.
func (b *Backend) Plan(ctx context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	chains, err := b.chains.Plan(ctx, want)
	if err != nil {
		return nil, err
	}
	p := &plan{backend: b, chains: chains}
	h := b.have
	b.have = nil // until p was applied
	sizes, asked, err := b.look(h, chains)
	if err != nil {
		return nil, err
	}
	switch {
	case h == nil, h.snapshot.Node != want.Node, h.snapshot.Partial != want.Partial,
		!maps.Equal(h.sizes, sizes), b.now().Sub(h.read) >= b.resync*9/10:
		err = p.all(ctx, h, sizes, want)
	default:
		p.changes(h, want)
	}
	if err != nil {
		return nil, err
	}
	if p.next.sizes, p.next.asked = sizes, asked; p.Empty() {
		p.done()
	}
	return p, nil
}

// look returns the sizes of sets and when they were such. Where chains are not as
// they were left, sets may not be either.
func (b *Backend) look(h *installed, chains reconcile.Plan) (map[string]int, time.Time, error) {
	now := b.now()
	if h != nil && chains.Empty() && now.Sub(h.asked) < askEvery {
		return h.sizes, h.asked, nil
	}
	sizes, err := b.sizes()
	if err != nil {
		return nil, now, fmt.Errorf("ask for ipsets: %w", err)
	}
	return sizes, now, nil
}

// sizes returns how many elements each of our sets has. One that somebody put in the
// place of ours, made otherwise, counts as missing.
func (b *Backend) sizes() (map[string]int, error) {
	heads, err := b.sets.Heads()
	if err != nil {
		return nil, err
	}
	sizes := map[string]int{}
	for _, h := range heads {
		if i := slices.IndexFunc(setNames, func(n string) bool { return iptables.SetName(b.family, n) == h.Name }); i >= 0 && !h.Altered {
			sizes[setNames[i]] = h.Entries
		}
	}
	return sizes, nil
}

// changes plans from one snapshot to the next.
func (p *plan) changes(h *installed, want *service.Snapshot) {
	p.next = &installed{snapshot: want, at: h.at, counts: h.counts, read: h.read}
	if want == h.snapshot {
		return
	}
	changes := slices.Collect(service.Diff(h.snapshot, want, p.backend.family))
	if slices.ContainsFunc(changes, func(c service.Change) bool { return !slices.Equal(h.at.takes(c.Old), h.at.takes(c.New)) }) {
		p.next.at, p.next.counts = p.backend.count(want)
		p.names = p.backend.names(want)
		p.sets = diff(h.counts, p.next.counts)
		return
	}
	p.delta, p.names = map[element]int{}, map[element]string{}
	for _, c := range changes {
		if c.Old != nil {
			h.at.elements(c.Old, func(e element) { p.delta[e]-- })
		}
		if c.New != nil {
			h.at.elements(c.New, func(e element) {
				p.delta[e]++
				p.names[e] = c.New.Name.String()
			})
		}
	}
	for e, n := range p.delta {
		switch has := h.counts[e]; {
		case has == 0 && n > 0:
			p.sets.add = append(p.sets.add, e)
		case has > 0 && has+n <= 0:
			p.sets.del = append(p.sets.del, e)
		}
	}
	p.sets.sort()
}

// count returns what want has in sets.
func (b *Backend) count(want *service.Snapshot) (Site, map[element]int) {
	at, counts := NewSite(want, b.family), map[element]int{}
	for p := range want.Ports(b.family) {
		at.elements(p, func(e element) { counts[e]++ })
	}
	return at, counts
}

// names returns the Services that elements are of, for people.
func (b *Backend) names(want *service.Snapshot) map[element]string {
	at, names := NewSite(want, b.family), map[element]string{}
	for p := range want.Ports(b.family) {
		at.elements(p, func(e element) { names[e] = p.Name.String() })
	}
	return names
}

// all plans what leads from what sets hold to want. What of that has nothing to
// do with changes since h is drift.
func (p *plan) all(ctx context.Context, h *installed, sizes map[string]int, want *service.Snapshot) error {
	b := p.backend
	if h == nil && b.astray != nil {
		var err error
		if p.astray, err = b.astray.Find(ctx); err != nil {
			return err
		}
	}
	held := map[element]int{}
	for _, name := range setNames {
		if _, there := sizes[name]; !there {
			p.create = append(p.create, name)
			continue
		}
		entries, err := b.sets.List(setOf(b.family, name))
		if errors.Is(err, ipset.ErrMissing) { // it went this moment
			p.create = append(p.create, name)
			continue
		}
		if err != nil {
			return fmt.Errorf("list ipset %s: %w", iptables.SetName(b.family, name), err)
		}
		for _, e := range entries {
			held[element{name, e}] = 1
		}
	}
	at, counts := b.count(want)
	p.next = &installed{snapshot: want, at: at, counts: counts, read: b.now()}
	p.names = b.names(want)
	p.sets = diff(held, counts)
	if want.Partial { // what is not known yet may be served
		p.sets.del = slices.DeleteFunc(p.sets.del, func(e element) bool { return h == nil || h.counts[e] == 0 })
	}
	if h != nil {
		for _, name := range p.create {
			p.drift = append(p.drift, "missing: ipset "+iptables.SetName(b.family, name))
		}
		p.drift = append(p.drift, diff(held, h.counts).drift(b.family, p.create, h.snapshot.Partial)...)
	}
	return nil
}

// Cleanup implements reconcile.Backend: it removes our chains and then the sets
// that they asked.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.have = nil
	if err := b.chains.Cleanup(ctx); err != nil {
		return err
	}
	return destroy(b.family, b.sets)
}

// destroy removes the sets of f.
func destroy(f service.Family, d Driver) error {
	heads, err := d.Heads()
	if err != nil {
		return fmt.Errorf("ask for ipsets: %w", err)
	}
	var errs []error
	for _, h := range heads {
		if ours(f, h) {
			errs = append(errs, d.Destroy(h.Name))
		}
	}
	return errors.Join(errs...)
}

// ours reports that h is one of our sets for f. Another one of such a name is
// somebody else's.
func ours(f service.Family, h ipset.Head) bool {
	return slices.ContainsFunc(allNames(), func(n string) bool {
		s := setOf(f, n)
		return s.Name == h.Name && s.Type == h.Type && s.Family == h.Family
	})
}

// Watch implements reconcile.Watcher: it hears of changes to chains.
func (b *Backend) Watch(ctx context.Context, touched func()) error {
	return b.chains.Watch(ctx, touched)
}

// Close gives back what b holds of the kernel's. Sets and chains stay.
func (b *Backend) Close() error {
	err := b.sets.Close()
	if c, ok := b.chains.(interface{ Close() error }); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}
