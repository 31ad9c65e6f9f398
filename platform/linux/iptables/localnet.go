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

// askSettings asks the kernel for settings that rules depend on, and reports that
// one of them has turned.
func (b *Backend) askSettings() (turned bool) {
	was := b.liberal
	b.liberal = b.options.DropInvalid && !b.relays() && b.driver.Liberal()
	return b.askLocalnet() || b.liberal != was
}

// askLocalnet finds out whether loopback addresses are or can be routed, and
// reports that the answer has turned. Where they cannot be, rules would only have
// clients wait in vain.
func (b *Backend) askLocalnet() (turned bool) {
	if b.family != service.IPv4 || !b.options.LocalhostNodePorts || b.relays() {
		return false
	}
	b.routed, b.unroutable = b.driver.Localnet()
	was := b.closed
	b.closed = b.unroutable != nil
	return b.closed != was
}

// planLocalnet notes in p if loopback addresses are to be routed, or not any
// more.
func (b *Backend) planLocalnet(p *plan) {
	want := p.next.snapshot
	b.lack = ""
	switch {
	case b.relays() || !b.localhost(want.Node):
		p.localnet, p.unrouted = false, b.marked && !want.Partial
		if b.closed && b.wantsLocalhost(want.Node) && hasNodePort(want, b.family) {
			b.lack = fmt.Sprintf("NodePorts do not answer on 127.0.0.1, as loopback addresses cannot be routed: %v: "+
				"set net.ipv4.conf.all.route_localnet to 1, or iptables.localhostNodePorts to false", b.unroutable)
		}
	case hasNodePort(want, b.family):
		p.localnet = p.localnet || !b.routed
	}
}

// Lacks says what the latest snapshot asks for that the node does not let b have,
// nothing most of the time. It is called between two rounds.
func (b *Backend) Lacks() string { return b.lack }

// readMark looks for the mark in t. One that others removed is made anew.
func (b *Backend) readMark(p *plan, t *held) {
	_, there := t.chains[localnetMark]
	if b.marked && !there {
		p.localnet = true
		return
	}
	b.marked = there
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

// route has loopback addresses be routed. The rule that guards them is there.
func (p *plan) route(ctx context.Context) error {
	if !p.localnet {
		return nil
	}
	b := p.backend
	mark := change{writes: []chain{{id: localnetMark}}}
	if err := b.restore(ctx, &mark); err != nil {
		return fmt.Errorf("note that loopback addresses are routed: %w", err)
	}
	b.marked = true
	if err := b.driver.AllowLocalnet(); err != nil {
		return fmt.Errorf("route loopback addresses for NodePorts: %w", err)
	}
	return nil
}

// unroute undoes that, before the rule goes.
func (p *plan) unroute(ctx context.Context) error {
	if !p.unrouted {
		return nil
	}
	b := p.backend
	if err := b.driver.ForbidLocalnet(); err != nil {
		return fmt.Errorf("stop to route loopback addresses: %w", err)
	}
	mark := change{deletes: []id{localnetMark}}
	if err := b.restore(ctx, &mark); err != nil {
		return fmt.Errorf("note that loopback addresses are not routed: %w", err)
	}
	b.marked = false
	return nil
}
