// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"kubeproxy/common/service"
	"kubeproxy/config"
)

// primaryFamily is the one that the node cannot do without.
func primaryFamily(c *config.Config) service.Family {
	if a, err := netip.ParseAddr(c.BindAddress); err == nil && a.Unmap().Is6() {
		return service.IPv6
	}
	return service.IPv4
}

// familiesOf returns the families that probe finds no fault with, and why
// the others are missing. Without the primary one it fails.
func familiesOf(c *config.Config, probe func(service.Family) error) ([]service.Family, map[service.Family]string, error) {
	var found []service.Family
	missing := map[service.Family]string{}
	primary := primaryFamily(c)
	for _, f := range service.Families {
		err := probe(f)
		switch {
		case err == nil:
			found = append(found, f)
		case f == primary:
			return nil, nil, fmt.Errorf("%s is the primary family by bindAddress %s and cannot be programmed: %w", f, c.BindAddress, err)
		default:
			missing[f] = err.Error()
		}
	}
	return found, missing, nil
}

// unknownPods says that a family's pods cannot be told from other clients,
// though the Node was to say how.
func (o *observers) unknownPods(f service.Family, s *service.Snapshot) {
	text := ""
	if o.podsFromNode.Load() && s.Len(f) > 0 && !s.Node.Pods.Known(f) {
		text = "the Node " + o.node + " has no podCIDRs of " + f.String() + ", so clients that are no pods are not masqueraded: detectLocalMode NodeCIDR wants one"
	}
	o.health.SetCondition("pods-"+f.String(), text)
}

// without says that a round of f had nothing to do, as the node cannot have
// the family, which nobody minds who has no Services in it.
func (o *observers) without(f service.Family, s *service.Snapshot, why string) {
	if s.Len(f) == 0 {
		why = ""
	}
	was := o.gone[f]
	if why == "" && was == "" {
		return
	}
	o.gone[f] = why
	o.health.SetCondition("family-"+f.String(), why)
	if why != "" && why != was {
		o.log.Info("Warning: Services are not programmed for a family", "family", f.String(), "err", why)
	}
}

// lack says which families are not programmed, wherever somebody may look.
func (o *observers) lack(missing map[service.Family]string) {
	for f, why := range missing {
		o.health.SetCondition("family-"+f.String(), why)
		o.log.Info("Warning: Services are not programmed for a family", "family", f.String(), "err", why)
	}
	o.book.Missing, o.checks.missing = missing, missing
}
