// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"slices"

	"kubeproxy/common/service"
)

// tracked is the state of Tracked.
type tracked struct {
	redirected, want, merged *service.Snapshot
}

// Tracked returns the snapshot with the valid destinations of UDP flows in connection
// tracking. A flow goes to a listener, or directly to an endpoint if it began before
// this mode was in force. The latter continue as long as the endpoint exists. Tracked
// returns nil before the first sync.
func (b *Backend) Tracked() *service.Snapshot { return b.tracked.merged }

// track updates Tracked to what is in force for want. A Port that has not changed stays
// the same pointer.
func (b *Backend) track(want *service.Snapshot) {
	t := &b.tracked
	if t.merged == nil {
		none := service.New(0, want.Node, nil)
		*t = tracked{none, none, none}
	}
	var changes []service.Change
	known := map[service.PortName]bool{}
	follow := func(name service.PortName) {
		c := service.Change{Old: t.merged.Port(b.family, name), New: merged(b.redirected.Port(b.family, name), want.Port(b.family, name))}
		if !known[name] && (c.Old != nil || c.New != nil) {
			changes = append(changes, c)
		}
		known[name] = true
	}
	for c := range service.Diff(t.redirected, b.redirected, b.family) {
		follow(c.Name())
	}
	for c := range service.Diff(t.want, want, b.family) {
		follow(c.Name())
	}
	*t = tracked{b.redirected, want, t.merged.With(want.Generation, want.Node, changes)}
	t.merged.Incomplete = want.Incomplete
}

// merged returns redirected with the endpoints of want in addition to its listeners.
func merged(redirected, want *service.Port) *service.Port {
	if redirected == nil || want == nil || redirected.Name.Protocol != service.UDP {
		return redirected
	}
	p := *redirected
	p.Cluster, p.Local, p.Draining = mergeEndpoints(redirected.Cluster, want.Cluster), mergeEndpoints(redirected.Local, want.Local), want.Draining
	return &p
}

// mergeEndpoints returns listeners and endpoints, sorted as in a Port. Without listeners
// it returns none.
func mergeEndpoints(listeners, endpoints []service.Endpoint) []service.Endpoint {
	if len(listeners) == 0 {
		return nil
	}
	all := slices.Concat(listeners, endpoints)
	slices.SortFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return all
}
