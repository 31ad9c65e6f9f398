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

	"kubeproxy/common/service"
)

// maxDriftLines bounds what is said about drift.
const maxDriftLines = 20

// drift says what others did to load balancers and endpoints of ours since we
// knew before.
func (b *Backend) drift(before, now *model) []string {
	var lines []string
	for _, lb := range before.sortedBalancers(b.family) {
		have := now.balancer(lb.Key)
		switch {
		case !b.host.ownedUntilListing(lb.ID):
		case have == nil:
			lines = append(lines, "missing: loadbalancer "+lb.Key.String())
		case !have.equal(lb):
			lines = append(lines, "altered: loadbalancer "+lb.Key.String())
		}
	}
	for _, e := range before.sortedRemotes(b.family) {
		if (ownsEndpoint(b.host, e) || b.host.ownedUntilListing(e.ID)) && now.endpoint(e.ID) == nil {
			lines = append(lines, "missing: endpoint "+e.describe())
		}
	}
	if n := len(lines); n > maxDriftLines {
		lines = append(lines[:maxDriftLines], fmt.Sprintf("and %d more", n-maxDriftLines))
	}
	return lines
}

// maxReportedNotes bounds how many notes are said one by one.
const maxReportedNotes = 10

// reportNotes says what works a little differently from what Services ask for.
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

// Cleanup implements reconcile.Backend. What is ours is told by the record and
// by what only ours have; without the record, load balancers that lead to pods
// of this node alone cannot be told from others' and stay. The error names what
// is left of ours, also where HNS said that it had deleted it.
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

// leftovers returns what is of our making in the family, by key and by address.
func (b *Backend) leftovers(at *state) (balancers []*LoadBalancer, endpoints []*Endpoint) {
	for _, lb := range at.model.sortedBalancers(b.family) {
		if b.isLeftover(at, lb) {
			balancers = append(balancers, lb)
		}
	}
	for _, e := range at.model.endpoints {
		if ownsEndpoint(b.host, e) && len(e.Addrs) > 0 && service.FamilyOf(e.Addrs[0]) == b.family {
			endpoints = append(endpoints, e)
		}
	}
	slices.SortFunc(endpoints, func(a, b *Endpoint) int {
		return cmp.Or(a.Addrs[0].Compare(b.Addrs[0]), cmp.Compare(a.ID, b.ID))
	})
	return balancers, endpoints
}

// leftoverError names what could not be removed.
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
	if n := len(names); n > maxDriftLines {
		names = append(names[:maxDriftLines], fmt.Sprintf("and %d more", n-maxDriftLines))
	}
	return fmt.Errorf("still in HNS: %s; once it can be removed, another --cleanup does it", strings.Join(names, ", "))
}

// Prepare makes what the proxy needs before it can program anything: it waits
// for nothing, chooses the network, and reserves the source VIP.
func (b *Backend) Prepare(ctx context.Context, node *service.Node) error {
	p, err := b.planAll(ctx, service.New(0, node, nil))
	if err != nil {
		return err
	}
	if p.reserve != nil {
		err = p.reserveVIP(ctx)
	}
	b.host.save()
	return err
}
