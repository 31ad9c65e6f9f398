// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// maxNamed is how many objects an error of --cleanup names.
const maxNamed = 20

// drift describes what other processes changed in our load balancers and endpoints since
// before was listed.
func (b *Backend) drift(before, now *model) []string {
	var r reconcile.DriftReport
	for _, lb := range before.sortedBalancers(b.family) {
		have := now.balancer(lb.Key)
		switch {
		case !b.host.ownedUntilListing(lb.ID):
		case have == nil:
			r.Add(func() string { return "missing: loadbalancer " + lb.Key.String() })
		case !have.equal(lb):
			r.Add(func() string { return "altered: loadbalancer " + lb.Key.String() })
		}
	}
	for _, e := range before.sortedRemotes(b.family) {
		if (ownsEndpoint(e) || b.host.ownedUntilListing(e.ID)) && now.endpoint(e.ID) == nil {
			r.Add(func() string { return "missing: endpoint " + e.describe() })
		}
	}
	return r.Lines()
}

// maxReportedNotes bounds the notes that are reported one by one.
const maxReportedNotes = 10

// reportNotes reports what works differently from what Services request.
func (b *Backend) reportNotes(h *state) {
	n := 0
	for _, name := range slices.SortedFunc(maps.Keys(h.notes), service.PortName.Compare) {
		for _, note := range h.notes[name] {
			if n++; n <= maxReportedNotes {
				b.host.report(fmt.Sprintf("Service port %s (%s, %s): %s", name, name.Protocol, b.family, note.Text))
			}
		}
	}
	if n > maxReportedNotes {
		b.host.report(fmt.Sprintf("More Service ports work a little differently (%s): %d in all", b.family, n))
	}
}

// Cleanup implements reconcile.Backend. The record and properties that only our objects
// have identify what is ours. Without the record, load balancers that use only local pods
// cannot be identified, and stay. The error names what remains of ours, even if HNS
// reported its deletion.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.state = nil
	l, err := b.host.list(ctx, b.family)
	if err != nil {
		return fmt.Errorf("list what HNS holds: %w", err)
	}
	at := &state{site: Site{Version: l.Version}, model: newModel(l, "")}
	balancers, endpoints := b.leftovers(at)
	p := newPass(ctx, b.host, &at.site, b.family, at.model)
	for _, lb := range balancers {
		p.drop(lb, leftoverName(b.host.purposeOf(lb.ID), lb.Key))
	}
	for _, e := range endpoints {
		p.removeEndpoint(e, leftoverName("", Key{}))
	}
	b.host.markWritten()
	errs := append(portErrors(b.family, p.failed), p.fatal)
	if len(balancers)+len(endpoints) > 0 && p.fatal == nil {
		if l, err = b.host.list(ctx, b.family); err != nil {
			errs = append(errs, fmt.Errorf("list what HNS holds now: %w", err))
		} else {
			at.model = newModel(l, "")
		}
	}
	if len(l.Networks) == 0 {
		b.host.clearRecord()
	}
	b.host.save()
	return errors.Join(append(errs, b.leftoverError(at))...)
}

// leftovers returns our objects in the family, sorted by key and by address.
func (b *Backend) leftovers(at *state) (balancers []*LoadBalancer, endpoints []*Endpoint) {
	for _, lb := range at.model.sortedBalancers(b.family) {
		if b.isLeftover(at, lb) {
			balancers = append(balancers, lb)
		}
	}
	for _, e := range at.model.endpoints {
		if ownsEndpoint(e) && len(e.Addrs) > 0 && service.FamilyOf(e.Addrs[0]) == b.family {
			endpoints = append(endpoints, e)
		}
	}
	slices.SortFunc(endpoints, func(a, b *Endpoint) int {
		return cmp.Or(a.Addrs[0].Compare(b.Addrs[0]), cmp.Compare(a.ID, b.ID))
	})
	return balancers, endpoints
}

// leftoverError returns an error that names what could not be removed.
func (b *Backend) leftoverError(at *state) error {
	var names []string
	balancers, endpoints := b.leftovers(at)
	for _, lb := range balancers {
		names = append(names, "load balancer "+lb.Key.String())
	}
	p := newPass(context.Background(), b.host, &at.site, b.family, at.model)
	for _, e := range endpoints {
		name := "endpoint " + e.Name
		for _, lb := range p.balancersUsing(map[string]bool{e.ID: true}) {
			if !b.isLeftover(at, lb) {
				name += fmt.Sprintf(" (load balancer %s, which is not ours, leads to it)", lb.ID)
			}
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil
	}
	if n := len(names); n > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("and %d more", n-maxNamed))
	}
	return fmt.Errorf("still in HNS: %s; once it can be removed, another --cleanup does it", strings.Join(names, ", "))
}
