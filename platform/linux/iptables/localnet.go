// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"

	"kubeproxy/common/service"
)

// localnetMark is an empty chain that says that it was us who had the kernel
// route loopback addresses, in case it is another process that is to undo it:
// without the rule that guards them, they would be open to the network. What
// somebody else has set stays as it is.
var localnetMark = id{filter, "KUBE-LOCALNET"}

// readSettings asks the kernel for settings that rules depend on, and reports that
// one of them has turned.
func (b *Backend) readSettings() (changed bool) {
	was := b.liberal
	b.liberal = b.options.DropInvalid && !b.relays() && b.driver.Liberal()
	return b.readLocalnet() || b.liberal != was
}

// readLocalnet finds out whether loopback addresses are or can be routed, and
// reports that the answer has turned. Where they cannot be, rules would only have
// clients wait in vain.
func (b *Backend) readLocalnet() (changed bool) {
	if b.family != service.IPv4 || !b.options.LocalhostNodePorts || b.relays() {
		return false
	}
	b.localnetRouted, b.localnetErr = b.driver.RouteLocalnetEnabled()
	was := b.noLocalnet
	b.noLocalnet = b.localnetErr != nil
	return b.noLocalnet != was
}

// planLocalnet notes in p if loopback addresses are to be routed, or not any
// more.
func (b *Backend) planLocalnet(p *plan) {
	want := p.next.snapshot
	b.degradedReason = ""
	switch {
	case b.relays() || !b.localhost(want.Node):
		p.enableLocalnet, p.disableLocalnet = false, b.localnetMarked && !want.Incomplete
		if b.noLocalnet && b.wantsLocalhost(want.Node) && hasNodePort(want, b.family) {
			b.degradedReason = fmt.Sprintf("NodePorts do not answer on 127.0.0.1, as loopback addresses cannot be routed: %v: "+
				"set net.ipv4.conf.all.route_localnet to 1, or iptables.localhostNodePorts to false", b.localnetErr)
		}
	case hasNodePort(want, b.family):
		p.enableLocalnet = p.enableLocalnet || !b.localnetRouted
	}
}

// DegradedReason says what the latest snapshot asks for that the node does not let b have,
// nothing most of the time. It is called between two rounds.
func (b *Backend) DegradedReason() string { return b.degradedReason }

// readLocalnetMark looks for the mark in t. One that others removed is made anew.
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

// routeLocalnet has loopback addresses be routed. The rule that guards them is there.
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

// unrouteLocalnet undoes that, before the rule goes.
func (p *plan) unrouteLocalnet(ctx context.Context) error {
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
