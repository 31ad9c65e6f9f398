// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables/walk"
)

// relays reports whether the endpoints are listeners of a relay on this node.
func (l layout) relays() bool { return l.options.Relay[l.family].IsValid() }

// bypasses reports whether new connections bypass the relay.
func (l layout) bypasses() bool { return l.relays() && l.options.Bypass }

// root names the chains that are the roots of the trees of a table.
type root struct {
	services, nodePorts string
	before              []string // rules ahead of the tree
}

// roots returns those of table. With a relay, table nat has two, because packets of the
// relay itself must not come back to it. At an address of the node, a listener may have
// the port number of a NodePort that is refused. So packets that were redirected to a
// listener do not enter the tree of refusals.
func (l layout) roots(table string) []root {
	if table == filter && l.bound() {
		return []root{{servicesChain, nodePortsChain, []string{"-m conntrack --ctstate DNAT -j RETURN"}}}
	}
	if table != nat || !l.relays() {
		return []root{{services: servicesChain, nodePorts: nodePortsChain}}
	}
	return []root{
		{services: portalsInChain, nodePorts: nodePortsInChain},
		{portalsOutChain, nodePortsOutChain, []string{"-m mark --mark " + l.options.marked() + " -j RETURN"}},
	}
}

// relayBase returns the chains that do not depend on Services. A relay forwards no
// packets. But connections that present or earlier rules led past it are forwarded, so
// chain FORWARD accepts them against other rules. With Bypass it accepts them before
// table nat redirects any, because tables change one after the other.
func (l layout) relayBase() []chain {
	mark := l.options.marked()
	chains := []chain{l.rejectChain(), l.guard(), {id{filter, forwardChain}, []string{
		"-m mark --mark " + mark + " -j ACCEPT",
		"-m conntrack --ctstate NEW -j RETURN",
		"-m conntrack --ctstate DNAT -j ACCEPT",
	}}}
	if !l.bypasses() {
		return chains
	}
	return append(chains,
		chain{id{nat, markChain}, []string{"-j MARK --set-xmark " + mark}},
		chain{id{nat, postroutingChain}, l.masqueradeMarked()})
}

func (l layout) relayJumps() []jump {
	jumps := append([]jump{
		{id{nat, "PREROUTING"}, "-j " + portalsInChain},
		{id{nat, "OUTPUT"}, "-j " + portalsOutChain},
	}, l.guardJumps()...)
	if l.bypasses() {
		jumps = append(jumps, jump{id{nat, "POSTROUTING"}, "-j " + postroutingChain})
	}
	return jumps
}

// NewWith returns the Backend for one family that uses d.
func NewWith(f service.Family, o Options, d Driver) *Backend {
	return &Backend{layout: layout{family: f, options: o}, driver: d, rules: reconcile.Rules{Written: perTable()}}
}

// Replace changes all chains of b to those of want, whatever their present state. It
// changes all of them or none.
func (b *Backend) Replace(ctx context.Context, want *service.Snapshot) error {
	b.installed = nil
	t, err := b.read(ctx)
	if err != nil {
		return err
	}
	p := b.planAll(t, nil, want)
	if p.Empty() {
		return nil
	}
	return b.program(ctx, p.text())
}

// program gives a text to iptables-restore.
func (b *Backend) program(ctx context.Context, text string) error {
	if err := b.driver.Restore(ctx, text); err != nil {
		return fmt.Errorf("program the tables of %s: %w", command(b.family), err)
	}
	return nil
}

// IsBusy reports whether err means that iptables did not run, rather than that it
// refused the rules.
func IsBusy(err error) bool { return errors.Is(err, ErrBusy) }

// Destinations returns the translation targets of the chains in the tables, by chain
// name. It returns one endpoint per chain; with a relay there is only one.
func (b *Backend) Destinations(ctx context.Context) (map[string]netip.AddrPort, error) {
	h, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]netip.AddrPort{}
	for i, rules := range h.chains {
		for _, r := range rules {
			if to, err := netip.ParseAddrPort(walk.Argument(walk.Split(r), "--to-destination")); err == nil {
				all[i.name] = to
			}
		}
	}
	return all, nil
}

// ChainOf returns the name of the chain that translates to the endpoints of p for
// policy.
func ChainOf(p *service.Port, policy service.Policy) string {
	if policy == service.PolicyLocal {
		return portChainName(localPrefix, p)
	}
	return portChainName(clusterPrefix, p)
}

// UsesPolicy reports whether some frontend of p uses its endpoints for policy.
func UsesPolicy(p *service.Port, policy service.Policy) bool {
	internal, external := frontendKinds(p)
	if policy == service.PolicyLocal {
		return len(p.Local) > 0 && (external && p.External == policy || internal && p.Internal == policy)
	}
	return len(p.Cluster) > 0 && (external || internal && p.Internal == policy)
}
