// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
)

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
