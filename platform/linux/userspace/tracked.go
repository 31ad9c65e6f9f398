// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"slices"

	"kubeproxy/common/service"
)

// tracked is what flows of UDP may lead to.
type tracked struct {
	led, want, both *service.Snapshot
}

// Tracked returns the snapshot that is right for flows which the kernel keeps:
// they lead to a listener, or straight to an endpoint if they began before
// this mode came into force. These go on as long as the endpoint does. It is
// nil before the first round.
func (b *Backend) Tracked() *service.Snapshot { return b.tracked.both }

// track has Tracked follow from what was to what is in force for want. What has not
// changed stays the same Port.
func (b *Backend) track(want *service.Snapshot) {
	t := &b.tracked
	if t.both == nil {
		none := service.New(0, want.Node, nil)
		*t = tracked{none, none, none}
	}
	var changes []service.Change
	known := map[service.PortName]bool{}
	follow := func(name service.PortName) {
		c := service.Change{Old: t.both.Port(b.family, name), New: both(b.led.Port(b.family, name), want.Port(b.family, name))}
		if !known[name] && (c.Old != nil || c.New != nil) {
			changes = append(changes, c)
		}
		known[name] = true
	}
	for c := range service.Diff(t.led, b.led, b.family) {
		follow(c.Name())
	}
	for c := range service.Diff(t.want, want, b.family) {
		follow(c.Name())
	}
	*t = tracked{b.led, want, t.both.With(want.Generation, want.Node, changes)}
	t.both.Partial = want.Partial
}

// both returns led with the endpoints of want beside its listeners.
func both(led, want *service.Port) *service.Port {
	if led == nil || want == nil || led.Name.Protocol != service.UDP {
		return led
	}
	p := *led
	p.Cluster, p.Local, p.Lingering = beside(led.Cluster, want.Cluster), beside(led.Local, want.Local), want.Lingering
	return &p
}

// beside returns listeners and endpoints, sorted as a Port has them. Without a
// listener nobody is served.
func beside(listeners, endpoints []service.Endpoint) []service.Endpoint {
	if len(listeners) == 0 {
		return nil
	}
	all := slices.Concat(listeners, endpoints)
	slices.SortFunc(all, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	return all
}
