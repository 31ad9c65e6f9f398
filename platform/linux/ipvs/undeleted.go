// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"slices"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// The kernel may refuse to delete a virtual server. It then continues to serve, so its
// rules stay: without them, answers would not return through this node.

// currentRules returns the plan for the rules, and its snapshot. That is the snapshot of
// p, with the rules that undeleted virtual servers need.
func (a *applier) currentRules() (reconcile.Plan, *service.Snapshot, error) {
	p := a.plan
	if len(a.undeleted) == 0 {
		return p.rules, p.next.view, nil
	}
	view := p.viewWith(a.undeleted)
	rules, err := p.backend.rules.Plan(a.ctx, view)
	if err != nil {
		return nil, nil, fmt.Errorf("keep the rules of virtual servers that could not be deleted: %w", err)
	}
	return rules, view, nil
}

// viewWith returns the view of p with the frontends of the virtual servers undeleted, as
// the installed rules have them.
func (p *plan) viewWith(undeleted map[key]bool) *service.Snapshot {
	b, view := p.backend, p.next.view
	n := neededPorts{plan: p, undeleted: undeleted, found: map[key]bool{}, wanted: map[key]bool{}}
	for port := range view.Ports(b.family) {
		for _, at := range p.serverKeys(port) {
			n.wanted[at] = true
		}
	}
	var changes []service.Change
	if b.rulesView != nil {
		n.localNode = newLocalNode(b.rulesView, b.family)
		for old := range b.rulesView.Ports(b.family) {
			if c := (service.Change{Old: view.Port(b.family, old.Name), New: n.keep(old)}); c.New != nil {
				changes = append(changes, c)
			}
		}
	}
	view = view.With(view.Generation, view.Node, changes)
	if len(n.found) < len(undeleted) { // an earlier process left them, and their rules are unknown
		view.Incomplete = true
	}
	return view
}

// neededPorts finds the Ports that virtual servers need.
type neededPorts struct {
	plan      *plan
	undeleted map[key]bool
	found     map[key]bool // those of undeleted that a Port of the installed rules has
	wanted    map[key]bool // what Ports of the next snapshot have
	localNode localNode    // of the installed rules
}

// keep returns the Port that replaces old's successor, nil if that needs no change. A
// Port without endpoints keeps its former ones.
func (n *neededPorts) keep(old *service.Port) *service.Port {
	next := n.plan.next.view.Port(old.Family, old.Name)
	served := false
	var left []service.Frontend // what only the virtual servers need
	for _, f := range old.Frontends {
		held, free := n.about(old, f)
		served = served || held
		if free && (held || f.Kind == service.ClusterIP) { // others are redirected to the latter
			left = append(left, f)
		}
	}
	if !served {
		return nil
	}
	kept := *old
	kept.Frontends = left
	switch {
	case next == nil:
		kept.HealthCheck = 0
		return &kept
	case next.HasEndpoints():
		kept = *next
	}
	kept.HealthCheck, kept.Frontends = next.HealthCheck, slices.Concat(next.Frontends, left)
	return &kept
}

// about reports whether a virtual server of frontend f could not be deleted, and whether
// no Port has f's virtual servers now.
func (n *neededPorts) about(old *service.Port, f service.Frontend) (held, free bool) {
	one := *old
	one.Frontends, free = []service.Frontend{f}, true
	for _, w := range n.plan.backend.options.servers(&one, n.localNode) {
		if n.undeleted[w.key] {
			held, n.found[w.key] = true, true
		}
		free = free && !n.wanted[w.key]
	}
	return held, free
}
