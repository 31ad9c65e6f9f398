// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"

	"kubeproxy/common/service"
)

// localnetMark is an empty chain that records that this proxy enabled route_localnet, so
// that a later process can disable it. Without the rule that protects them, loopback
// addresses would be reachable from the network (kubernetes/kubernetes#92315). A setting
// that others made is never changed.
var localnetMark = id{filter, "KUBE-LOCALNET"}

// readSettings reads the kernel settings that rules depend on. It reports whether one of
// them has changed.
func (b *Backend) readSettings() (changed bool) {
	was := b.liberal
	b.liberal = b.options.DropInvalid && !b.relays() && b.driver.Liberal()
	return b.readLocalnet() || b.liberal != was
}

// readLocalnet checks whether loopback addresses are or can be routed. It reports
// whether the result has changed. If they cannot be routed, rules for them would let
// clients run into timeouts.
func (b *Backend) readLocalnet() (changed bool) {
	if b.family != service.IPv4 || !b.options.LocalhostNodePorts || b.relays() {
		return false
	}
	b.localnetRouted, b.localnetErr = b.driver.RouteLocalnetEnabled()
	was := b.noLocalnet
	b.noLocalnet = b.localnetErr != nil
	return b.noLocalnet != was
}

// planLocalnet sets in p whether route_localnet is to be enabled or disabled.
func (b *Backend) planLocalnet(p *plan) {
	want := p.next.snapshot
	b.degradedReason = ""
	switch {
	case b.relays() || !b.localhost(want.Node):
		p.enableLocalnet, p.disableLocalnet = false, b.localnetMarked && !want.Incomplete
		if b.noLocalnet && b.wantsLocalhost(want.Node) && hasNodePort(want, b.family) {
			b.degradedReason = fmt.Sprintf("NodePorts do not answer on 127.0.0.1, because loopback addresses cannot be routed: %v: "+
				"set net.ipv4.conf.all.route_localnet to 1, or iptables.localhostNodePorts to false", b.localnetErr)
		}
	case hasNodePort(want, b.family):
		p.enableLocalnet = p.enableLocalnet || !b.localnetRouted
	}
}

// readLocalnetMark looks for the mark in t. If others have removed it, the plan adds it
// again.
func (b *Backend) readLocalnetMark(p *plan, t *observed) {
	_, there := t.chains[localnetMark]
	if b.localnetMarked && !there {
		p.enableLocalnet = true
		return
	}
	b.localnetMarked = there
}

func hasNodePort(s *service.Snapshot, f service.Family) bool {
	for p := range s.Ports(f) {
		for i := range p.Frontends {
			if p.Frontends[i].Kind == service.NodePort {
				return true
			}
		}
	}
	return false
}

// routeLocalnet enables route_localnet. The rule that protects loopback addresses exists
// at this point.
func (p *plan) routeLocalnet(ctx context.Context) error {
	if !p.enableLocalnet {
		return nil
	}
	b := p.backend
	mark := change{writes: []chain{{id: localnetMark}}}
	if err := b.restore(ctx, &mark); err != nil {
		return fmt.Errorf("note that loopback addresses are routed: %w", err)
	}
	b.localnetMarked = true
	if err := b.driver.EnableRouteLocalnet(); err != nil {
		return fmt.Errorf("route loopback addresses for NodePorts: %w", err)
	}
	return nil
}

// stopRoutingLocalnet disables route_localnet, before the rule is removed.
func (p *plan) stopRoutingLocalnet(ctx context.Context) error {
	if !p.disableLocalnet {
		return nil
	}
	b := p.backend
	if err := b.driver.DisableRouteLocalnet(); err != nil {
		return fmt.Errorf("stop to route loopback addresses: %w", err)
	}
	mark := change{deletes: []id{localnetMark}}
	if err := b.restore(ctx, &mark); err != nil {
		return fmt.Errorf("note that loopback addresses are not routed: %w", err)
	}
	b.localnetMarked = false
	return nil
}
