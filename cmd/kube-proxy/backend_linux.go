// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/nftables"
)

const hostOS = config.Linux

// newBackends returns the backends of the mode that c asks for, and why there
// is none for a family.
func newBackends(ctx context.Context, c *config.Config, o *options) ([]*backend, map[service.Family]string, error) {
	if err := checkMode(c, o); err != nil {
		return nil, nil, err
	}
	if c.Mode == "" {
		klog.FromContext(ctx).Info("No mode is configured; using nftables")
	}
	mode := modeOf(c)
	probe, create := nftables.Probe, nftablesBackends
	if mode == config.IPTables {
		probe, create = iptables.Probe, iptablesBackends
	}
	families, missing, err := familiesOf(c, probe)
	if err != nil {
		return nil, nil, fmt.Errorf("mode %s cannot work here: %w", mode, err)
	}
	backends, err := create(c, families)
	if err != nil {
		return nil, nil, err
	}
	for _, b := range backends {
		b.settle = settler(ctx, b.family)
	}
	return backends, missing, nil
}

// allBackends returns a backend of every mode and family, without what goes
// with it.
func allBackends(c *config.Config) ([]*backend, error) {
	all, err := nftablesBackends(c, service.Families[:])
	if err != nil {
		return nil, err
	}
	if !iptables.Installed() {
		klog.Background().Info("There is no command iptables here, so rules of mode iptables are not looked for")
		return all, nil
	}
	more, err := iptablesBackends(c, service.Families[:])
	return append(all, more...), err
}

func iptablesBackends(c *config.Config, families []service.Family) ([]*backend, error) {
	var all []*backend
	for _, f := range families {
		b, err := iptables.New(f, iptablesOptions(c))
		if err != nil {
			return nil, err // names the family
		}
		all = append(all, &backend{Backend: b, mode: string(config.IPTables), family: f})
	}
	return all, nil
}

func nftablesBackends(c *config.Config, families []service.Family) ([]*backend, error) {
	var all []*backend
	for _, f := range families {
		b, err := nftables.New(f, nftables.Options{MasqueradeBit: int(*c.NFTables.MasqueradeBit)})
		if err != nil {
			return nil, err // names the family
		}
		all = append(all, &backend{Backend: b, mode: string(config.NFTables), family: f})
	}
	return all, nil
}

// settler removes the UDP flows that a round made stale.
func settler(ctx context.Context, f service.Family) func(context.Context, *service.Snapshot, reconcile.Result) (int, error) {
	log := klog.FromContext(ctx)
	flows := &conntrack.Reconciler{Driver: conntrack.Netlink{}, Family: f}
	return func(ctx context.Context, now *service.Snapshot, r reconcile.Result) (int, error) {
		if len(r.Drift) > 0 { // flows may have begun by rules that were not ours
			flows.Recheck()
		}
		n, err := flows.Sync(ctx, now)
		if len(r.Removed) > 0 {
			more, removeErr := flows.Reconcile(ctx, goneRules(r.Removed), now)
			n, err = n+more, errors.Join(err, removeErr)
		}
		if n > 0 {
			log.V(2).Info("Removed stale UDP flows", "family", f.String(), "flows", n)
		}
		if r.Err != nil { // the old rules of a failed port may still begin flows
			flows.Recheck()
		}
		return n, err
	}
}

// goneRules are about frontends that an earlier process left and that this
// one does not know.
func goneRules(ports []*service.Port) []conntrack.Rule {
	var rules []conntrack.Rule
	for _, p := range ports {
		rules = append(rules, conntrack.Changes(p, nil)...)
	}
	return rules
}
